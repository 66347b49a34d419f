"""What is compared of a worker's state: all of it within the bound, and by name where it differs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from elastane.runtime.carried import CarriedValues
from elastane.runtime.fingerprints import Fingerprints
from elastane.state.digests import combined, digest_of_tensors, digest_of_text
from elastane.state.train_state import TrainState

STEPS = 4


def worker(steps: int = STEPS, *, width: int = 6) -> tuple[TrainState, Fingerprints]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    model(torch.randn(8, 5)).sum().backward()
    optimizer.step()
    carried = CarriedValues()
    carried.add({"best": 1.5})
    average = copy.deepcopy(model)
    state = TrainState(
        model, [optimizer], [scheduler], {"prepared.4.EMA": average, "elastane.carried": carried}
    )
    return state, Fingerprints(state, lambda: list(model.buffers()), steps)


def digests(prints: Fingerprints, step: int, *, whole: bool = False) -> tuple[int | None, int | None]:
    prints.begin(step, whole=whole, alone=False)
    return prints.settings_digest(), prints.state_digest()


def flip(tensor: torch.Tensor) -> None:
    tensor.detach().view(-1).view(torch.uint8)[2] ^= 4


PLANTED = {
    "weights 0.weight": lambda state: flip(state.model[0].weight),
    "buffer 1.running_mean": lambda state: flip(state.model[1].running_mean),
    "optimizer, state of 2.bias, exp_avg_sq": lambda state: flip(
        state.optimizers[0].state[state.model[2].bias]["exp_avg_sq"]
    ),
    "scheduler 0, last_epoch": lambda state: setattr(state.schedulers[0], "last_epoch", 2),
    "4.EMA 2.weight": lambda state: flip(state.extras["prepared.4.EMA"][2].weight),
    "carried, best": lambda state: state.extras["elastane.carried"].values.update(best=1.25),
    "modules in eval()": lambda state: state.model[1].eval(),
}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("width", [6, 40_000])
def test_whatever_differs_is_found_within_the_bound_and_named(name: str, width: int) -> None:
    (_, sound), (state, flipped) = worker(width=width), worker(width=width)
    assert digests(sound, 0, whole=True) == digests(flipped, 0, whole=True)
    PLANTED[name](state)
    differing = [step for step in range(8, 8 + STEPS) if digests(sound, step) != digests(flipped, step)]
    assert len(differing) == 1
    assert digests(sound, 0, whole=True) != digests(flipped, 0, whole=True)
    theirs = {label: digest for label, digest, _ in sound.details()}
    assert [label for label, digest, _ in flipped.details() if theirs[label] != digest] == [name]
    for prints in (sound, flipped):
        prints.close()


def test_how_a_step_trains_is_compared_and_not_how_an_evaluation_before_it_left_the_model() -> None:
    """The leader evaluates between epochs; each turn begins with model.train()."""
    (_, sound), (state, leader) = worker(), worker()
    state.model.eval()
    for prints in (sound, leader):
        prints.begin(0, whole=True, alone=False)
    state.model.train()
    assert sound.state_digest() == leader.state_digest()
    for prints in (sound, leader):
        prints.begin(1, whole=True, alone=False)
    state.model.eval()
    assert sound.state_digest() != leader.state_digest()


def test_how_the_leader_leaves_the_model_after_the_last_step_is_not_compared() -> None:
    (_, sound), (state, leader) = worker(), worker()
    assert digests(sound, 0) == digests(leader, 0)
    state.model.eval()
    assert sound.whole() == leader.whole()


def test_a_hyperparameter_is_compared_at_every_step_and_told_in_words() -> None:
    (_, sound), (state, other) = worker(), worker()
    for step in range(2):
        assert digests(sound, step)[0] == digests(other, step)[0]
    state.optimizers[0].param_groups[0]["lr"] /= 4
    for step in range(3):
        assert digests(sound, step)[0] != digests(other, step)[0]
    words = {name: value for name, _, value in other.details()}
    assert words["optimizer, param_groups[0], lr"] == "0.025"


def test_values_equal_in_another_object_are_equal() -> None:
    (_, sound), (state, other) = worker(), worker()
    first = digests(other, 0)
    state.optimizers[0].param_groups[0].update(lr=float("0.1"), betas=(float("0.9"), 0.999))
    assert digests(other, 0) == first == digests(sound, 0)


def test_a_worker_alone_and_one_told_not_to_compare_nothing() -> None:
    _, prints = worker()
    prints.begin(0, whole=True, alone=True)
    assert (prints.settings_digest(), prints.state_digest()) == (None, None)
    _, off = worker(0)
    assert digests(off, 0, whole=True) == (None, None)
    assert off.whole() is None


def test_a_tensor_of_zeros_that_is_missing_or_of_another_form_is_found_and_named() -> None:
    name = "optimizer, state of 0.weight, spare"
    for changed in (None, torch.zeros(3), torch.zeros(4, 1), torch.zeros(4, dtype=torch.float64)):
        (state, sound), (other, wrong) = worker(), worker()
        for one, value in ((state, torch.zeros(4)), (other, changed)):
            if value is not None:
                one.optimizers[0].state[one.model[0].weight]["spare"] = value
        assert digests(sound, 0, whole=True) != digests(wrong, 0, whole=True), changed
        theirs = {label: digest for label, digest, _ in wrong.details()}
        assert [label for label, digest, _ in sound.details() if theirs.get(label) != digest] == [name]


@pytest.mark.parametrize("value", [[0.5, 0.5], {"a": 0.5}, ([0.5], 1)], ids=str)
def test_a_hyperparameter_changed_in_place_is_found(value: Any) -> None:
    state, prints = worker()
    state.optimizers[0].param_groups[0]["own"] = value
    first = digests(prints, 0)
    assert digests(prints, 1)[0] == first[0]
    inner = value[0] if isinstance(value, tuple) else value
    inner["a" if isinstance(inner, dict) else 0] = 0.25
    assert digests(prints, 1)[0] != first[0]


def test_values_of_an_optimizers_state_that_appear_go_or_are_replaced_later_are_found() -> None:
    (_, sound), (state, other) = worker(), worker()
    first = digests(sound, 0, whole=True)
    assert digests(other, 0, whole=True) == first
    own = state.optimizers[0].state[state.model[0].bias]
    moment = own.pop("exp_avg")
    assert digests(other, 1, whole=True) != first
    own["exp_avg"] = moment + 1
    assert digests(other, 2, whole=True) != first
    own["exp_avg"] = moment.clone()
    assert digests(other, 3, whole=True) == first, "the order in which they were added does not matter"
    own["spare"] = torch.zeros(2)
    assert digests(other, 4, whole=True) != first


def test_a_step_without_a_part_has_the_digest_of_nothing_and_those_with_one_have_not() -> None:
    _, prints = worker(1000)
    nothing = combined((digest_of_tensors(()), digest_of_text("")))
    assert digests(prints, 999)[1] == nothing
    assert digests(prints, 0)[1] != nothing
