"""Which schedules seem to be counted with the loader as it was before prepare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as lr
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.schedules import Lengths, schedule_warnings
from elastane.runtime.stock import PlainJob
from elastane_common.errors import UnsupportedError

BEFORE, AFTER, EPOCHS = 40, 10, 32
Build = Callable[[torch.optim.Optimizer], Any]

WARNED: dict[str, Build] = {
    "T_max": lambda o: lr.CosineAnnealingLR(o, T_max=EPOCHS * BEFORE),
    "total_steps": lambda o: lr.OneCycleLR(o, 0.1, epochs=EPOCHS, steps_per_epoch=BEFORE),
    "a step more": lambda o: lr.CosineAnnealingLR(o, T_max=EPOCHS * BEFORE + 1),
    "milestones": lambda o: lr.MultiStepLR(o, [10 * BEFORE, 20 * BEFORE]),
    "step_size": lambda o: lr.StepLR(o, 10 * BEFORE),
    "warm-up": lambda o: lr.LinearLR(o, total_iters=BEFORE),
    "in a row": lambda o: lr.SequentialLR(
        o,
        [lr.LinearLR(o, total_iters=BEFORE), lr.CosineAnnealingLR(o, (EPOCHS - 1) * BEFORE)],
        [BEFORE],
    ),
}
SILENT: dict[str, Build] = {
    "global steps": lambda o: lr.CosineAnnealingLR(o, T_max=EPOCHS * AFTER),
    "total_steps": lambda o: lr.OneCycleLR(o, 0.1, epochs=EPOCHS, steps_per_epoch=AFTER),
    "milestones": lambda o: lr.MultiStepLR(o, [10 * AFTER + 50, 20 * AFTER]),
    "epochs": lambda o: lr.CosineAnnealingLR(o, T_max=EPOCHS),
    "epochs, milestones": lambda o: lr.MultiStepLR(o, [10, 20]),
    "no figure": lambda o: lr.LambdaLR(o, lambda step: 0.5**step),
    "in a row": lambda o: lr.SequentialLR(
        o, [lr.LinearLR(o, total_iters=AFTER), lr.CosineAnnealingLR(o, (EPOCHS - 1) * AFTER)], [AFTER]
    ),
}


def warnings_of(build: Build, *, before: int = BEFORE) -> list[str]:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    return schedule_warnings([build(optimizer)], Lengths(before, AFTER, EPOCHS))


@pytest.mark.parametrize("name", WARNED)
def test_a_schedule_counted_before_prepare_is_told_of_with_both_lengths(name: str) -> None:
    (text,) = warnings_of(WARNED[name])
    assert f"{BEFORE} batches per epoch" in text and f"{AFTER} global steps" in text
    assert "job.steps_per_epoch(loader)" in text
    assert warnings_of(WARNED[name], before=AFTER) == []


@pytest.mark.parametrize("name", SILENT)
def test_any_other_schedule_is_not(name: str) -> None:
    assert warnings_of(SILENT[name]) == []


def test_steps_of_an_epoch_are_known_before_prepare() -> None:
    job = PlainJob(WorkerEnvironment(), None)
    data = list(range(103))
    for job.num_ests, batches in ((1, 21), (4, 6)):
        loader = DataLoader(data, 5, shuffle=True)  # type: ignore[arg-type]
        assert job.steps_per_epoch(loader) == batches
        assert job.steps_per_epoch(loader, accumulation_steps=4) == -(-batches // 4)
        assert job.steps_per_epoch(DataLoader(data, 5, sampler=RandomSampler(data, True, 10**10))) == (  # type: ignore[arg-type]
            10**10 // 5 // job.num_ests
        )
    with pytest.raises(UnsupportedError, match="splits the data into 3"):
        job.steps_per_epoch(DataLoader(data, 5, sampler=DistributedSampler(data, 3, 0)))  # type: ignore[arg-type]
