"""Values that travel with the state: what they take, and what is refused at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from elastane.runtime.carried import CarriedValues
from elastane.runtime.est_step import EpochsClosed, EstStep
from elastane.runtime.step_state import Stage, StepState
from elastane.runtime.trainer import Trainer
from elastane.state.codec import StateNotCarriedError, decode, encode
from elastane.state.optimizer_state import StateError
from elastane_common.errors import StepError


def test_values_are_attributes_and_travel() -> None:
    mine, theirs = CarriedValues(), CarriedValues()
    state = mine.add({"best": 1e9, "bad": 0, "seen": [], "weights": torch.zeros(2)})
    other = theirs.add({"best": 1e9, "bad": 0, "seen": [], "weights": torch.zeros(2)})
    state.best, state.bad, state.weights = float("inf"), np.int64(3), torch.ones(2)
    state.seen.append(("x", None, True))
    theirs.load_state_dict(decode(encode(mine.state_dict())))
    assert (other.best, other.bad, other.seen) == (float("inf"), 3, [("x", None, True)])
    assert torch.equal(other.weights, torch.ones(2))
    state.weights[0] = 5
    assert other.weights[0] == 1


@pytest.mark.parametrize("value", [{1, 2}, object(), max, [torch.nn.Linear(1, 1)], {"a": {"b": open}}])
def test_what_cannot_travel_is_refused_where_it_is_given_and_where_it_is_set(value: object) -> None:
    carried = CarriedValues()
    with pytest.raises(StateNotCarriedError, match=r"job\.carry, best"):
        carried.add({"best": value})
    state = carried.add({"best": 0})
    with pytest.raises(StateNotCarriedError, match=r"job\.carry, best"):
        state.best = value
    assert state.best == 0


def test_names_are_those_that_were_given() -> None:
    carried = CarriedValues()
    state = carried.add({"best": 0})
    with pytest.raises(StepError, match="called twice"):
        carried.add({"other": 1, "best": 0})
    with pytest.raises(StepError, match="'bset' was set"):
        state.bset = 1
    with pytest.raises(AttributeError, match="bset"):
        _ = state.bset
    with pytest.raises(StateError, match="the state has other, the script best"):
        carried.load_state_dict({"other": 1})


def test_a_value_that_the_state_has_already_is_not_set_again() -> None:
    carried = CarriedValues()
    state = carried.add({"bad": 2})
    carried.writes = lambda name: False
    state.bad += 1
    assert state.bad == 2


def trainer_between_epochs(*, epoch: int, looped: int, begun: int, count: int) -> Trainer:
    """Of a trainer what says whose code outside the loader loop the state has."""
    trainer: Any = Trainer.__new__(Trainer)
    trainer.epoch, trainer._looped_epoch = epoch, looped
    trainer.steps = SimpleNamespace(est_step=None, stepped=lambda turn: turn.applied)
    trainer._closed_epochs = EpochsClosed()
    trainer._closed_epochs.load_state_dict({"begun": begun, "count": count, "ended": False})
    return trainer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("where", "sets"),
    [
        ({"epoch": 3, "looped": 2, "begun": 3, "count": 3}, True),  # before the loop of epoch 3
        ({"epoch": 3, "looped": -1, "begun": 4, "count": 3}, False),  # there, in a newcomer
        ({"epoch": 3, "looped": 3, "begun": 4, "count": 3}, True),  # behind the loop of epoch 3
        ({"epoch": 3, "looped": 3, "begun": 5, "count": 4}, False),  # there, with the state of one further on
    ],
)
def test_code_that_the_state_has_already_sets_nothing_again(where: dict[str, int], sets: bool) -> None:
    assert trainer_between_epochs(**where)._writes_carried("best") is sets


def test_a_value_is_set_once_the_step_is_applied() -> None:
    trainer = trainer_between_epochs(epoch=0, looped=0, begun=1, count=0)
    est_step = EstStep(StepState(7, Stage.REPORTED), rank=1, slot=0, ends=True)
    trainer.steps.est_step = est_step
    with pytest.raises(StepError, match=r"value best was set in step 7 before the step was applied"):
        trainer._writes_carried("best")
    est_step.state.prepare()
    assert trainer._writes_carried("best")


def test_checkpoints_of_older_versions_have_the_count_only() -> None:
    closed = EpochsClosed()
    closed.load_state_dict({"count": 2})
    assert (closed.begun, closed.count, closed.ended, closed.lost) == (2, 2, False, False)


@pytest.mark.parametrize(
    ("loaded_step", "values_epoch", "lost"),
    [
        (None, 0, False),  # from a member that has them
        (0, 0, False),
        (9, 0, False),  # within the first epoch: a fresh process has the same values
        (10, 0, True),
        (25, 2, False),  # back within the epoch that runs
        (19, 2, True),  # back to an epoch before
    ],
)
def test_a_checkpoint_of_another_epoch_lacks_the_values_of_variables(
    loaded_step: int | None, values_epoch: int, lost: bool
) -> None:
    trainer = trainer_between_epochs(epoch=values_epoch, looped=values_epoch, begun=0, count=0)
    nothing = SimpleNamespace(replaced=lambda: None, take=lambda: None)
    stubs: Any = SimpleNamespace(steps_per_epoch=10, steps=SimpleNamespace(watch=nothing, buffers=nothing))
    trainer._source = trainer._parts = stubs
    trainer.values_epoch = values_epoch
    trainer.replaced(loaded_step)
    assert trainer.values_lost is lost
    received = EpochsClosed()
    received.load_state_dict(trainer._closed_epochs.state_dict())
    assert received.lost is lost
