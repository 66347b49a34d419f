"""Optimizers of embedding rows with torch's interface, so that schedulers and parameter groups work."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any, Final

import torch

from elastane.runtime.slots.errors import PsOptimizerError

#: Names of rules as scripts write them -> as parameter servers do.
RULES: Final = {"sgd": "row_sgd", "rowwise_adagrad": "rowwise_adagrad", "lazy_adam": "lazy_adam"}
_EPS: Final = {"sgd": 0.0, "rowwise_adagrad": 1e-10, "lazy_adam": 1e-8}


class RowOptimizer(torch.optim.Optimizer):
    """The optimizer of embeddings with sparse=True: it updates the rows that a task has gradients for.

    params: their weights, or groups as torch's optimizers take them. rule: "sgd"; "rowwise_adagrad" (one
    accumulator for each row; Naumov et al. 2019); "lazy_adam" (Adam whose moments and count of steps rest
    while a row is absent, unlike those of torch's SparseAdam). eps: default 1e-10 for rowwise_adagrad, 1e-8
    for lazy_adam. initial_accumulator_value: of rowwise_adagrad; betas: of lazy_adam. Only for
    `job.prepare_ps`: parameter servers apply it. Raises PsOptimizerError.
    """

    def __init__(
        self,
        params: Iterable[Any],
        rule: str = "rowwise_adagrad",
        *,
        lr: float = 0.01,
        eps: float | None = None,
        initial_accumulator_value: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        if rule not in RULES:
            raise PsOptimizerError(
                f"rows cannot be updated by {rule!r}", hint=f"one of {', '.join(RULES)}", rule=rule
            )
        numbers = [lr, initial_accumulator_value, *betas, *([] if eps is None else [eps])]
        if not all(isfinite(number) and number >= 0 for number in numbers) or max(betas) >= 1:
            raise PsOptimizerError(f"no {rule} has the numbers {numbers}", rule=rule)
        defaults = {
            "rule": rule,
            "lr": lr,
            "eps": _EPS[rule] if eps is None else eps,
            "initial_accumulator_value": initial_accumulator_value,
            "betas": betas,
        }
        super().__init__(params, defaults)

    def step(self, closure: Any = None) -> Any:
        """Raise PsOptimizerError: a push applies the gradients."""
        raise PsOptimizerError(
            "a RowOptimizer has no step of its own", hint="pass it to job.prepare_ps, and push each task"
        )
