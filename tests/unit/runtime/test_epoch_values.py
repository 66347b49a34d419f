"""Variables that live across epochs, as the running script's source shows them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from elastane.runtime.carried import CarriedValues
from elastane.runtime.epoch_values import EpochValues, LostValuesError

HEAD = """\
def run(job, loader, net, optimizer, state):
    best, bad, losses = 9.0, 0, []
    for epoch in job:
"""
TRAIN = "        for x in loader:\n            net(x).sum().backward()\n            optimizer.step()\n"
#: Closing code of an epoch -> the names that live across epochs and decide something.
CLOSING = {
    "loss = float(epoch)\nif loss < best: best = loss": set(),
    "loss = float(epoch)\nlosses.append(loss)\nprint(max(losses))": set(),
    "loss = float(epoch)\nif loss > best: bad += 1\nif bad > 3: break": {"bad"},
    "best = min(best, float(epoch))\noptimizer.param_groups[0]['lr'] = 1 / (1 + best)": {"best"},
    "best = min(best, float(epoch))\nset_lr(optimizer, best)": {"best"},
    "state.best = min(state.best, float(epoch))\nset_lr(optimizer, state.best)": set(),
    "optimizer.param_groups[0]['lr'] = 1 / (1 + epoch)": set(),
}
#: Closing code -> what a warning says; the job goes on from a checkpoint all the same.
ONLY_WARNED = {
    "loss = float(epoch)\nif loss < best:\n    best = loss\n    torch.save(net, 'best')": (
        "best, set in line 9, decides which weights are saved in line 10. A worker that joins later does not "
        "have them: write `state = job.carry(best=...)`"
    ),
    "net.scale = net.scale * 0.9": (
        "net.scale, set in line 7, decides what the model does in line 4. A worker that joins later does not "
        "have them: set net.scale in every epoch before the loop over mini-batches"
    ),
    "total = 0\nfor x in loader:\n    total += net(x).sum()\nset_lr(optimizer, total)": (
        "a sum over mini-batches affects the training: script.py: total, set in line 8, decides"
    ),
}


def begun(tmp_path: Path, closing: str, *, epoch: int = 0) -> tuple[EpochValues, list[Any]]:
    net = torch.nn.Linear(1, 1)
    net.scale = 1.0  # type: ignore[assignment]
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    prepared: Any = SimpleNamespace(
        model=net, optimizers=[optimizer], schedulers=[], scalers=[], extras={}, loader=[torch.ones(1)]
    )
    values = EpochValues(prepared, [])

    def epochs() -> Any:
        values.begin(sys._getframe(1), epoch, leads=True, lost=False)
        yield from range(1)

    path = tmp_path / "script.py"
    body = "".join(f"        {line}\n" for line in closing.splitlines())
    helper = "def set_lr(optimizer, by):\n    optimizer.param_groups[0]['lr'] = 1 / (1 + by)\n"
    path.write_text(HEAD + TRAIN + body + helper)
    names: dict[str, Any] = {"__file__": str(path), "torch": SimpleNamespace(save=lambda *given: None)}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with capture_logs() as said:
        names["run"](epochs(), prepared.loader, net, optimizer, CarriedValues().add({"best": 9.0}))
    return values, said


@pytest.mark.parametrize("closing", CLOSING)
def test_what_lives_across_epochs_is_told_of_and_refused_once_it_is_lost(
    tmp_path: Path, closing: str
) -> None:
    values, said = begun(tmp_path, closing)
    names = CLOSING[closing]
    assert len(said) == bool(names)
    if not names:
        values.refuse_lost(3)
        return
    with pytest.raises(LostValuesError, match=r"at epoch 3 from a checkpoint.*script\.py: ") as refused:
        values.refuse_lost(3)
    assert set(refused.value.facts["variables"]) == names  # type: ignore[arg-type]
    assert f"state = job.carry({names.pop()}=...)" in str(refused.value)


def test_a_worker_that_begins_later_says_so(tmp_path: Path) -> None:
    (said,) = begun(tmp_path, "best = min(best, 1.0)\nif best < 1: break", epoch=2)[1]
    assert "begins at epoch 2 without the values" in said["event"] and "best, set in line 7" in said["event"]


@pytest.mark.parametrize("closing", ONLY_WARNED)
def test_what_does_not_stop_a_job_that_goes_on_from_a_checkpoint_is_warned_of(
    tmp_path: Path, closing: str
) -> None:
    values, said = begun(tmp_path, closing)
    assert [ONLY_WARNED[closing] in line["event"] for line in said] == [True], said
    values.refuse_lost(3)
