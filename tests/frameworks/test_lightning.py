"""Lightning's own DDP over gloo beside the same script with ElastaneStrategy, under kills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frameworks.beside import run_beside

CHANGES = {
    "from lightning.pytorch.strategies import DDPStrategy": (
        "from elastane.integrations.lightning import ElastaneStrategy"
    ),
    '    strategy = DDPStrategy(process_group_backend="gloo")': "    strategy = ElastaneStrategy()",
}
CASES = {
    "a schedule of steps": [],
    "accumulated and clipped": ["--schedule=epoch", "--accumulate=3", "--clip=0.05"],
    "stops early": ["--schedule=plateau", "--patience=1", "--epochs=6"],
    "a number of steps": ["--epochs=-1", "--steps=26"],
}


@pytest.mark.parametrize("case", CASES)
def test_a_lightning_module_has_the_bits_of_ddp(case: str, tmp_path: Path) -> None:
    result = run_beside("lightning_digits.py", CHANGES, tmp_path, *CASES[case])
    assert result.equal, result.as_json()
    stock, elastic = (
        json.loads((tmp_path / "proof" / run / "work" / "trained.json").read_text())
        for run in ("reference", "run-1")
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
