"""The GPU benchmarks: a dry run of each on CPU, and what they say where there is no GPU."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import patience
from slow import further, slow, slow_except

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
DRY = ["--device", "cpu", "--models", "tiny", "--picture-size", "16", "--batch-size", "4"]
DRY += ["--steps", "6", "--data-workers", "1"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a benchmark in this process, which forks those that train."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def main(script: str, *arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(FOLDER / script), run_name="__main__")
        return int(ended.value.code or 0)

    return main


def _run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(FOLDER / script), *arguments]
    return patience.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_without_a_gpu_the_reason_is_said():
    ended = _run("parity.py")
    assert ended.returncode == 3
    assert "no CUDA device here" in ended.stderr
    assert "--device cpu" in ended.stderr


@slow
def test_time_sliced_workers_have_the_bits_of_stock_ddp(tmp_path: Path, run: Callable[..., int]):
    assert run("parity.py", *DRY, "--ests", "2", "--json", str(tmp_path / "found")) == 0
    (case,) = json.loads((tmp_path / "found").read_text())["cases"]
    assert case["equal"]
    assert case["losses_compared"] == 2 * 6
    assert {"weights", "optimizer", "buffers", "logged values"} <= case["sha256"].keys()


@further  # a benchmark; it runs at all: the test above
def test_memory_of_both_sides_is_measured(tmp_path: Path):
    ended = _run("memory.py", *DRY, "--counts", "2", "--json", str(tmp_path / "found"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (case,) = json.loads((tmp_path / "found").read_text())["cases"]
    assert case["gradient_bytes"] > 0
    # One process with two logical workers against two processes that each load torch.
    assert 0 < case["elastic"]["rss_bytes"] < case["stock"]["rss_bytes"]
    assert 0 < case["elastic"]["device_bytes"] < case["stock"]["device_bytes"]


@further  # a benchmark; it runs at all: the test above
def test_the_switch_is_timed(tmp_path: Path, run: Callable[..., int]):
    arguments = ["--counts", "2", "--repeats", "1", "--json", str(tmp_path / "found")]
    assert run("context_switch.py", *DRY, *arguments) == 0
    (case,) = json.loads((tmp_path / "found").read_text())["cases"]
    assert case["accumulation_seconds"] > 0
    assert case["elastic_seconds"] > case["switch_seconds"] > 0
    assert case["stock_seconds"] > 0
    assert case["k"] == 2


@pytest.mark.parametrize("name", slow_except(["resnet50", "vit"], "vit", further=("resnet50",)))
def test_the_models_learn_from_every_parameter(name: str, monkeypatch: pytest.MonkeyPatch):
    import torch

    monkeypatch.syspath_prepend(str(FOLDER))
    from models import MODELS

    with torch.device("meta"):
        model = MODELS[name](32, 10)
        model(torch.randn(2, 3, 32, 32)).logsumexp(1).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
