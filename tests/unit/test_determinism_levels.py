"""Levels: what a process is started with, what it sets itself, what it says of itself."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path

import pytest

import patience
from elastane.runtime.environment import read_environment
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.determinism import (
    DEFAULT_LEVEL,
    Level,
    cpu_vendor,
    level_from_proto,
    level_from_text,
    pins,
    process_environment,
)
from elastane_common.errors import EXIT_REFUSED, RefusedError
from elastane_proto.v1 import job_pb2
from slow import slow

#: Applies the level of the environment, runs each argument and says what the process is after it.
PROGRAM = """
import json, os, sys, torch
from elastane_common import determinism
from elastane_common.errors import ElastaneError
from elastane.runtime.environment import read_environment
torch.set_num_threads(1)
try:
    determinism.apply(read_environment().determinism)
except ElastaneError as error:
    print(json.dumps({"error": str(error)}))
    sys.exit(error.exit_code)
for line in sys.argv[1:] or [""]:
    exec(line)
    found = determinism.facts(determinism.in_effect(), torch.device("cpu"))
    flags = {
        "benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cublas": os.environ["CUBLAS_WORKSPACE_CONFIG"],
        "fills": torch.utils.deterministic.fill_uninitialized_memory,
    }
    print(json.dumps(found | flags))
"""


def outside() -> dict[str, str]:
    """This process's variables without those that a level sets."""
    levels = process_environment(Level.D2, 1)
    return {name: value for name, value in os.environ.items() if name not in levels}


def said_by(environment: dict[str, str], *lines: str) -> list[dict[str, object]]:
    """What a process says of itself that was started with those variables, after each of the lines."""
    run = patience.run(
        [sys.executable, "-c", PROGRAM, *lines],
        env=outside() | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode in (0, EXIT_REFUSED), run.stderr
    return [json.loads(line) | {"code": run.returncode} for line in run.stdout.splitlines()]


def started(environment: dict[str, str], line: str = "") -> dict[str, object]:
    """The same, after one line."""
    (said,) = said_by(environment, line)
    return said


#: Its instruction sets have pins that differ from the least it runs with.
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="unlike instruction sets are x86's here")


SWITCHES = [
    ("torch.use_deterministic_algorithms(False)", "deterministic_kernels", "off"),
    ("torch.use_deterministic_algorithms(True, warn_only=True)", "deterministic_kernels", "warn"),
    ("torch.set_num_threads(2)", "threads", "2"),
    ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", "float32_precision", "tf32"),
    ("torch.set_float32_matmul_precision('medium')", "float32_precision", "medium"),
]
"""Lines of a script, each with the fact that it changes and the fact's value from then on."""


@pytest.fixture(scope="module")
def switched() -> list[dict[str, object]]:
    """What a process without a word says, at first and after each line of `SWITCHES`."""
    return said_by({}, "", *(line for line, _, _ in SWITCHES))


@pytest.fixture(scope="module")
def plain(switched: list[dict[str, object]]) -> dict[str, object]:
    return switched[0]


def test_a_process_without_a_word_is_at_d1(plain: dict[str, object]) -> None:
    assert DEFAULT_LEVEL is Level.D1 and plain["determinism"] == "d1"
    assert plain["deterministic_kernels"] == "on" and plain["fills"] is False
    assert (plain["benchmark"], plain["cudnn_deterministic"]) == (False, True)
    assert plain["cublas"] == ":4096:8"
    assert plain["threads"] == "1" and plain["device"] == "cpu"


@x86
def test_the_level_and_its_pins_show_in_the_facts(plain: dict[str, object]) -> None:
    pinned = started(process_environment(Level.D2, 1))
    assert pinned["code"] == 0 and pinned["determinism"] == "d2"
    for fact in ("onednn", "numpy_loops"):
        assert pinned[fact] != plain[fact]
    assert "caches" in plain and "caches" not in pinned
    # Whatever a shell said of unlike kinds before, all pinned processes are started alike.
    shell = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
    assert shell | process_environment(Level.D2, 1) == process_environment(Level.D2, 1)


@slow
@x86
def test_an_unlike_process_says_so(plain: dict[str, object]) -> None:
    unlike = {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3,X86_V4,AVX2,AVX512F",
    }
    said = started(unlike)
    for fact in ("instruction_set", "onednn", "mkl", "numpy_loops"):
        assert said[fact] != plain[fact]
    for fact in ("torch", "numpy", "threads", "device"):
        assert said[fact] == plain[fact]


def test_what_a_script_switches_afterwards_is_seen(switched: list[dict[str, object]]) -> None:
    for (line, fact, value), facts in zip(SWITCHES, switched[1:], strict=True):
        assert facts[fact] == value, line


def test_d2_without_its_variables_is_refused_with_what_to_do() -> None:
    bare = started({"ELASTANE_DETERMINISM": "d2"})
    assert bare["code"] == EXIT_REFUSED
    wanted = pins(platform.machine(), cpu_vendor())
    for words in (f"was started without {next(iter(wanted))}", "elastane run"):
        assert words in str(bare["error"])
    for name, value in wanted.items():
        assert f"{name}={value}" in str(bare["error"])


@slow
def test_d2_with_another_variable_is_refused() -> None:
    other = started(process_environment(Level.D2, 1) | {"ATEN_CPU_CAPABILITY": "sse9"})
    assert other["code"] == EXIT_REFUSED
    assert "but the process was started with" in str(other["error"])


@slow
@x86
def test_d2_set_too_late_is_refused() -> None:
    """torch chooses its kernels once; variables that come after that are only words."""
    late = """
import os
torch.ones(8).exp().sum()
torch.backends.cpu.get_cpu_capability()
os.environ.update(determinism.process_environment(determinism.Level.D2, 1))
try:
    determinism.apply(determinism.Level.D2)
except ElastaneError as error:
    print(json.dumps({"error": str(error)}))
    sys.exit(error.exit_code)
"""
    # Some other kind than the pinned one, whatever this CPU has.
    said = started({"ATEN_CPU_CAPABILITY": "default"}, late)
    assert said["code"] == EXIT_REFUSED and "but torch runs with DEFAULT" in str(said["error"])


def test_pins_of_each_kind_of_machine() -> None:
    intel = pins("x86_64", "GenuineIntel")
    assert intel["ATEN_CPU_CAPABILITY"] == "avx2" and intel["MKL_CBWR"] == "AVX2"
    # MKL would pass over its AVX2 branch elsewhere, without a word.
    amd = pins("x86_64", "AuthenticAMD")
    assert amd["MKL_CBWR"] == "COMPATIBLE" and amd["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    for machine in ("aarch64", "arm64", "riscv64"):
        assert pins(machine, "unknown")["ATEN_CPU_CAPABILITY"] == "default"
        assert not any(name.startswith("MKL") for name in pins(machine, "unknown"))
    for machine in ("x86_64", "aarch64", "riscv64"):
        assert pins(machine, "unknown")["NVIDIA_TF32_OVERRIDE"] == "0"


def test_what_each_level_starts_a_process_with() -> None:
    for level in (Level.D0, Level.D1):
        assert process_environment(level, 3) == {
            "ELASTANE_DETERMINISM": level.value,
            "OMP_NUM_THREADS": "3",
            "MKL_NUM_THREADS": "3",
            "OPENBLAS_NUM_THREADS": "3",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        }
    pinned = process_environment(Level.D2, 0)
    assert pinned["OMP_NUM_THREADS"] == "1"
    assert pins(platform.machine(), cpu_vendor()).items() <= pinned.items()


def test_the_fixed_run_at_an_unknown_level_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="ELASTANE_DETERMINISM is 'd9'"):
        run_stock_ddp(tmp_path, ["none.py"], processes=1, environment={"ELASTANE_DETERMINISM": "d9"})


def test_levels_as_text_and_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [level_from_proto(level.to_proto()) for level in Level] == list(Level)
    assert level_from_proto(job_pb2.DETERMINISM_LEVEL_UNSPECIFIED) is DEFAULT_LEVEL
    assert level_from_text("D2") is Level.D2
    with pytest.raises(RefusedError, match=r"'d3' \(it must be d0, d1 or d2"):
        level_from_text("d3")
    monkeypatch.setenv("ELASTANE_DETERMINISM", "D0")
    assert read_environment().determinism is Level.D0
    monkeypatch.setenv("ELASTANE_DETERMINISM", "very")
    with pytest.raises(RefusedError, match="ELASTANE_DETERMINISM"):
        read_environment()
