"""Provide names of DistributedDataParallel that scripts use on a model that is not wrapped.

`prepare` returns the script's own model. Scripts written for DDP unwrap it (`model.module`) and call the
wrapper's methods. `module` returns the model in its original class, which has no `module`, so that `while
hasattr(model, "module")` terminates. Methods that would change how gradients are summed are refused.

Like the wrapper, and unlike an attribute, this applies to the prepared model alone: copies and pickles have
the script's own class, and state_dict, named_modules and repr do not show it.
"""

from __future__ import annotations

import copyreg
from typing import Any, Final, NoReturn

import torch

from elastane_common.errors import UnsupportedError

_REFUSED: Final = {
    "no_sync": (
        "replace no_sync() by job.prepare(..., accumulation_steps=K); the loop body stays the same for "
        "every mini-batch"
    ),
    "register_comm_hook": "remove it: gradients are sent as DDP sends them without a hook",
    "join": "leave it out: all ESTs have the same number of batches",
    "_set_static_graph": "write job.prepare(..., static_graph=True)",
}


class WrapperCallError(UnsupportedError):
    """The script uses a part of DistributedDataParallel that decides how gradients are summed."""

    code = "ELA361"


def give_wrapper_names(model: torch.nn.Module) -> None:
    """Add `model.module` and the refusals; names that the model defines itself are kept."""
    kind = type(model)
    if hasattr(model, "module") or isinstance(model, torch.jit.ScriptModule):
        return
    # A second object of the original class: its `module` must not exist, but its state must be the model's.
    inner = object.__new__(kind)
    inner.__dict__ = model.__dict__  # shared, so that modes, hooks and parameters are the same

    def reduce(self: Any, protocol: Any) -> Any:
        plain = object.__new__(kind)
        plain.__dict__ = self.__dict__
        made = plain.__reduce_ex__(protocol)
        if made[0] is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle refuses it for another class
            return copyreg._reconstructor, (kind, object, None), *made[2:]  # type: ignore[attr-defined]
        return made

    names: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__reduce_ex__": reduce,
        "module": property(lambda self: inner),
    }
    for name, hint in _REFUSED.items():
        if not hasattr(model, name):
            names[name] = _refusal(name, hint)
    if not hasattr(model, "require_backward_grad_sync"):
        names["require_backward_grad_sync"] = property(lambda self: True, _set_sync)
    model.__class__ = type(kind.__name__, (kind,), names)


def _refusal(name: str, hint: str) -> Any:
    def refused(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise WrapperCallError(
            f"model.{name}() is a method of DistributedDataParallel, and a prepared model is not one",
            hint=hint,
        )

    return refused


def _set_sync(self: Any, value: bool) -> None:
    if not value:
        raise WrapperCallError(
            "model.require_backward_grad_sync = False is a setting of DistributedDataParallel, and a "
            "prepared model is not one",
            hint=_REFUSED["no_sync"],
        )
