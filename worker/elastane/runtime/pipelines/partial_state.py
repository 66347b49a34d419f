"""Refuses to save or average a part of the model where the script expects the whole.

Weights of units held elsewhere read as NaN, and the optimizer has no state for them. A script that saved them
would have lost them, and would notice only when it loads the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import nn

from elastane.pipeline.units import Units
from elastane.runtime.pipelines.absent_gradients import is_absent_gradient
from elastane.runtime.pipelines.errors import EvaluationError
from elastane.runtime.prepared_objects import PreparedObjects, replace_method
from elastane.runtime.weight_copies import CopyNotPreparedError, CopyWatch


def refuse_partial_state(units: Units, optimizer: torch.optim.Optimizer) -> None:
    """From now on, refuse `state_dict()` of units that are not held here, and of the optimizer."""
    for unit in range(units.count):
        module = units.module(unit)
        if any(True for _ in (*module.parameters(), *module.buffers())):
            module.register_state_dict_pre_hook(_check(units, unit))
    replace_method(optimizer, "state_dict", _refuse)


def _check(units: Units, unit: int) -> Callable[..., None]:
    def check(*_: Any) -> None:
        if unit not in units.held:
            raise EvaluationError(
                f"state_dict() of unit {unit} was called, whose weights are in other workers",
                hint="write pipe.state_dict(), between epochs or, in the leader, after the last one",
                unit=unit,
            )

    return check


def _refuse(_original: Callable[..., Any], *_: Any, **__: Any) -> NoReturn:
    raise EvaluationError(
        "optimizer.state_dict() was called in a pipeline, where a worker has the state of some units alone",
        hint="leave it out: the job saves it with the weights, by `elastane run --checkpoint DIR`",
    )


class PartialCopyWatch(CopyWatch):
    """Refuses copies of the weights that the loop body changes: they would contain only the local units."""

    def __init__(self, prepared: PreparedObjects, registered: Iterable[object]) -> None:
        super().__init__(prepared, registered, alone=True)

    def _has_values(self, tensor: torch.Tensor) -> bool:
        return not is_absent_gradient(tensor)

    def _changed(self, est_step: Any, name: str, owner: object) -> None:
        kind = f"the {type(owner).__name__} {name}" if isinstance(owner, nn.Module) else name
        raise CopyNotPreparedError(
            f"{kind} holds a copy of the weights, and was changed in step {est_step.step}: a worker of a"
            " pipeline has the weights of some units alone, and the others are NaN",
            hint="averages of the weights need job.prepare; between epochs, pipe.state_dict() has them all",
            variable=name,
        )
