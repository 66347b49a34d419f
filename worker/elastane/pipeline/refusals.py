"""Refuses, by name, what could change the bits of a pipeline, wherever the model is divided.

The first micro-batch of a generation is checked at every unit, so that every plan refuses the same models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elastane.pipeline.boundary import Gradients
from elastane.pipeline.frames import BoundaryError, leaves
from elastane_common.errors import StepError, UnsupportedError


class UnitReachError(UnsupportedError):
    """A unit crosses its boundary: it returns its own parameters, or uses another unit's."""

    code = "ELA393"


def check_loss(loss_fn: Any) -> None:
    """Raise UnitReachError for a loss with trainable parameters, which no worker's optimizer would update."""
    if isinstance(loss_fn, nn.Module) and any(p.requires_grad for p in loss_fn.parameters()):
        raise UnitReachError(
            "loss_fn has trainable parameters", hint="put its trainable part into the last unit"
        )


def loss_is_no_scalar(value: Any) -> StepError:
    """Return the error for a loss that is not a tensor of one element."""
    what = (
        f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
    )
    return StepError(f"loss_fn returned {what}, not a scalar", hint="reduce it, as with .mean()")


def addresses_of(params: Mapping[str, Tensor]) -> dict[int, str]:
    """Return the parameters' names by storage address."""
    return {p.untyped_storage().data_ptr(): name for name, p in params.items() if p.numel()}


def check_output(unit: str, output: Any, parameters: Mapping[int, str]) -> None:
    """Check that another worker could continue from a unit's output. Raises BoundaryError, UnitReachError.

    parameters: names of all parameters held here, by storage address.
    """
    for tensor in leaves(output):
        name = parameters.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else None
        if name is not None:
            raise UnitReachError(
                f"unit {unit} returns parameter {name}, or a view of it",
                hint="let the unit that has a parameter compute with it, and return the result",
                unit=unit,
                parameter=name,
            )


def check_graph(
    stage: str,
    output: Any,
    gradients: Gradients,
    stages_params: Mapping[int, str],
    models_params: Mapping[int, str],
) -> None:
    """Raise UnitReachError if the graph of a stage's output reaches beyond the stage.

    stages_params, models_params: names of trainable parameters by id.
    """
    todo = [t.grad_fn for t in leaves(output) if t.grad_fn is not None]
    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        name = models_params.get(id(variable)) if isinstance(variable, Tensor) else None
        if name is not None and id(variable) not in stages_params:
            raise UnitReachError(
                f"{stage} uses parameter {name}, which another unit has",
                hint="give both units the parameter as an attribute, so that they are tied",
                parameter=name,
            )
        entered = getattr(node, "gradients", None)
        if isinstance(entered, Gradients) and entered is not gradients:
            raise UnitReachError(
                f"{stage} uses a tensor of another stage or micro-batch that did not come with its input",
                hint="pass it from unit to unit, in a tuple; keep none in an attribute or a hook",
            )
        todo.extend(following for following, _ in node.next_functions if following is not None)


class UnitGraphs:
    """Checks a micro-batch's graph from unit to unit, and refuses a unit that uses another's parameters.

    This also applies within a stage, because another plan could place the units on different workers.
    models_params: names of the model's trainable parameters by id.
    """

    def __init__(self, models_params: Mapping[int, str]) -> None:
        self._params = models_params
        #: Nodes added by earlier stages and units, without leaves, whose users are what is looked for.
        self._seen: set[Any] = set()

    def check_unit(self, unit: str, module: nn.Module, output: Any) -> None:
        """Check the nodes that a unit has added. Raises UnitReachError."""
        if name := self._foreign(output, module):
            raise UnitReachError(
                f"unit {unit} uses parameter {name}, which another unit has",
                hint="give both units the parameter as an attribute, so that they are tied",
                unit=unit,
                parameter=name,
            )

    def check_loss(self, last: nn.Module, loss: Any) -> None:
        """Check the nodes that the loss has added. last: the last unit. Raises UnitReachError."""
        if name := self._foreign(loss, last):
            raise UnitReachError(
                f"loss_fn uses parameter {name}, which may be in another worker than the loss",
                hint="for a penalty on weights give the optimizer weight_decay; or let each unit add its own"
                " to a number that it passes on beside its output. Those of the last unit may be used",
                parameter=name,
            )

    def _foreign(self, output: Any, module: nn.Module) -> str | None:
        """Return the first parameter of another module that new graph nodes use, if any."""
        own = {id(parameter) for parameter in module.parameters()}
        todo = [t.grad_fn for t in leaves(output) if t.grad_fn is not None]
        while todo:
            node = todo.pop()
            if node in self._seen:
                continue
            self._seen.add(node)
            for following, _ in node.next_functions:
                variable = getattr(following, "variable", None)
                if not isinstance(variable, Tensor):
                    if following is not None:
                        todo.append(following)
                elif id(variable) not in own and id(variable) in self._params:
                    return self._params[id(variable)]
        return None


def check_written(tensors: list[Tensor], shared: list[bool], versions: list[int], stage: str) -> None:
    """Raise UnitReachError if a stage wrote to a tensor whose memory is shared at the sender."""
    for tensor, is_shared, version in zip(tensors, shared, versions, strict=True):
        if is_shared and tensor._version != version:
            raise UnitReachError(
                f"{stage} writes in place to a tensor whose memory is also that of another tensor of the"
                " stage before",
                hint="clone it, or use the function that is not in place",
            )


def no_sparse(gradient: Tensor) -> None:
    """Raise BoundaryError for a sparse gradient, which cannot be sent."""
    if gradient.layout is not torch.strided:
        raise BoundaryError(
            "the gradient of a tensor between two stages is sparse", hint="use dense gradients (sparse=False)"
        )
