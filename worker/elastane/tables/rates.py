"""Rates of an optimizer's parameter groups, as they travel with every push: a few numbers for each group.

A group has one rule, and the rule says what its numbers are (`NAMES`). They come with the push, so that a
schedule of learning rates runs where the script runs, and a parameter server needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final, Literal

from elastane_shards.errors import InvalidRequest

DenseRule = Literal["sgd", "adagrad", "adam", "adamw"]
RowRule = Literal["row_sgd", "rowwise_adagrad", "lazy_adam"]

#: Names of a group's numbers, in their order; as in torch.optim. Truth values are 0 and 1.
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "sgd": ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"),
    "adagrad": ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize"),
    "adam": ("lr", "beta1", "beta2", "eps", "weight_decay", "maximize"),
    "adamw": ("lr", "beta1", "beta2", "eps", "weight_decay", "maximize"),
    "row_sgd": ("lr",),
    "rowwise_adagrad": ("lr", "initial_accumulator_value", "eps"),
    "lazy_adam": ("lr", "beta1", "beta2", "eps"),
}
DENSE_RULES: Final = ("sgd", "adagrad", "adam", "adamw")
ROW_RULES: Final = ("row_sgd", "rowwise_adagrad", "lazy_adam")

#: By group, the numbers of `NAMES`.
Rates = Sequence[Sequence[float]]


def packed(rule: str, **values: float) -> list[float]:
    """Return the numbers of a group from their names; those not given are 0. Raises KeyError for others."""
    if unknown := set(values) - set(NAMES[rule]):
        raise KeyError(f"{rule} has no {', '.join(sorted(unknown))}")
    return [float(values.get(name, 0.0)) for name in NAMES[rule]]


def check(rules: Sequence[str], rates: Rates) -> None:
    """Raise InvalidRequest unless there are finite numbers for each group, which has the rule `rules`."""
    if len(rates) != len(rules):
        raise InvalidRequest(f"rates of {len(rates)} groups; the model has {len(rules)}")
    for group, (rule, numbers) in enumerate(zip(rules, rates, strict=True)):
        if len(numbers) != len(NAMES[rule]) or not all(map(isfinite, numbers)):
            raise InvalidRequest(
                f"the rates of group {group} are not the {len(NAMES[rule])} finite numbers of {rule}",
                group=group,
            )


def scaled(rates: Rates, scale: float) -> Rates:
    """Return the rates with learning rates multiplied by `scale`."""
    return rates if scale == 1.0 else [[numbers[0] * scale, *numbers[1:]] for numbers in rates]
