"""The script's optimizers as groups of rules and rates.

A group of an optimizer with tensors and tables makes two groups of the model: each has one rule. Rates are
read at every push, so schedules and changes of `param_groups` take effect.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam

from elastane.runtime.prepared_objects import replace_method
from elastane.runtime.slots.errors import PsOptimizerError
from elastane.runtime.slots.row_optimizer import RULES, RowOptimizer
from elastane.tables.rates import NAMES, packed

_DENSE: Final[Mapping[type[Optimizer], str]] = {SGD: "sgd", Adagrad: "adagrad", Adam: "adam", AdamW: "adamw"}
#: Settings of a group that parameter servers do not have, where they are set.
_REFUSED: Final = ("amsgrad", "fused", "differentiable", "capturable")
_DENSE_HINT: Final = "SGD, Adagrad, Adam and AdamW of torch.optim can"
_ROW_HINT: Final = 'put the embeddings in an elastane.RowOptimizer(params, "rowwise_adagrad", lr=...)'


@dataclass(frozen=True)
class ModelGroup:
    """rule: as parameter servers name it. group: of the script's optimizer, read at every push."""

    rule: str
    group: dict[str, Any]

    def rates(self) -> list[float]:
        """The group's numbers now. Raises PsOptimizerError for those that have no such value."""
        values = {name: self.group[name] for name in NAMES[self.rule] if name in self.group}
        if "betas" in self.group and "beta1" in NAMES[self.rule]:
            values["beta1"], values["beta2"] = self.group["betas"]
        try:
            return packed(self.rule, **{name: float(value) for name, value in values.items()})
        except (TypeError, ValueError) as error:
            raise PsOptimizerError(f"a setting of {self.rule} is no number: {error}") from error


class OptimizerGroups:
    """groups: of the model, in order. of: number of a parameter's group, by id."""

    def __init__(self, optimizers: Sequence[Optimizer], tables: Mapping[int, str], names: Mapping[int, str]):
        """tables: names of the embeddings whose rows are pulled, by id of their weight. names: of all
        parameters of the model, by id. Raises PsOptimizerError."""
        self.groups: list[ModelGroup] = []
        self.of: dict[int, int] = {}
        self.optimizers = list(optimizers)
        for optimizer in optimizers:
            _refuse_state(optimizer)
            for number, group in enumerate(optimizer.param_groups):
                dense = [p for p in group["params"] if id(p) not in tables]
                rows = [p for p in group["params"] if id(p) in tables]
                for parameter in group["params"]:
                    if id(parameter) not in names:
                        raise PsOptimizerError(
                            f"group {number} of {_name(optimizer)} has a parameter that the model has not",
                            hint="give the optimizer model.parameters()",
                        )
                    if id(parameter) in self.of:
                        raise PsOptimizerError(f"{names[id(parameter)]!r} is in two optimizers")
                if dense:
                    self._add(_dense_rule(optimizer, group, names[id(dense[0])]), group, dense)
                if rows:
                    self._add(_row_rule(optimizer, group, tables[id(rows[0])]), group, rows)

    @property
    def have_schedulers(self) -> bool:
        """True if torch's schedulers set rates."""
        return any("initial_lr" in group for one in self.optimizers for group in one.param_groups)

    @property
    def rules(self) -> list[str]:
        return [group.rule for group in self.groups]

    def rates(self) -> list[list[float]]:
        """Rates of all groups now."""
        return [group.rates() for group in self.groups]

    def release(self, tables: Mapping[int, str]) -> None:
        """Take the tables' weights out of the optimizers, which would keep their memory; and let `step`
        refuse: gradients are applied by a push alone. So do calls that no parameter server would hear of."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if id(p) not in tables]
            replace_method(optimizer, "add_param_group", _refuse_group)
            replace_method(optimizer, "load_state_dict", _refuse_loading)
            optimizer.step = types.MethodType(_refuse_step, optimizer)  # type: ignore[method-assign]
            # torch's schedulers warn where `step` was not called before theirs.
            optimizer._opt_called = True  # type: ignore[attr-defined]

    def _add(self, rule: str, group: dict[str, Any], parameters: Sequence[Tensor]) -> None:
        self.of.update((id(parameter), len(self.groups)) for parameter in parameters)
        self.groups.append(ModelGroup(rule, group))


def _refuse_step(self: Optimizer, *args: Any, **kwargs: Any) -> NoReturn:
    raise PsOptimizerError(
        f"{_name(self)}.step() was called in a script with prepare_ps",
        hint="leave it out: gradients are applied where `with job.push(task):` ends. A GradScaler steps the"
        " optimizer, too, and cannot be used",
    )


# torch's schedulers warn where `step` is no longer the one that they wrapped.
_refuse_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _refuse_group(original: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
    raise PsOptimizerError(
        "add_param_group() was called after prepare_ps: parameter servers have the groups of that moment",
        hint="create all groups before prepare_ps; for layers that are trained later use lr=0",
    )


def _refuse_loading(original: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
    raise PsOptimizerError(
        "load_state_dict() of an optimizer was called after prepare_ps: its moments are at parameter servers",
        hint="`elastane ps rewind` takes weights and moments back to a checkpoint; set rates in param_groups",
    )


def _refuse_state(optimizer: Optimizer) -> None:
    """Refuse moments that steps or a loaded state have left: parameter servers begin without any."""
    for state in optimizer.state.values():
        if float(state.get("step", 0)) > 0 or state.get("momentum_buffer") is not None:
            raise PsOptimizerError(
                f"{_name(optimizer)} has state from earlier steps, which parameter servers would not have",
                hint="give prepare_ps an optimizer that has not stepped, nor loaded a state: its moments"
                " begin anew",
            )


def _dense_rule(optimizer: Optimizer, group: Mapping[str, Any], name: str) -> str:
    rule = _DENSE.get(type(optimizer))
    if rule is None:
        raise PsOptimizerError(
            f"{_name(optimizer)} cannot update {name!r} at parameter servers", hint=_DENSE_HINT, tensor=name
        )
    for setting in _REFUSED:
        if group.get(setting):
            raise PsOptimizerError(
                f"{_name(optimizer)} with {setting}=True cannot run at parameter servers",
                hint=f"leave {setting} out",
                tensor=name,
            )
    if rule == "adam" and group.get("decoupled_weight_decay"):
        raise PsOptimizerError("Adam with decoupled_weight_decay=True", hint="that is AdamW", tensor=name)
    return rule


def _row_rule(optimizer: Optimizer, group: Mapping[str, Any], name: str) -> str:
    if isinstance(optimizer, RowOptimizer):
        return RULES[group["rule"]]
    kind = type(optimizer)
    if kind is SparseAdam and not group.get("maximize"):
        return "lazy_adam"
    if kind is SGD:
        for setting in ("momentum", "dampening", "weight_decay", "nesterov", "maximize"):
            if group.get(setting):
                raise PsOptimizerError(
                    f"SGD with {setting}={group[setting]} cannot update the rows of {name!r}",
                    hint="give the embeddings a group of their own with lr alone",
                    table=name,
                )
        return "row_sgd"
    raise PsOptimizerError(
        f"{_name(optimizer)} cannot update the rows of {name!r}", hint=_ROW_HINT, table=name
    )


def _name(optimizer: Optimizer) -> str:
    return type(optimizer).__name__
