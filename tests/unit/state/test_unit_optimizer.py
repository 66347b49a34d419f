"""An optimizer of which a worker holds some units: whole groups, filtered lists, and which are refused."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from elastane.pipeline.units import Units
from elastane.state.unit_optimizer import NamedParameters, UndividedOptimizerError, UnitOptimizer
from elastane.state.unit_optimizer_check import _try
from elastane_common.errors import EXIT_REFUSED


def units() -> Units:
    return Units.build([lambda: nn.Linear(3, 4), nn.ReLU, lambda: nn.Linear(4, 2)])


class Norming(Optimizer):
    """Divides each gradient by the norm of all of them."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        grads = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([grad.norm() for grad in grads]).norm()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"] * parameter.grad / norm


class Noisy(Norming):
    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"] * (parameter.grad + torch.randn_like(parameter))


class PerParameter(Norming):
    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    entry = self.state[parameter]
                    entry["sum"] = entry.get("sum", 0) + parameter.grad
                    parameter -= group["lr"] * entry["sum"] / parameter.grad.norm()


class NeedsClosure(Norming):
    def step(self, closure: Any = None) -> None:
        closure()


class Stateful(PerParameter):
    def state_dict(self) -> Any:
        return super().state_dict() | {"more": 1}


class Prodigy(PerParameter):
    pass


@pytest.mark.parametrize(
    ("constructor", "words"),
    [
        (torch.optim.LBFGS, "LBFGS mixes parameters"),
        (Norming, "Norming mixes parameters.*with the others present"),
        (Noisy, "Noisy mixes parameters"),
        (Prodigy, "Prodigy mixes parameters"),
        (NeedsClosure, "NeedsClosure cannot be tried"),
        (Stateful, "Stateful has a state_dict of its own"),
        (lambda p: _with_option(PerParameter(p), max_grad_norm=1.0), "max_grad_norm is a norm over all"),
        (lambda p: None, "returned an object of type NoneType"),
        (torch.optim.SGD([nn.Parameter(torch.zeros(1))]), "was given as a SGD"),
        (
            lambda p: torch.optim.SGD([nn.Parameter(torch.zeros(2, 5))]),
            r"belong to no unit, the first of shape \[2, 5\]",
        ),
    ],
)
def test_optimizers_that_cannot_be_divided_are_refused_by_name(constructor: Any, words: str) -> None:
    with pytest.raises(UndividedOptimizerError, match=words) as refused:
        UnitOptimizer.build(units(), constructor)
    assert refused.value.exit_code == EXIT_REFUSED and refused.value.hint


def _with_option(optimizer: Optimizer, **options: Any) -> Optimizer:
    for group in optimizer.param_groups:
        group.update(options)
    return optimizer


def test_others_are_tried_without_a_trace() -> None:
    before = torch.get_rng_state()
    built = units()
    after = torch.get_rng_state()
    optimizer = UnitOptimizer.build(built, PerParameter).optimizer
    assert torch.equal(torch.get_rng_state(), after) and not torch.equal(before, after)
    assert not optimizer.state


def test_torchs_own_treat_each_parameter_for_itself() -> None:
    """Those that are let through by their module alone."""
    kinds = [
        kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind)
        and issubclass(kind, Optimizer)
        and kind not in (Optimizer, torch.optim.LBFGS)
    ]
    assert len(kinds) > 10
    for kind in kinds:
        shape = (3, 3) if kind.__name__ == "Muon" else (3,)
        if kind is torch.optim.SparseAdam:  # for sparse gradients, which a job refuses
            continue
        if kind is torch.optim.Adagrad:  # builds its state at once, which the trial has not
            continue
        _try(kind([nn.Parameter(torch.ones(shape))]))


def test_groups_are_those_of_the_whole_model_and_lists_those_of_held_units() -> None:
    built = units()
    optimizer = UnitOptimizer.build(
        built,
        lambda p: torch.optim.SGD(
            [
                {"params": [v for n, v in p.named() if n.endswith("weight")], "lr": 0.5},
                {"params": [v for v in p if v.ndim == 1], "weight_decay": 0.1},
            ],
            momentum=0.9,
        ),
    )
    groups = optimizer.optimizer.param_groups
    assert [group["params"] for group in groups] == [[], []]
    lists = [id(group["params"]) for group in groups]
    optimizer.hold([2], [0, 2])
    assert [len(group["params"]) for group in groups] == [1, 1]
    assert groups[0]["params"][0] is built.module(2).weight and [id(g["params"]) for g in groups] == lists
    optimizer.optimizer.step()  # no gradients: nothing happens
    exported = optimizer.export_groups()
    assert exported["parameters"] == ["0.weight", "2.weight", "0.bias", "2.bias"]
    assert [group["params"] for group in exported["param_groups"]] == [[0, 1], [2, 3]]
    assert [(group["lr"], group["weight_decay"]) for group in exported["param_groups"]] == [
        (0.5, 0),
        (0.001, 0.1),
    ]


@pytest.mark.parametrize("named", [False, True])
def test_empty_groups_are_stepped_without_harm(named: bool) -> None:
    for kind in (
        torch.optim.AdamW,
        torch.optim.SGD,
        torch.optim.Adagrad,
        torch.optim.RMSprop,
        torch.optim.NAdam,
    ):
        optimizer = UnitOptimizer.build(units(), lambda p, kind=kind: kind(p.named() if named else p))
        optimizer.optimizer.step()
        optimizer.optimizer.zero_grad()


def test_the_constructor_gets_a_list_with_names() -> None:
    built, seen = units(), []

    def constructor(parameters: NamedParameters) -> Optimizer:
        seen.append(parameters)
        return torch.optim.SGD(parameters)

    UnitOptimizer.build(built, constructor)
    (parameters,) = seen
    assert isinstance(parameters, list) and list(parameters) == built.parameters
    assert [name for name, _ in parameters.named()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [p.shape for p in parameters] == [(4, 3), (4,), (2, 4), (2,)]


def test_state_that_the_constructor_builds_is_not_kept_whole() -> None:
    built = units()
    optimizer = UnitOptimizer.build(built, lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.5))
    assert not optimizer.optimizer.state
    built.hold([0])
    optimizer.hold([0], [0])
    optimizer.initialise(0)
    entry = optimizer.optimizer.state[built.module(0).weight]
    assert entry["sum"].tolist() == [[0.5] * 3] * 4 and entry["sum"].stride() == (3, 1)
    assert entry["step"].item() == 0.0 and len(optimizer.optimizer.state) == 2
