"""`prepare_ps` without a master: against torch's own optimizers, which see the whole tensors."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.slots.errors import (
    NonFiniteGradientError,
    NotPushedError,
    PsModeError,
    PsOptimizerError,
    RowIdError,
)
from elastane.runtime.slots.row_optimizer import RowOptimizer
from elastane.runtime.stock import PlainJob
from elastane.tables.initial import initial_rows
from elastane.tables.spec import PsModelError
from elastane_slots.initial_rows import InitialRows

ROWS, TASKS = 50, 6


class Net(nn.Module):
    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 4, sparse=sparse, padding_idx=3)
        self.bag = nn.EmbeddingBag(ROWS, 4, mode="mean", sparse=sparse)
        # Not contiguous, and larger than a block.
        self.wide = nn.Parameter(torch.randn(700, 500).t())
        self.layer = nn.Linear(4, 700)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, ids: Tensor) -> Tensor:
        return (self.layer(self.table(ids).sum(1) + self.bag(ids)) @ self.wide.t()).square().mean()


def job() -> PlainJob:
    return PlainJob(WorkerEnvironment(mode="plain"), 7)


def batch(index: int) -> Tensor:
    return torch.randint(0, ROWS, (5, 6), generator=torch.Generator().manual_seed(index))


def dense_of(net: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in net.named_parameters() if name not in ("table.weight", "bag.weight")]


def start_as_remote(net: Net, seed: int) -> None:
    """Give a model of torch's own the rows that remote embeddings begin with."""
    with torch.no_grad():
        for name in ("table", "bag"):
            rows = initial_rows(InitialRows(name, "normal", 0.5, seed), torch.arange(ROWS).numpy(), 4)
            getattr(net, name).weight.copy_(torch.from_numpy(rows))
        net.table.weight[3] = 0


def trained(own: PlainJob, net: nn.Module, tasks: int = TASKS) -> list[float]:
    losses = []
    for task in own.tasks("data", size=tasks, task_size=1):
        with own.push(task) as push:
            loss = net(batch(task.index))
            loss.backward()
        assert push.applied and push.staleness == 0
        losses.append(loss.item())
    return losses


DENSE: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    lambda p: torch.optim.Adam(p, lr=0.01),
    lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
]


@pytest.mark.parametrize("dense", DENSE)
def test_has_the_bits_of_torch(dense: Callable[[Any], torch.optim.Optimizer]) -> None:
    own = job()
    remote = Net()
    # With sparse=True torch adds the gradients of a row that is used twice in an order of its own.
    stock = Net(sparse=False)
    stock.load_state_dict(remote.state_dict())
    start_as_remote(stock, 7)
    rows = [remote.table.weight, remote.bag.weight]
    own.prepare_ps(remote, [dense(dense_of(remote)), torch.optim.SGD(rows, lr=0.01)], initial=("normal", 0.5))
    dense_steps = dense(dense_of(stock))
    row_steps = torch.optim.SGD([stock.table.weight, stock.bag.weight], lr=0.01)
    losses = []
    for index in range(TASKS):
        dense_steps.zero_grad()
        row_steps.zero_grad()
        loss = stock(batch(index))
        loss.backward()
        dense_steps.step()
        row_steps.step()
        losses.append(loss.item())
    assert trained(own, remote) == losses
    with own.evaluate():
        every = torch.arange(ROWS)
        assert torch.equal(remote.table(every), stock.table.weight)
        assert torch.equal(remote.bag(every[:, None]), stock.bag.weight)
        for mine, other in zip(dense_of(remote), dense_of(stock), strict=True):
            assert torch.equal(mine, other)
    assert not list(remote.table.parameters()) and remote.wide.stride() == (1, 500)


def test_several_uses_and_backwards_add_up() -> None:
    own = job()
    net = Net()
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=1.0), initial=("zeros", 1.0))
    for task in own.tasks("data", size=1, task_size=1):
        with own.push(task):
            (net.table(torch.tensor([1, 2, 2])).sum() + net.table(torch.tensor([2])).sum()).backward()
            (net.table(torch.tensor([1, 3])).sum() * 10).backward()
    with own.evaluate():
        assert net.table(torch.arange(5))[:, 0].tolist() == [0, -11, -3, 0, 0]


def test_schedules_take_effect_at_the_next_push() -> None:
    own = job()
    net = nn.Linear(1, 1, bias=False)
    before = net.weight.item()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    own.prepare_ps(net, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for task in own.tasks("data", size=3, task_size=1):
        with own.push(task):
            net.weight.sum().backward()
        scheduler.step()
    with own.evaluate():
        assert net.weight.item() == pytest.approx(before - 1.75)


@pytest.mark.filterwarnings("error")
def test_a_schedule_that_was_made_before_prepare_ps_warns_of_nothing() -> None:
    own = job()
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    own.prepare_ps(net, optimizer)
    for task in own.tasks("data", size=1, task_size=1):
        with own.push(task):
            net.weight.sum().backward()
        scheduler.step()


def test_a_table_may_be_larger_than_memory() -> None:
    own = job()
    net = nn.EmbeddingBag(10**12, 8, sparse=True, device="meta")
    own.prepare_ps(net, RowOptimizer(net.parameters(), lr=0.1), initial=("uniform", 0.1))
    for task in own.tasks("data", size=2, task_size=1):
        with own.push(task):
            net(torch.tensor([[10**12 - 1, task.index]])).sum().backward()


def test_rows_said_in_advance_change_nothing() -> None:
    def digest(**options: Any) -> list[float]:
        own = job()
        net = Net()
        own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=1e-4), **options)
        return trained(own, net)

    assert digest() == digest(rows=lambda indices: {"table": batch(indices.start), "bag": [1, 49]})


def test_a_bag_may_be_empty() -> None:
    own = job()
    net = nn.EmbeddingBag(ROWS, 4, mode="sum", sparse=True)
    own.prepare_ps(net, RowOptimizer(net.parameters(), "lazy_adam"))
    for task in own.tasks("data", size=1, task_size=1):
        with own.push(task) as push:
            net(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0])).sum().backward()
        assert push.applied


def test_rows_that_are_no_dict_are_refused() -> None:
    own = job()
    net = nn.Embedding(9, 2, sparse=True)
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1), rows=lambda indices: [1])  # type: ignore[arg-type, return-value]
    tasks = own.tasks("data", size=1, task_size=1)
    with pytest.raises(PsModeError, match="rows returned a list"), own.push(next(tasks)):
        pass


def test_a_skipped_task_changes_nothing() -> None:
    own = job()
    net = nn.Linear(2, 2)
    before = net.weight.clone()
    own.prepare_ps(net, torch.optim.Adam(net.parameters()))
    for task in own.tasks("data", size=2, task_size=1):
        own.skip(task)
    with own.evaluate():
        assert torch.equal(net.weight, before)


@pytest.mark.parametrize(("row", "position"), [(ROWS, 2), (-1, 0), (2**63 - 1, 1)])
def test_an_id_out_of_range_is_refused_with_its_place(row: int, position: int) -> None:
    own = job()
    net = Net()
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    ids = torch.zeros(3, dtype=torch.int64)
    ids[position] = row
    with pytest.raises(RowIdError, match=f"'table' has no row {row} ") as raised:
        for task in own.tasks("data", size=1, task_size=1):
            with own.push(task):
                net.table(ids)
    assert raised.value.facts == {"table": "table", "row": row, "position": position}
    with pytest.raises(RowIdError, match="float32"), own.evaluate():
        net.table(torch.zeros(3))


@pytest.mark.parametrize("name", ["wide", "table"])
def test_a_gradient_that_is_not_finite_changes_nothing(name: str) -> None:
    own = job()
    net = Net()
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    with own.evaluate():
        before = [net(batch(0)).item(), *map(float, net.wide[0])]
    with pytest.raises(NonFiniteGradientError, match=f"'{name}'"):
        for task in own.tasks("data", size=1, task_size=1):
            with own.push(task):
                used = net.wide if name == "wide" else net.table(torch.tensor([1]))
                (net.layer.weight.sum() + (used * torch.nan).sum()).backward()
    with own.evaluate():
        assert [net(batch(0)).item(), *map(float, net.wide[0])] == before


def test_a_task_must_be_pushed_once() -> None:
    own = job()
    net = Net()
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(NotPushedError, match="neither pushed nor skipped"):
        for _ in own.tasks("data", size=2, task_size=1):
            pass
    tasks = own.tasks("data", size=2, task_size=1)
    first = next(tasks)
    own.skip(first)
    with pytest.raises(NotPushedError, match="already"):
        own.skip(first)
    second = next(tasks)
    with pytest.raises(NotPushedError, match="not in hand"):
        own.push(first)
    with own.push(second):
        with pytest.raises(NotPushedError, match="block of a task"), own.evaluate():
            pass
        net.table(torch.tensor([1])).sum().backward()
    with pytest.raises(NotPushedError, match="outside of a task"):
        net.table(torch.tensor([1]))


def test_an_error_in_a_block_leaves_the_task_in_hand() -> None:
    own = job()
    net = nn.Linear(1, 1)
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    tasks = own.tasks("data", size=1, task_size=1)
    task = next(tasks)
    with pytest.raises(ValueError, match="mine"), own.push(task):
        raise ValueError("mine")
    with own.push(task) as push:
        net.weight.sum().backward()
    assert push.applied and list(tasks) == []


def test_calls_before_prepare_ps_and_beside_it_are_refused() -> None:
    own = job()
    for call in (lambda: own.push(None), lambda: own.skip(None), own.evaluate):
        with pytest.raises(NotPushedError, match=r"before job\.prepare_ps"):
            call()
    net = nn.Linear(1, 1)
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(PsModeError, match="beside prepare_ps"):
        own.prepare(net)


def test_a_data_set_is_gone_through_once_as_in_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    own = job()
    net = nn.Linear(1, 1)
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for task in own.tasks("data", size=3, task_size=2, epochs=2):
        own.skip(task)
        if (task.epoch, task.index) == (0, 1):
            break
    for _ in own.tasks("data", size=3, task_size=2, epochs=2):
        break  # without a push: the same task comes again
    rest = []
    for task in own.tasks("data", size=3, task_size=2, epochs=2):
        rest.append((task.epoch, task.index, task.indices))
        own.skip(task)
    assert rest == [(1, 0, range(2)), (1, 1, range(2, 3))]
    assert "all tasks" not in _said(capsys)
    assert list(own.tasks("data", size=3, task_size=2, epochs=2)) == []
    assert "all tasks of 'data' are done" in _said(capsys)
    assert len(list(job().tasks("data", size=3, task_size=2))) == 2


def test_a_block_without_a_gradient_is_no_push() -> None:
    own = job()
    net = nn.Linear(1, 1)
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    tasks = own.tasks("data", size=1, task_size=1)
    task = next(tasks)
    with pytest.raises(NotPushedError, match="task 0 has computed no gradient"), own.push(task):
        loss = net.weight.sum()
    with pytest.raises(NotPushedError, match="neither pushed nor skipped"):
        next(tasks)
    tasks = own.tasks("data", size=1, task_size=1)
    with own.push(next(tasks)) as push:
        loss = net.weight.sum()
        loss.backward()
    assert push.applied and list(tasks) == []


def test_what_parameter_servers_would_not_hear_of_is_refused() -> None:
    own = job()
    net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    net[1].requires_grad_(False)
    optimizer = torch.optim.SGD(net[0].parameters(), lr=0.1)
    weights, state, copied = net.state_dict(), optimizer.state_dict(), copy.deepcopy(net)
    own.prepare_ps(net, optimizer)
    before = {name: value.clone() for name, value in weights.items()}
    for part, name in ((net, ""), (net[0], "0."), (net[1], "1.")):
        with pytest.raises(PsModelError, match="load_state_dict"):
            part.load_state_dict({key: value + 1 for key, value in part.state_dict().items()})
        assert all(torch.equal(value, before[name + key]) for key, value in part.state_dict().items())
    for other in (copied, copy.deepcopy(net)):
        other.load_state_dict(weights)  # an average of the model, say
    with pytest.raises(PsOptimizerError, match="load_state_dict"):
        optimizer.load_state_dict(state)
    with pytest.raises(PsOptimizerError, match="add_param_group"):
        optimizer.add_param_group({"params": list(net[1].parameters())})
    tasks = own.tasks("data", size=1, task_size=1)
    task = next(tasks)
    net[1].requires_grad_(True)
    with pytest.raises(PsOptimizerError, match=r"'1\.weight' requires a gradient since"), own.push(task):
        net(torch.ones(1, 1)).sum().backward()
    net[1].requires_grad_(False)
    with own.push(task) as push:
        net(torch.ones(1, 1)).sum().backward()
    assert push.applied


def _another_layer(net: nn.Sequential) -> None:
    net[1] = nn.Conv2d(2, 2, 2)


def _another_parameter(net: nn.Sequential) -> None:
    net[1].weight = nn.Parameter(torch.zeros(2, 2, 2, 2), requires_grad=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_another_layer, r"'1\.weight' is another parameter since prepare_ps"),
        (_another_parameter, r"'1\.weight' is another parameter since prepare_ps"),
        (
            lambda net: net.to(memory_format=torch.channels_last),
            r"'1\.weight' has another shape, memory format",
        ),
        (nn.Module.double, r"'0\.weight' has another shape, memory format or dtype"),
    ],
)
def test_a_model_that_is_another_since_prepare_ps_is_refused(
    change: Callable[[nn.Sequential], object], said: str
) -> None:
    own = job()
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 2))
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    tasks = own.tasks("data", size=2, task_size=1)
    with own.push(next(tasks)):
        net(torch.ones(1, 1, 2, 2)).sum().backward()
    change(net)
    task = next(tasks)
    with pytest.raises(PsModelError, match=said), own.evaluate():
        pass
    with pytest.raises(PsModelError, match=said), own.push(task):
        pass


def _by_data(net: nn.Linear) -> None:
    net.weight.data.mul_(0.5)


def _in_place(net: nn.Linear) -> None:
    nn.init.zeros_(net.weight)


def _one_value(net: nn.Linear) -> None:
    net.weight.data[0, 1] = torch.nextafter(net.weight.data[0, 1], torch.tensor(9.0))


@pytest.mark.parametrize("write", [_by_data, _in_place, _one_value])
def test_weights_that_the_script_writes_are_refused(write: Callable[[nn.Linear], None]) -> None:
    own = job()
    net = nn.Linear(2, 1)
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    said = "the script has changed 'weight' since it was pulled"
    tasks = own.tasks("data", size=5, task_size=1)
    with own.push(next(tasks)) as push:
        net(torch.ones(1, 2)).sum().backward()
        before = net.weight.detach().clone()
    write(net)
    with pytest.raises(PsModelError, match=said), own.evaluate():
        pass
    task = next(tasks)
    with pytest.raises(PsModelError, match=said), own.push(task):
        pass
    net.weight.data.copy_(before)  # what is undone is no change
    with pytest.raises(PsModelError, match=said), own.push(task):
        net(torch.ones(1, 2)).sum().backward()
        write(net)
    assert push.applied and not own._ps.ended  # type: ignore[union-attr]
    net.weight.data.copy_(before)
    with pytest.raises(PsModelError, match=said), own.push(task):
        write(net)
        net(torch.ones(1, 2)).sum().backward()


def test_weights_that_are_written_in_an_evaluation_are_thrown_away() -> None:
    own = job()
    net = nn.Linear(1, 1)
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for task in own.tasks("data", size=3, task_size=1):
        with own.evaluate():
            net.weight.data.zero_()  # an average of the weights, say
        with own.push(task):
            assert net.weight.item() != 0
            net(torch.ones(1, 1)).sum().backward()


def test_gradients_from_outside_of_a_block_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    own = job()
    net = nn.Linear(1, 1)
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for task in own.tasks("data", size=3, task_size=1):
        with contextlib.suppress(ValueError), own.push(task):
            net.weight.sum().backward()
            raise ValueError
        with own.push(task):
            net.weight.sum().backward()
        if task.index == 0:
            assert "outside" not in _said(capsys)
        net.weight.sum().backward()
    assert _said(capsys).count("outside of a task's block") == 1


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_what_needs_the_weight_of_a_remote_embedding_says_where_it_is(
    kind: type[nn.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    own = job()
    net = nn.ModuleDict({"part": kind(9, 2, sparse=True), "layer": nn.Linear(2, 1)})
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    own.prepare_ps(net, sgd)
    with pytest.raises(AttributeError, match="weight of 'part' is at parameter servers"):
        _ = net["part"].weight
    for copied in (lambda: copy.deepcopy(net), lambda: torch.save(net, io.BytesIO())):
        with pytest.raises(PsModelError, match="'part' cannot be copied"):
            copied()
    for _ in range(2):
        assert sorted(net.state_dict()) == ["layer.bias", "layer.weight"]
    assert _said(capsys).count("lacks the rows of 'part'") == 1


def _said(capsys: pytest.CaptureFixture[str]) -> str:
    return "".join(capsys.readouterr())
