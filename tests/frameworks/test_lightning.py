"""Lightning's own DDP over gloo beside the same module with ElastaneStrategy, under kills."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from elastane_cli.verify.reference import parse_reference
from elastane_cli.verify.run import run_verify
from integration.forkserver import ForkServers

SCRIPT = str(Path(__file__).parent / "lightning_digits.py")
CASES = {
    "the classifier of the tutorial": [],
    "accumulated and clipped": [
        "--schedule", "epoch",
        "--trainer", '{"accumulate_grad_batches": 3, "gradient_clip_val": 0.05}',
    ],
    "stops early": ["--schedule", "plateau", "--patience", "1", "--trainer", '{"max_epochs": 6}'],
    "a number of steps": ["--trainer", '{"max_epochs": -1, "max_steps": 26, "num_sanity_val_steps": 0}'],
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_lightning_module_has_the_bits_of_ddp(case: str, tmp_path: Path, servers: ForkServers) -> None:
    arguments = [*CASES[case], "--out", "trained.json"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    original = parse_reference(
        " ".join(f"'{word}'" for word in [*torchrun, SCRIPT, "--strategy", "ddp", *arguments])
    )
    result = run_verify(
        tmp_path, [SCRIPT, *arguments], original=original, runs=1, kills=2, seed=4, launch=servers.launch
    )
    assert result.equal, result.as_json()
    stock, elastic = (
        json.loads((tmp_path / run / "work" / "trained.json").read_text()) for run in ("reference", "run-1")
    )
    for name in ("weights", "optimizer", "rates", "best", "saved"):
        assert elastic[name] == stock[name], name
    # A worker that joined later has not seen what was before. Until it led, what it saw in training was
    # another rank's; in the last epoch it was what rank 0 of DDP saw.
    mine, ranks = elastic["epochs"], stock["epochs"][-len(elastic["epochs"]) :]
    assert mine[-1] == ranks[-1]
    assert [values_of_all(epoch) for epoch in mine] == [values_of_all(epoch) for epoch in ranks]
    counted = [batch[:3] for batch in elastic["batches"]]
    assert counted == [batch[:3] for batch in stock["batches"]][-len(counted) :]


def values_of_all(epoch: list[Any]) -> list[Any]:
    """What a callback saw in an epoch, without the values of one rank."""
    number, step, found = epoch
    return [number, step, {name: value for name, value in found.items() if not name.startswith("train")}]
