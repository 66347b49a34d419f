"""`elastane verify --reference`: the untouched DDP script beside the converted one under churn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import patience
from elastane_cli.verify.elastic_run import RunFailed
from elastane_cli.verify.reference import (
    OriginalError,
    OriginalRanksError,
    OtherArchitectureError,
    OtherStepsError,
    parse_reference,
    run_original,
)
from elastane_cli.verify.run import Verdict, VerifyResult, run_verify
from elastane_common.determinism import Level
from integration.forkserver import ForkServers
from slow import further, slow

SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = Path(__file__).parents[2] / "examples"
ORIGINAL = f"torchrun --nproc-per-node 2 {SCRIPTS / 'original_ddp.py'}"
ALONE = (
    "env MASTER_ADDR=127.0.0.1 MASTER_PORT=0 RANK=0 WORLD_SIZE=1 "
    f"{sys.executable} {SCRIPTS / 'original_ddp.py'}"
)
CONVERTED = str(SCRIPTS / "converted_ddp.py")


@pytest.fixture
def prove(servers: ForkServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "seed.txt").write_text("3")
    monkeypatch.chdir(folder)

    def run(original: str, *script: str, converted: str = CONVERTED, **options: object) -> VerifyResult:
        command = parse_reference(original)
        settings = {"seed": 5, "launch": servers.launch, **options}
        return run_verify(tmp_path / "proof", [converted, *script], original=command, **settings)

    return run


def test_the_converted_script_has_the_bits_of_the_untouched_one(prove, tmp_path: Path) -> None:
    result = prove(ORIGINAL, runs=1, kills=1)
    assert result.equal, result.as_json()
    assert (result.ests, result.steps, result.original) == (2, 10, True)
    rows = {row.name: row for row in result.runs[0].comparison.rows}
    # The average is a variable of both scripts, and is compared as such.
    assert set(rows) == {"steps", "weights", "buffers", "optimizer", "average"}
    assert result.as_json()["sha256"]["weights"] == result.fingerprint["weights"]
    # Each run left its snapshot in a folder of its own, none where the proof was started.
    assert [path.name for path in (tmp_path / "project").iterdir()] == ["data"]
    found = {path.parent.parent.name for path in (tmp_path / "proof").glob("*/work/snapshot.pt")}
    assert found == {"reference", "run-1"}


@further  # test_the_converted_script_has_the_bits_of_the_untouched_one
def test_the_two_scripts_of_the_readme_have_the_same_bits(prove) -> None:
    result = prove(
        f"torchrun --nproc-per-node 2 {EXAMPLES / 'minimal_ddp.py'}",
        converted=str(EXAMPLES / "minimal.py"),
        runs=1,
        kills=1,
    )
    assert result.equal, result.as_json()
    assert (result.ests, result.steps) == (2, 160)


@further  # unit/verify/test_verify_original.py
def test_another_seed_is_a_fault_of_the_conversion(prove) -> None:
    result = prove(ORIGINAL, "--fault", "seed")
    assert result.verdict is Verdict.DIFFERS
    assert result.event is not None and result.event.what == "initial weights"
    assert result.cause is not None and result.cause.kind == "the conversion" and not result.cause.ours
    assert str(result.where).startswith("step 0, rank 0: the weight 0.weight before the first step")


@slow
def test_an_average_that_prepare_does_not_know_ends_the_run_with_its_name(prove) -> None:
    with pytest.raises(RunFailed, match=r"CopyNotPreparedError: .*average"):
        prove(ORIGINAL, "--fault", "average")


@slow
@pytest.mark.parametrize(
    ("original", "script", "options", "error", "code", "words"),
    [
        (
            f"{ORIGINAL} --width 9",
            (),
            {},
            OtherArchitectureError,
            9,
            "0.weight is float32 9x6 in the reference",
        ),
        pytest.param(
            *(f"{ORIGINAL} --epochs 3", (), {}),
            *(OtherStepsError, 10, "made 15 steps, the converted script 10"),
            marks=further,  # the same of another comparison
        ),
        (ALONE, (), {"ests": 3}, OriginalRanksError, 8, "1 ranks, --ests is 3"),
    ],
)
def test_what_cannot_be_compared_is_said(
    prove,
    original: str,
    script: tuple[str, ...],
    options: dict[str, object],
    error: type,
    code: int,
    words: str,
) -> None:
    with pytest.raises(error, match=words) as raised:
        prove(original, *script, **options)
    assert isinstance(raised.value, OriginalError) and raised.value.exit_code == code


@slow
def test_a_reference_that_hangs_after_its_last_step_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastane_cli.verify.reference._EXIT_SECONDS", 1.0)
    command = [sys.executable, str(SCRIPTS / "hangs_at_its_end.py")]
    settings = {"directory": tmp_path, "determinism": Level.D1, "threads": 1, "traced": False}
    original = run_original(tmp_path / "run", command, environment={}, timeout_seconds=120.0, **settings)
    assert original.ranks == 1 and original.taken.steps == 1


@pytest.mark.parametrize(
    ("reference", "code", "words"),
    [
        ("python -c 'raise SystemExit(3)'", 5, "the reference failed (exit code 3)"),
        # A process in a session of its own, as torchrun's ranks are, must not outlive it.
        ("bash -c 'setsid sleep 4321 & wait'", 6, "did not finish within 2 s"),
        ("python -c 'import math'", 7, "built no torch.nn.parallel.DistributedDataParallel"),
        pytest.param("python -S -c 'import math'", 7, "never started a Python", marks=slow),
        ("no-such-program train.py", 2, "no program 'no-such-program'"),
    ],
)
def test_a_reference_that_gives_nothing_has_an_exit_code_of_its_own(
    tmp_path: Path, reference: str, code: int, words: str
) -> None:
    limit = ["--timeout", "2"] if code == 6 else []
    command = [sys.executable, "-m", "elastane_cli", "verify", "--json", *limit]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = patience.run(
        [*command, "--reference", reference, CONVERTED],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == code, ran.stderr
    said = ran.stderr.replace("│", " ") if code == 2 else json.loads(ran.stdout)["message"]
    assert words in " ".join(said.split())
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4321"]]


@slow
def test_a_killed_proof_leaves_no_rank_of_the_reference(tmp_path: Path) -> None:
    told, rank = tmp_path / "told", tmp_path / "rank.py"
    os.mkfifo(told)
    rank.write_text(
        "import signal\n"
        f"told = open({str(told)!r}, 'w')\n"  # open for as long as the rank lives
        "print('here', file=told, flush=True)\n"
        "signal.pause()\n"
    )
    proof = (
        "from pathlib import Path\n"
        "from elastane_cli.verify.reference import parse_reference, run_original\n"
        "from elastane_common.determinism import Level\n"
        f"folder = Path({str(tmp_path)!r})\n"
        f"command = parse_reference('torchrun --nproc-per-node 2 {rank}')\n"
        "run_original(folder, command, directory=folder, environment={}, determinism=Level.D1, threads=1,\n"
        "             traced=False, timeout_seconds=600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", proof]) as process, told.open() as ranks:
        assert [ranks.readline() for _ in range(2)] == ["here\n"] * 2
        process.kill()
        assert ranks.read() == ""  # both have ended
