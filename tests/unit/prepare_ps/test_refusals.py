"""What `prepare_ps` refuses, with the name of the module."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import elastane
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.slots.errors import PsOptimizerError
from elastane.runtime.slots.model import PsArguments, model_parts
from elastane.runtime.slots.row_optimizer import RowOptimizer
from elastane.runtime.stock import PlainJob
from elastane.tables.spec import PsModelError
from elastane_common.errors import EXIT_REFUSED


class Own(nn.Embedding):
    pass


def of(module: nn.Module) -> nn.Module:
    return nn.ModuleDict({"part": module})


def tied() -> nn.Module:
    net = nn.ModuleDict({"part": nn.Embedding(9, 4, sparse=True), "out": nn.Linear(4, 9, bias=False)})
    net["out"].weight = net["part"].weight
    return net


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: of(nn.Embedding(9, 2, sparse=True, max_norm=1.0)), "'part' has max_norm=1.0"),
        (lambda: of(nn.EmbeddingBag(9, 2, sparse=True, scale_grad_by_freq=True)), "scale_grad_by_freq"),
        (lambda: of(Own(9, 2, sparse=True)), "'part' is a Own"),
        (lambda: of(nn.Embedding(9, 2, sparse=True).requires_grad_(False)), "'part' is frozen"),
        (lambda: of(nn.Embedding(9, 2, sparse=True).half()), "rows of 'part' are float16"),
        (lambda: of(nn.Linear(2, 2, dtype=torch.complex64)), "'part.weight' is complex64"),
        (lambda: of(nn.LazyLinear(2)), "has no shape yet"),
        (tied, "'out.weight' is the weight of 'part'"),
    ],
)
def test_modules(build: Callable[[], nn.Module], said: str) -> None:
    net = build()
    before = list(net.named_parameters())
    sgd = torch.optim.SGD([*net.parameters(), nn.Parameter(torch.ones(1))][:-1] or [torch.ones(1)], lr=0.1)
    with pytest.raises(PsModelError, match=re.escape(said)) as raised:
        model_parts(PsArguments(net, sgd))
    assert raised.value.exit_code == EXIT_REFUSED
    assert list(map(id, dict(before).values())) == list(map(id, net.parameters()))


def net_with_rows() -> nn.Module:
    return nn.ModuleDict({"dense": nn.Linear(2, 2), "part": nn.Embedding(9, 2, sparse=True)})


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda net: torch.optim.LBFGS(net["dense"].parameters()), "LBFGS cannot update 'dense.weight'"),
        (lambda net: torch.optim.Adam(net["dense"].parameters(), amsgrad=True), "amsgrad"),
        (lambda net: torch.optim.Adam(net["dense"].parameters(), fused=True), "fused"),
        (lambda net: torch.optim.Adam(net.parameters()), "Adam cannot update the rows of 'part'"),
        (lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), "momentum=0.9"),
        (lambda net: torch.optim.SGD(net["part"].parameters(), lr=0.1), "'dense.weight' requires a gradient"),
        (lambda net: torch.optim.SGD(net["dense"].parameters(), lr=0.1), "'part.weight' requires a gradient"),
        (lambda net: torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), "the model has not"),
        (lambda net: [torch.optim.SGD(net.parameters(), lr=0.1)] * 2, "is in two optimizers"),
        (lambda net: [], "one optimizer, or a list"),
        (lambda net: [net], "one optimizer, or a list"),
    ],
)
def test_optimizers(build: Callable[[Any], Any], said: str) -> None:
    net = net_with_rows()
    with pytest.raises(PsOptimizerError, match=re.escape(said)):
        model_parts(PsArguments(net, build(net)))


@pytest.mark.parametrize(
    ("rule", "numbers"),
    [("adam", {}), ("sgd", {"lr": -1.0}), ("lazy_adam", {"betas": (0.9, 1.0)}), ("sgd", {"lr": torch.nan})],
)
def test_row_optimizers(rule: str, numbers: dict[str, Any]) -> None:
    with pytest.raises(PsOptimizerError):
        RowOptimizer([nn.Parameter(torch.ones(1))], rule, **numbers)


@pytest.mark.parametrize(
    "initial", [{"other": ("zeros", 1.0)}, ("normal",), ("poisson", 1.0), ("normal", -1.0), "zeros"]
)
def test_initial_values(initial: Any) -> None:
    net = net_with_rows()
    with pytest.raises(PsModelError):
        model_parts(PsArguments(net, torch.optim.SGD(net.parameters(), lr=0.1), initial=initial))


def test_groups_of_dense_tensors_and_rows_are_divided() -> None:
    net = net_with_rows()
    parts = model_parts(PsArguments(net, torch.optim.SGD(net.parameters(), lr=0.1)))
    assert parts.groups.rules == ["sgd", "row_sgd"]
    assert parts.groups.rates() == [[0.1, 0, 0, 0, 0, 0], [0.1]]
    assert [table.name for table in parts.spec.tables] == ["part"]
    assert [tensor.name for tensor in parts.spec.tensors] == ["dense.weight", "dense.bias"]


def test_the_optimizer_does_not_step_any_more() -> None:
    net = net_with_rows()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts = model_parts(PsArguments(net, optimizer))
    parts.groups.release({id(net["part"].weight): "part"})
    with pytest.raises(PsOptimizerError, match=r"SGD\.step\(\) was called"):
        optimizer.step()
    assert all(p is not net["part"].weight for p in optimizer.param_groups[0]["params"])


def test_the_row_optimizer_is_public() -> None:
    assert elastane.RowOptimizer is RowOptimizer


def test_torch_clips_no_gradients_of_a_model_with_remote_rows() -> None:
    net = net_with_rows()
    own = PlainJob(WorkerEnvironment(mode="plain"), 7)
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=0.1))
    names = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")
    for clip in [getattr(torch.nn.utils, name) for name in names if hasattr(torch.nn.utils, name)]:
        with pytest.raises(PsOptimizerError, match="dense gradients alone"):
            clip(net.parameters(), 1.0)
    other = nn.Linear(1, 1)
    other.weight.sum().backward()
    assert torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5) == 1
    assert other.weight.grad.item() == pytest.approx(0.5)


def test_torch_clips_a_model_that_is_dense() -> None:
    net = nn.Linear(1, 1, bias=False)
    before = net.weight.item()
    own = PlainJob(WorkerEnvironment(mode="plain"), 7)
    own.prepare_ps(net, torch.optim.SGD(net.parameters(), lr=1.0))
    for task in own.tasks("data", size=1, task_size=1):
        with own.push(task):
            net.weight.sum().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    with own.evaluate():
        assert net.weight.item() == pytest.approx(before - 0.5, abs=1e-5)


@pytest.mark.parametrize(
    ("build", "steps", "refused"),
    [
        (lambda p: torch.optim.Adam(p), 1, True),
        (lambda p: torch.optim.SGD(p, momentum=0.9), 1, True),
        (lambda p: torch.optim.SGD(p), 1, False),
        (lambda p: torch.optim.Adagrad(p), 1, True),
        (lambda p: torch.optim.Adagrad(p), 0, False),
    ],
)
def test_moments_of_earlier_steps(
    build: Callable[[Any], torch.optim.Optimizer], steps: int, refused: bool
) -> None:
    net = nn.Linear(2, 1)
    optimizer = build(net.parameters())
    for _ in range(steps):
        net(torch.ones(2)).sum().backward()
        optimizer.step()
    if not refused:
        model_parts(PsArguments(net, optimizer))
        return
    with pytest.raises(PsOptimizerError, match="has state from earlier steps"):
        model_parts(PsArguments(net, optimizer))
