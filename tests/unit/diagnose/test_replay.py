"""The same step twice: state put back in place, differences in words, variables that a loop carries."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from elastane.diagnose.replay import StateKeeper, StepRun, StepWatch, differences, digest, loop_variables
from elastane.rng import Generators
from elastane.state.train_state import TrainState

total = 0


def seen(found: list[list[str]]) -> Iterator[int]:
    for number in range(2):
        found.append(loop_variables())
        yield number


def test_variables_that_a_loop_carries_are_those_read_before_they_are_written() -> None:
    global total
    found: list[list[str]] = []
    mean, count, constant = 0.0, 0, 2.0
    for index, number in enumerate(seen(found)):
        loss = number * constant
        squares = [square * square for square in range(3)]
        mean = 0.9 * mean + 0.1 * loss + index
        count += len(squares)
        total += 1
    assert (count, mean > 0) == (6, True)
    assert sorted(found[0]) == ["count", "mean", "total"]


def test_a_loop_around_a_wrapper_of_the_loader() -> None:
    found: list[list[str]] = []

    def prefetching(loader: Iterator[int]) -> Iterator[int]:
        yield from loader

    step = 0
    for _ in prefetching(seen(found)):
        step += 1
    assert step == 2
    assert found[0] == ["step"]


def test_outside_of_a_loop_nothing_is_carried() -> None:
    found: list[list[str]] = []
    next(seen(found))
    assert found == [[]]


def run_of(model: nn.Module, optimizer: torch.optim.Optimizer, watch: StepWatch) -> StepRun:
    watch.begin()
    points = torch.rand(3, 4)
    watch.begin_batch(points)
    loss = model(points).square().mean()
    watch.log({"loss": loss})
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return watch.end()


def test_a_step_is_the_same_again_after_its_state_is_put_back() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    generators = Generators()
    watch = StepWatch(model, [optimizer], generators)
    keeper = StateKeeper(TrainState(model, [optimizer], [scheduler]))
    for step in range(3):
        keeper.keep()
        random = generators.capture()
        first = run_of(model, optimizer, watch)
        after = digest(model.state_dict().values())
        for _ in range(2):
            keeper.restore()
            generators.restore(random)
            second = run_of(model, optimizer, watch)
            assert differences(first, second) == [], step
            assert digest(model.state_dict().values()) == after
        scheduler.step()
    assert (first.backwards, first.optimizer_steps, first.logged_late) == (1, 1, ())
    assert next(iter(first.gradients)).startswith("3.")  # in the order of backward
    keeper.restore()
    assert differences(first, run_of(model, optimizer, watch))[:2] == ["the mini-batch", "the logged loss"]


def test_gradients_that_a_step_began_with_are_put_back() -> None:
    model = nn.Linear(4, 1)
    keeper = StateKeeper(TrainState(model, [torch.optim.SGD(model.parameters(), lr=0.1)]))
    model(torch.ones(1, 4)).sum().backward()
    model.bias.grad = None
    keeper.keep()
    for _ in range(2):  # what a restored step adds to a gradient is not kept either
        model(torch.ones(1, 4)).sum().backward()
        keeper.restore()
        assert torch.equal(model.weight.grad, torch.ones(1, 4))
        assert model.bias.grad is None


def test_what_comes_late_in_a_step_is_seen() -> None:
    model = nn.Linear(4, 1)
    watch = StepWatch(model, [torch.optim.SGD(model.parameters(), lr=0.1)], Generators())
    watch.begin()
    for _ in range(2):
        watch.begin_batch(None)
        watch.log({"before": 1.0})
        model(torch.rand(3, 4)).sum().backward()
    run = watch.end()
    assert (run.backwards, run.logged_late, run.random) == (2, (), run.random_at_backward)
    torch.rand(1)
    watch.log({"after": 1.0})
    run = watch.end()
    assert run.logged_late == ("after",)
    assert run.random != run.random_at_backward


def test_differences_name_the_first_gradient_in_backward_order() -> None:
    first = StepRun(gradients={"b": "1", "a": "1", "c": "1"}, random={"rng/numpy": b"1"})
    second = StepRun(gradients={"b": "1", "a": "2", "c": "2"}, random={"rng/numpy": b"2"})
    assert differences(first, first) == []
    assert differences(first, second) == [
        "2 of 3 gradients, first that of a",
        "the numbers drawn from numpy",
    ]
    turned = StepRun(gradients={"a": "1", "b": "1", "c": "1"}, random=first.random)
    assert differences(first, turned) == ["the order in which gradients were made"]


def test_digests_of_sparse_and_half_precision_tensors() -> None:
    places, values = torch.tensor([[1, 1]]), torch.tensor([1.0, 2.0])
    sparse = torch.sparse_coo_tensor(places, values, (3,), check_invariants=True)
    assert digest([sparse]) == digest([sparse.coalesce()])
    assert digest([sparse]) != digest([sparse * 2])
    assert digest([torch.ones(2, dtype=torch.bfloat16)]) != digest([torch.zeros(2, dtype=torch.bfloat16)])
    assert digest([torch.ones(())]) == digest([torch.ones(1)])
