"""What a script may do with gradients, of which a worker has those of its own units alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_value_, get_total_norm

from elastane.pipeline.units import Units
from elastane.runtime.pipelines.absent_gradients import AbsentGradients, is_absent_gradient
from elastane.runtime.pipelines.errors import PipelineBodyError
from elastane.state.unit_optimizer import UnitOptimizer

Parameters = list[nn.Parameter]


class Worker:
    """A worker of two units, which holds one: averages are in p.grad as after `pipe(batch)`."""

    def __init__(self, held: int = 0) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        self.units = Units.build(self.model)
        self.divided = UnitOptimizer.build(
            self.units, lambda ps: torch.optim.AdamW([{"params": ps[:1]}, {"params": ps[1:]}])
        )
        self.units.hold([held])
        self.units.initialise(held)
        self.divided.hold([held], [held])
        self.absent = AbsentGradients(self.units, self.divided, lambda: [held])
        for place in self.units.owned(held):
            parameter = self.units.parameters[place]
            parameter.grad = torch.full_like(parameter, 2.0)
        self.here = [self.units.parameters[place] for place in self.units.owned(held)]
        self.absent.show()

    @property
    def all(self) -> Parameters:
        return list(self.model.parameters())

    @property
    def grouped(self) -> Parameters:
        return [p for group in self.divided.optimizer.param_groups for p in group["params"]]


@pytest.fixture(params=[0, 1], ids=["first unit", "last unit"])
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    made = Worker(request.param)
    yield made
    made.absent.hide()
    assert all(p.grad is None for p in made.all if p not in set(made.here))
    assert len(made.grouped) == 2


def by_hand(parameters: Parameters) -> None:
    total = sum(p.grad.pow(2).sum() for p in parameters if p.grad is not None) ** 0.5
    scale = min(1.0, 0.05 / float(total))
    for p in parameters:
        if p.grad is not None:
            p.grad.mul_(scale)


def without_a_number(parameters: Parameters) -> None:
    total = torch.cat([p.grad.flatten() for p in parameters]).norm()
    for p in parameters:
        p.grad.mul_((0.05 / total).clamp(max=1.0))


def starting_with_a_number(parameters: Parameters) -> None:
    total = 0.0
    for p in parameters:
        total += p.grad.norm().item() ** 2


def starting_with_a_tensor(parameters: Parameters) -> None:
    total = torch.zeros(())
    for p in parameters:
        total += p.grad.norm() ** 2


def by_torch(parameters: Parameters) -> None:
    total = get_total_norm([p.grad for p in parameters])
    torch._foreach_mul_([p.grad for p in parameters], total.reciprocal())


def lists(parameters: Parameters) -> None:
    norms = torch._foreach_norm([p.grad for p in parameters])
    torch.stack(list(norms)).max().item()


def with_numpy(parameters: Parameters) -> None:
    for p in parameters:
        p.grad.numpy()


def whether_finite(parameters: Parameters) -> None:
    if all(p.grad.isfinite().all() for p in parameters):
        raise AssertionError("decided by a part")


def copied(parameters: Parameters) -> None:
    _ = f"{copy.deepcopy(parameters[0].grad).detach().double().cpu().sum() + parameters[-1].grad.sum():.3f}"


def into_a_buffer(parameters: Parameters) -> None:
    buffer = torch.zeros(100)
    for place, p in enumerate(parameters):
        buffer[place] = p.grad.norm()


REFUSED = [
    by_hand, without_a_number, starting_with_a_number, starting_with_a_tensor, by_torch, lists, with_numpy,
    whether_finite, copied, into_a_buffer,
]  # fmt: skip


@pytest.mark.parametrize("compute", REFUSED)
@pytest.mark.parametrize("groups", [False, True], ids=["model", "groups"])
def test_what_depends_on_gradients_elsewhere_is_refused(
    worker: Worker, compute: Callable[[Parameters], None], groups: bool
) -> None:
    before = [p.grad.clone() for p in worker.here if p.grad is not None]
    with pytest.raises(PipelineBodyError, match="in another worker") as refused:
        compute(worker.grouped if groups else worker.all)
    assert "pipe.clip_grad_norm_(max_norm)" in refused.value.hint
    assert all(torch.equal(p.grad, b) for p, b in zip(worker.here, before, strict=True) if p.grad is not None)


def halves(parameters: Parameters) -> None:
    for p in parameters:
        if p.grad is not None:
            p.grad.mul_(0.5)


def anew(parameters: Parameters) -> None:
    for p in parameters:
        assert p.grad is not None and p.grad.shape == p.shape and p.grad.dtype == p.dtype
        p.grad = p.grad.clamp(-1.0, 1.0)


def data(parameters: Parameters) -> None:
    for p in parameters:
        p.grad.data = p.grad.data / 2.0
        p.grad.data.clamp_(-1, 1)


def by_its_own_norm(parameters: Parameters) -> None:
    for p in parameters:
        p.grad.mul_(1.0 / (p.grad.norm() + 1.0))
        p.grad /= p.grad.abs().max()


def value(parameters: Parameters) -> None:
    clip_grad_value_(parameters, 1.0)


def foreach(parameters: Parameters) -> None:
    gradients = [p.grad for p in parameters]
    torch._foreach_mul_(gradients, 0.5)
    torch._foreach_add_(gradients, torch._foreach_mul([*gradients], 2.0))


def shapes(parameters: Parameters) -> None:
    assert sum(p.grad.numel() for p in parameters) == 26
    assert {str(p.grad.device) for p in parameters} == {"cpu"} and parameters[0].grad.size(1) == 3
    assert [len(p.grad) for p in parameters] == [4, 4, 2, 2] and repr(parameters[0].grad)
    assert {p.grad: 1 for p in parameters} and not any(p.grad.requires_grad for p in parameters)


ALLOWED = [halves, anew, data, by_its_own_norm, value, foreach, shapes]


@pytest.mark.parametrize("change", ALLOWED)
def test_each_gradient_may_be_changed_by_itself(worker: Worker, change: Callable[[Parameters], None]) -> None:
    """Where the whole model is, the same is done to it."""
    whole = [nn.Parameter(torch.zeros(p.shape)) for p in worker.all]
    for p in whole:
        p.grad = torch.full_like(p, 2.0)
    change(whole)
    change(worker.all)
    places = [i for i, p in enumerate(worker.all) if any(p is one for one in worker.here)]
    for place in places:
        assert torch.equal(worker.all[place].grad, whole[place].grad)  # type: ignore[arg-type]
    assert all(is_absent_gradient(p.grad) for i, p in enumerate(worker.all) if i not in places)  # type: ignore[arg-type]


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("who", ["model", "optimizer"])
def test_gradients_may_be_set_to_zero(worker: Worker, to_none: bool, who: str) -> None:
    owner: Any = worker.model if who == "model" else worker.divided.optimizer
    owner.zero_grad(set_to_none=to_none)
    assert all(p.grad is None if to_none else not p.grad.any() for p in worker.here)


def test_the_optimizer_steps_what_is_here(worker: Worker) -> None:
    assert len(worker.grouped) == 4, "the script sees all of a group"
    before = [p.detach().clone() for p in worker.here]
    with worker.absent.groups_hidden():
        worker.divided.optimizer.step()
        assert len(worker.grouped) == 2
    assert len(worker.grouped) == 4
    assert not any(torch.equal(p, b) for p, b in zip(worker.here, before, strict=True))
    assert len(worker.divided.optimizer.state) == 2


def test_a_hook_before_the_step_sees_what_the_loop_body_sees(worker: Worker) -> None:
    optimizer = worker.divided.optimizer
    seen: list[int] = []

    def before(one: Any, *_: Any) -> None:
        seen.append(len(worker.grouped))
        by_hand(worker.grouped)

    handle = optimizer.register_step_pre_hook(before)
    values = [p.detach().clone() for p in worker.here]
    for _ in range(2):
        with pytest.raises(PipelineBodyError, match="in another worker"), worker.absent.groups_hidden():
            optimizer.step()
    assert seen == [4, 4] and len(optimizer._optimizer_step_pre_hooks) == 1
    assert all(torch.equal(p, value) for p, value in zip(worker.here, values, strict=True))
    handle.remove()
    optimizer.register_step_pre_hook(lambda *_: halves(worker.grouped))
    with worker.absent.groups_hidden():
        optimizer.step()
        assert len(worker.grouped) == 2
    assert len(worker.grouped) == 4 and len(optimizer.state) == 2
    assert not any(torch.equal(p, value) for p, value in zip(worker.here, values, strict=True))


def test_a_frozen_parameter_has_no_gradient_anywhere() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2).requires_grad_(False))
    units = Units.build(model)
    divided = UnitOptimizer.build(units, lambda ps: torch.optim.SGD(ps, lr=0.1))
    absent = AbsentGradients(units, divided, list)
    absent.show()
    assert [p.grad is None for p in model.parameters()] == [False, False, True, True]
    absent.hide()
    assert all(p.grad is None for p in model.parameters())
