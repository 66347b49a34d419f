"""State by unit: exported and loaded bit for bit, on any plan, and refused before anything changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from elastane.state.codec import Exported, StateFormatError, decode, encode
from elastane.state.optimizer_state import StateError
from elastane.state.unit_state import Staged
from unit.state.pipelines import (
    COUNT,
    CUTS,
    OPTIMIZERS,
    Stock,
    Worker,
    assert_like_stock,
    begun,
    bits,
    constructors,
    held_values,
    stages,
    stepped,
    train,
    values,
)


def copied(exported: Exported) -> Exported:
    """What arrives elsewhere: other memory, the same bits."""
    tensors = [t.clone(memory_format=torch.preserve_format) for t in exported.tensors]
    return Exported(exported.structure, tensors)


def moved(donors: list[Worker], receiver: Worker, wanted: range) -> None:
    """Give a worker that is new the units it wants, and the common part."""
    parts = [copied(donors[0].state.export_common())]
    for unit in wanted:
        donor = next(d for d in donors if unit in d.state.active)
        parts.append(copied(donor.state.export_unit(unit)))
    receiver.state.adopt(wanted, Staged.of(*parts))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_any_cut_trains_like_stock(name: str, cut: list[int]) -> None:
    stock, workers = Stock(OPTIMIZERS[name]), begun(cut, OPTIMIZERS[name])
    assert values(stock.model).keys() == {n for w in workers for n in held_values(w)}
    for steps in (range(1), range(1, 4)):
        stock.train(steps)
        train(workers, steps)
        assert_like_stock(workers, stock)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_on_other_workers_with_another_cut(name: str) -> None:
    stock, workers = Stock(OPTIMIZERS[name]), begun([3, 7], OPTIMIZERS[name])
    steps = 0
    for cut in ([1, 2, 7], [7], [2, 3, 6, 7]):
        stock.train(range(steps, steps + 3))
        train(workers, range(steps, steps + 3))
        steps += 3
        newcomers = [Worker(OPTIMIZERS[name], seed=9) for _ in cut]
        for newcomer, stage in zip(newcomers, stages(cut), strict=True):
            newcomer.tracker.best = 0.0
            moved(workers, newcomer, stage)
            newcomer.units.started()
            assert newcomer.tracker.best == 1.5
        workers = newcomers
        assert_like_stock(workers, stock)
    stock.train(range(steps, steps + 2))
    train(workers, range(steps, steps + 2))
    assert_like_stock(workers, stock)


def test_round_trips_change_no_byte_and_no_stride() -> None:
    workers = begun([7])
    train(workers, range(3))
    exported = [workers[0].state.export_unit(unit) for unit in range(COUNT)]
    before, steps = held_values(workers[0]), stepped(workers[0])
    other = Worker(seed=5)
    other.state.adopt(range(COUNT), Staged.of(*map(copied, exported)))
    assert held_values(other) == before and stepped(other) == steps
    for unit in range(COUNT):
        again = other.state.export_unit(unit)
        assert again.structure == exported[unit].structure
        assert [bits(t) for t in again.tensors] == [bits(t) for t in exported[unit].tensors]
    assert other.units.module(0).weight.is_contiguous(memory_format=torch.channels_last)
    assert other.units.module(6).seen == workers[0].units.module(6).seen > 0
    assert other.units.module(5).weight is other.units.module(3).weight


def test_one_unit_is_loaded_without_the_others() -> None:
    workers = begun([7])
    train(workers, range(2))
    other = Worker(seed=5).begin(range(COUNT))
    untouched = held_values(other)
    other.state.adopt(range(COUNT), Staged.of(copied(workers[0].state.export_unit(1))))
    expected = {n: v for n, v in held_values(workers[0]).items() if n.startswith("1.")}
    assert expected and held_values(other) == untouched | expected


def test_a_unit_takes_the_strides_that_the_ring_trains_with_and_initial_ones_again() -> None:
    worker, other = begun([7])[0], Worker(seed=5)
    weight = worker.units.parameters[0]
    weight.data = weight.data.contiguous()
    other.state.adopt([0], Staged.of(copied(worker.state.export_unit(0))))
    assert bits(other.units.parameters[0]) == bits(weight) and weight.is_contiguous()
    other.state.adopt([1], Staged(), initial=[1])
    other.state.settle()  # released, and held again
    other.state.adopt([0], Staged(), initial=[0])
    assert other.units.parameters[0].is_contiguous(memory_format=torch.channels_last)


def test_flags_of_the_whole_model_travel_with_the_common_part() -> None:
    worker, other = Worker().begin([0, 1]), Worker()
    worker.units.parameters[4].requires_grad_(False)
    worker.units.module(1).eval()
    worker.optimizer.optimizer.param_groups[0]["lr"] = 0.125
    other.state.adopt(other.state.active, Staged.of(copied(worker.state.export_common())))
    assert [p.requires_grad for p in other.units.parameters] == [
        p.requires_grad for p in worker.units.parameters
    ]
    assert not other.units.module(1).training and other.units.module(0).training
    assert other.optimizer.optimizer.param_groups[0]["lr"] == 0.125


def test_extras_of_the_runtime_may_differ_and_those_of_the_script_may_not() -> None:
    worker, other = Worker(), Worker()
    worker.state.extras["elastane.pipeline"] = worker.tracker
    other.state.adopt(other.state.active, Staged.of(copied(worker.state.export_common())))
    worker.state.extras["ema"] = worker.tracker
    with pytest.raises(StateError, match=r"extras differ: the state has \['ema'\] that the script lacks"):
        other.state.adopt(other.state.active, Staged.of(copied(worker.state.export_common())))


# ------------------------------------------------------------------ what a worker holds


def test_former_units_are_held_until_a_step_is_applied() -> None:
    workers = begun([3, 7])
    train(workers, range(2))
    donor, other = workers
    units = range(6, 7)
    donor.state.adopt(units, Staged.of(copied(other.state.export_unit(6))))
    assert donor.units.held == {0, 1, 2, 6} and donor.state.active == {6}
    # None of them is stepped any more, but all could be donated again, with their optimizer's state.
    stepped_now = [p for g in donor.optimizer.optimizer.param_groups for p in g["params"]]
    assert [id(p) for p in stepped_now] == [id(p) for p in donor.units.module(6).parameters()]
    assert decode(donor.state.export_unit(0))["units"][0]["optimizer"]["weight"]["exp_avg"].any()
    donor.state.adopt(range(3), Staged())
    assert donor.state.active == {0, 1, 2}
    donor.state.settle()
    assert donor.units.held == {0, 1, 2}
    assert len(donor.optimizer.optimizer.state) == 4  # weights and biases of a convolution and a norm
    with pytest.raises(ValueError, match=r"units \[6\] are not held"):
        donor.state.export_unit(6)


def test_a_unit_begins_anew_with_its_initial_optimizer_state() -> None:
    workers, fresh = begun([7], OPTIMIZERS["adagrad"]), begun([7], OPTIMIZERS["adagrad"])
    expected = (held_values(fresh[0]), stepped(fresh[0]))
    train(workers, range(2))
    worker = workers[0]
    assert held_values(worker) != expected[0]
    worker.state.adopt(range(COUNT), Staged(), initial=range(COUNT))
    for unit in (6,):  # `seen`, `last` and `calls` too
        assert worker.units.module(unit).seen == 0
    assert (held_values(worker), stepped(worker)) == expected


def test_units_that_nobody_gives_are_not_taken() -> None:
    worker = Worker().begin([0])
    with pytest.raises(StateError, match=r"units \[1\] are neither held here nor among what was received"):
        worker.state.adopt([0, 1], Staged())
    assert worker.units.held == {0} and worker.state.active == {0}


# ------------------------------------------------------------------ another model


class Counted(nn.BatchNorm2d):
    def get_extra_state(self) -> int:
        return 1

    def set_extra_state(self, state: object) -> None:
        pass


def changed(unit: int, build: Any) -> list[Any]:
    units: list[Any] = list(constructors())
    units[unit] = build
    return units


@pytest.mark.parametrize(
    ("unit", "build", "words"),
    [
        (1, lambda: nn.BatchNorm2d(4, affine=False), r"parameters differ.*'1.bias', '1.weight'"),
        (0, lambda: nn.Conv2d(3, 4, 5), r"parameter 0.weight is float32\[4, 3, 5, 5\] in the state and"),
        (0, lambda: nn.Conv2d(3, 4, 3, dtype=torch.float64), "parameter 0.weight is float64"),
        (1, lambda: nn.GroupNorm(2, 4), "buffers of unit 1 differ: the state has nothing"),
        (6, lambda: nn.Linear(4, 2), r"buffers of unit 6 differ.*'calls', 'last'"),
        (1, lambda: Counted(4), "module states of unit 1 differ"),
    ],
)
def test_a_unit_of_another_model_is_refused_by_name_and_changes_nothing(
    unit: int, build: Any, words: str
) -> None:
    other = Worker(given=changed(unit, build)).begin([unit])
    worker = Worker().begin([0, 1, 6])
    before = held_values(worker)
    with pytest.raises(StateError, match=words):
        worker.state.adopt([unit], Staged.of(copied(other.state.export_unit(unit))))
    assert held_values(worker) == before and worker.state.active == {0, 1, 6}


@pytest.mark.parametrize(
    ("given", "optimizer", "words"),
    [
        (
            changed(0, lambda: nn.Conv2d(3, 4, 5)),
            "adamw",
            r"parameter 0.weight, float32\[4, 3, 5, 5\], where",
        ),
        ([*constructors(), nn.Linear(2, 2)], "adamw", "has units 0, 1, 2, 3, 4, 5, 6, 7, the script has"),
        (None, "groups", r"parameter groups of \[3, 5\] parameters, the script built \[8\]"),
    ],
)
def test_a_common_part_of_another_model_is_refused_by_name(given: Any, optimizer: str, words: str) -> None:
    other, worker = Worker(OPTIMIZERS[optimizer], given=given), Worker()
    with pytest.raises(StateError, match=words):
        worker.state.adopt(worker.state.active, Staged.of(copied(other.state.export_common())))


def test_groups_with_other_members_are_refused() -> None:
    reverse = Worker(lambda p: torch.optim.AdamW(list(p)[::-1], lr=0.01))
    with pytest.raises(StateError, match=r"groups have 6.bias in the state where the script has 0.weight"):
        Worker().state.adopt((), Staged.of(copied(reverse.state.export_common())))


def test_what_is_no_state_of_units_is_refused() -> None:
    with pytest.raises(StateFormatError, match="not the state of units"):
        Staged.of(encode({"parameters": {}}))
    worker = Worker().begin([0])
    with pytest.raises(StateFormatError, match="not the state of a unit"):
        worker.state.check(Staged({0: {"name": "0"}}))
    with pytest.raises(StateError, match="unit 7 is 7 in the state"):
        tree = decode(worker.state.export_unit(0))["units"][0] | {"name": "7"}
        worker.state.check(Staged({7: tree}))
