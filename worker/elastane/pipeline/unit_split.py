"""Units of a model that torch has split: `torch.distributed.pipelining.pipeline(model, ..., split_spec=...)`.

torch traces the model and cuts the graph at the SplitPoints; each part becomes a unit. Units form a chain in
which each takes only the output of the one before, so a value that skips a part is refused by name. The trace
fixes the training mode of dropout and BatchNorm, so units with these cannot be evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from torch import fx, nn

from elastane.pipeline.unit_building import UnitsError

_MODES: Final = ("dropout", "batch_norm", "instance_norm", "rrelu", "multi_head_attention")


def is_split(given: object) -> bool:
    """True for what `torch.distributed.pipelining.pipeline` returns."""
    kind = type(given)
    return kind.__module__.startswith("torch.distributed.pipelining") and hasattr(given, "split_gm")


def parts_of(given: Any) -> list[nn.Module]:
    """Return the parts of a split model, in order. Raises UnitsError unless they form a chain."""
    parts: list[nn.Module] = []
    previous: fx.Node | None = None
    for node in given.split_gm.graph.nodes:
        if node.op == "placeholder" and previous is None:
            previous = node
        elif node.op == "call_module":
            if list(node.args) != [previous] or node.kwargs:
                taken = ", ".join(map(str, node.args)) or "nothing"
                raise UnitsError(
                    f"part {len(parts)} of the split model takes {taken};"
                    f" a unit takes what the one before returns, {previous}, and nothing else",
                    hint="move the SplitPoints to where one tensor passes from part to part",
                    unit=len(parts),
                )
            module = given.split_gm.get_submodule(str(node.target))
            if mode := next(_fixed(module), None):
                object.__setattr__(module, "train", partial(_train, module, len(parts), mode))
            parts.append(module)
            previous = node
        elif node.op == "output":
            if node.all_input_nodes != [previous]:
                raise UnitsError(
                    f"the split model returns {', '.join(map(str, node.all_input_nodes))}, not what its last"
                    " part does",
                    hint="let the model return one value, of its last part",
                )
        elif node.op != "call_function":  # which unpacks a part's return value
            raise UnitsError(
                f"the split model has {node} between its parts",
                hint="let a model have one input and return one value",
            )
    return parts


def _fixed(module: nn.Module) -> Iterator[str]:
    """Yield the operators of a traced module that behave differently in evaluation."""
    for part in module.modules():
        graph = getattr(part, "graph", None)
        for node in graph.nodes if isinstance(graph, fx.Graph) else ():
            name = str(node.target)
            if node.op == "call_function" and any(mode in name for mode in _MODES):
                yield name


def _train(module: nn.Module, unit: int, operator: str, mode: bool = True) -> nn.Module:
    if not mode:
        raise UnitsError(
            f"unit {unit} was traced in training mode, which {operator} keeps: it cannot be evaluated",
            hint="give the model as an nn.Sequential or a list of modules instead",
            unit=unit,
        )
    return module
