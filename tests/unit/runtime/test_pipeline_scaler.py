"""A GradScaler of which every worker knows what all have found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from elastane.runtime.pipelines.scaling import JoinedScaler, scale_of

CPU = torch.device("cpu")


@dataclass
class Elsewhere:
    """The rest of the ring. found: whether it has a gradient that is not finite."""

    found: bool

    def found_inf(self) -> bool:
        return self.found


class Worker:
    """Holds one parameter, or none, and makes steps with a prepared scaler."""

    def __init__(self, make: Any = torch.optim.SGD, *, holds: bool = True, **options: Any) -> None:
        self.parameter = nn.Parameter(torch.ones(2))
        self.optimizer = make([self.parameter], lr=0.5, **options)
        if not holds:
            self.optimizer.param_groups[0]["params"].clear()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        self.joined = JoinedScaler([self.scaler], CPU)

    def compute(self, *, found: bool = False) -> None:
        self.joined.begin_step()
        self.parameter.grad = torch.full((2,), 4.0)
        self.joined.join(Elsewhere(found))  # type: ignore[arg-type]

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


@pytest.mark.parametrize(("make", "options"), [(torch.optim.SGD, {}), (torch.optim.SGD, {"fused": True})])
@pytest.mark.parametrize("unscales", [False, True])
def test_what_another_worker_has_found_skips_the_step_here(make: Any, options: Any, unscales: bool) -> None:
    worker = Worker(make, **options)
    worker.compute(found=True)
    if unscales:
        worker.scaler.unscale_(worker.optimizer)
    worker.step()
    assert worker.parameter.tolist() == [1, 1] and worker.scaler.get_scale() == 2
    worker.compute()
    worker.step()
    assert worker.parameter.tolist() == [0, 0], "a gradient of 4, unscaled by 2, times 0.5"


def test_a_worker_without_a_stage_has_the_same_scale() -> None:
    worker = Worker(holds=False)
    assert worker.scaler._scale is None
    for found in (True, False):
        worker.compute(found=found)
        worker.step()
    assert worker.scaler.get_scale() == 2


def test_gradients_of_a_lost_step_do_not_count() -> None:
    worker = Worker()
    worker.compute()
    worker.scaler.unscale_(worker.optimizer)
    worker.compute()  # the step was lost, and runs again
    worker.scaler.unscale_(worker.optimizer)
    assert worker.parameter.grad is not None and worker.parameter.grad.tolist() == [1, 1]
    worker.step()
    assert worker.parameter.tolist() == [0.5, 0.5]


def test_without_a_scaler_nothing_is_scaled_or_asked() -> None:
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    for scalers in ([], [disabled]):
        assert scale_of(scalers) is None
        joined = JoinedScaler(scalers, CPU)
        joined.begin_step()
        joined.join(None)  # type: ignore[arg-type]
