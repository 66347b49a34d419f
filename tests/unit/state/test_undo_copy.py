"""A step is undone exactly: whatever an optimizer, a scheduler or an average changes is as before."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel

from elastane.collective.script_gradients import ScriptGradients
from elastane.runtime.carried import CarriedValues
from elastane.state.repeated_steps import REPEATED
from elastane.state.train_state import TrainState
from elastane.state.undo_copy import UndoCopy

Build = Callable[[Iterable[nn.Parameter]], Optimizer]
OPTIMIZERS: list[tuple[str, Build]] = [
    *((kind.__name__, kind) for kind in sorted(REPEATED, key=lambda kind: kind.__name__)),
    ("momentum", lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True)),
    ("amsgrad", lambda params: torch.optim.AdamW(params, lr=torch.tensor(0.01), amsgrad=True)),
    ("centered", lambda params: torch.optim.RMSprop(params, momentum=0.9, centered=True)),
]


class Training:
    """A model that trains; what the runtime keeps beside it is kept here."""

    def __init__(self, build: Build, **extras: Any) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
        self.optimizer = build(self.model.parameters())
        self.scheduler: Any = StepLR(self.optimizer, 1, 0.5)
        self.average = AveragedModel(self.model, use_buffers=True)
        self.gradients = ScriptGradients(list(self.model.parameters()))
        self.at_start = [buffer.clone() for buffer in self.model.buffers()]
        extras = {"prepared.0.AveragedModel": self.average, "elastane.gradients": self.gradients, **extras}
        self.state = TrainState(self.model, [self.optimizer], [self.scheduler], extras)
        self.undo = UndoCopy(self.state, lambda: self.at_start, self.gradients)

    def step(self, number: int) -> None:
        self.optimizer.zero_grad()
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(number))
        self.model(inputs).square().sum().backward()
        self.optimizer.step()
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(1.0)
        else:
            self.scheduler.step()
        self.average.update_parameters(self.model)
        self.at_start = [buffer.clone() for buffer in self.model.buffers()]

    def give_other_memory(self) -> None:
        """As `p.data = p.data.clamp(...)` does after optimizer.step()."""
        for parameter in self.model.parameters():
            parameter.data = parameter.data.clamp(-0.01, 0.01)

    def undone(self) -> None:
        buffers = self.undo.restore()
        with torch.no_grad():
            for live, value in zip(self.model.buffers(), buffers, strict=True):
                live.copy_(value)
        self.at_start = buffers

    def digest(self) -> str:
        """Of all that travels to another worker, but the gradients."""
        exported = self.state.export()
        sha = hashlib.sha256(exported.structure)
        for tensor in exported.tensors:
            sha.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())
        return sha.hexdigest()


@pytest.mark.parametrize(("name", "build"), OPTIMIZERS, ids=[name for name, _ in OPTIMIZERS])
@pytest.mark.parametrize("before", [0, 3])
def test_a_step_is_undone_exactly(name: str, build: Build, before: int) -> None:
    training, straight = Training(build), Training(build)
    for one in (training, straight):
        for number in range(before):
            one.step(number)
        one.optimizer.zero_grad()
    start = training.digest()
    tensors = [id(tensor) for tensor in training.model.parameters()]
    assert not training.undo.why_not()
    training.undo.take()
    training.step(99)
    training.step(98)
    assert training.digest() != start
    training.undone()
    training.optimizer.zero_grad()
    assert training.digest() == start
    training.gradients._restored = False  # as once the reducer has begun the next step
    assert [id(tensor) for tensor in training.model.parameters()] == tensors
    for number in range(before, before + 3):  # and what follows is as if nothing had been done
        training.step(number)
        straight.step(number)
    assert training.digest() == straight.digest()


def test_parameters_that_were_given_other_memory_are_undone() -> None:
    training = Training(lambda params: torch.optim.SGD(params, lr=0.1))
    training.step(0)
    training.optimizer.zero_grad()
    start = training.digest()
    training.undo.take()
    training.step(1)
    training.give_other_memory()
    training.undone()
    training.optimizer.zero_grad()
    assert training.digest() == start


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=9),
        lambda optimizer: ReduceLROnPlateau(optimizer, patience=0),
        lambda optimizer: SequentialLR(
            optimizer, [StepLR(optimizer, 1), CosineAnnealingLR(optimizer, 5)], milestones=[2]
        ),
    ],
    ids=["one cycle", "plateau", "sequence"],
)
def test_schedules_are_undone(schedule: Callable[[Optimizer], Any]) -> None:
    training = Training(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9))
    training.scheduler = schedule(training.optimizer)
    training.state.schedulers = [training.scheduler]
    training.step(0)
    training.optimizer.zero_grad()
    start = training.digest()
    training.undo.take()
    training.step(1)
    training.step(2)
    training.undone()
    training.optimizer.zero_grad()
    assert training.digest() == start


def test_the_memory_of_the_copy_is_kept_and_follows_the_state() -> None:
    training = Training(torch.optim.Adam)
    training.undo.take()
    small = training.undo.size_bytes
    training.step(0)
    training.undo.take()
    memory = [one.data_ptr() for one in training.undo._copies]
    assert training.undo.size_bytes > small  # the optimizer has begun its state
    training.step(1)
    training.undo.take()
    assert [one.data_ptr() for one in training.undo._copies] == memory


def test_gradients_that_the_step_began_with_are_known_again() -> None:
    training = Training(torch.optim.SGD)
    training.gradients._defined, training.gradients._restored = {0, 2}, True
    training.undo.take()
    training.gradients.load_state_dict({"defined": [1]})
    training.undone()
    assert training.gradients.state_dict() == {"defined": [0, 2]}


class OwnSchedule(StepLR):
    """A schedule that a script has written."""


class WithState(nn.Module):
    """A module with a state that is no tensor."""

    def get_extra_state(self) -> Any:
        return {"count": 1}


def _hooked(training: Training) -> None:
    training.optimizer.register_step_post_hook(lambda *_: None)


def _own_schedule(training: Training) -> None:
    training.state.schedulers = [OwnSchedule(training.optimizer, 1)]


def _other_optimizer(training: Training) -> None:
    training.state.optimizers = [torch.optim.LBFGS(training.model.parameters())]


def _extra_state(training: Training) -> None:
    training.model.append(WithState())


def _tracker(training: Training) -> None:
    training.state.extras["prepared.4.Tracker"] = CarriedValues()


def _carried(training: Training) -> None:
    carried = CarriedValues()
    carried.values = {"best": 0.5, "losses": [1.0]}
    training.state.extras["elastane.carried"] = carried


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_hooked, "has hooks"),
        (_own_schedule, "OwnSchedule"),
        (_other_optimizer, "LBFGS"),
        (_extra_state, "WithState"),
        (_tracker, "CarriedValues"),
        (_carried, "losses"),
    ],
    ids=["hook", "schedule", "optimizer", "module", "object", "carried"],
)
def test_what_cannot_be_undone_is_known_before(change: Callable[[Training], None], why: str) -> None:
    training = Training(torch.optim.SGD)
    assert not training.undo.why_not()
    change(training)
    assert why in training.undo.why_not()


def test_carried_values_that_cannot_change_in_place_are_no_reason() -> None:
    training = Training(torch.optim.SGD)
    carried = CarriedValues()
    carried.values = {"best": 0.5, "name": "a", "none": None}
    training.state.extras["elastane.carried"] = carried
    assert not training.undo.why_not()
