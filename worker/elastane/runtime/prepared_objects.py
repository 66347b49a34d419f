"""The objects passed to `prepare`, sorted by type, and the interception of their methods."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from elastane.runtime.clipping import count_clips_once
from elastane.state.train_state import Stateful
from elastane_common.errors import UnsupportedError


class LateGroupError(UnsupportedError):
    """The script adds parameters to an optimizer after prepare."""

    code = "ELA362"


class UnpreparedScalerError(UnsupportedError):
    """A GradScaler that was not prepared is used with a prepared optimizer."""

    code = "ELA363"


class PreparedObjects:
    """Objects passed to `prepare`, by role.

    model: the one that is trained. optimizers, schedulers, scalers (GradScaler), averaged (AveragedModel): in
    the order given. loader: the training loader. extras: by name, everything else that has state and is the
    same on all ranks (scalers, averaged models, EMA copies, the script's own objects). Raises
    UnsupportedError for objects that are ambiguous or have no state to carry.
    """

    def __init__(self, objects: Sequence[Any]) -> None:
        modules = [o for o in objects if isinstance(o, torch.nn.Module)]
        loaders = [o for o in objects if isinstance(o, DataLoader)]
        self.optimizers = [o for o in objects if isinstance(o, torch.optim.Optimizer)]
        models = _trained(modules, self.optimizers)
        if len(models) != 1 or len(loaders) != 1 or not self.optimizers:
            raise UnsupportedError(
                f"prepare got {len(models)} models to train, {len(self.optimizers)} optimizers and "
                f"{len(loaders)} DataLoaders",
                hint="prepare takes one model, one training DataLoader and optimizers, in one call",
            )
        self.model, self.loader = models[0], loaders[0]
        # A scaler may be passed itself, inside a library's object, or both.
        held = [part for o in objects for part in (o, *_parts(o))]
        scalers = {id(part): part for part in held if isinstance(part, torch.amp.GradScaler)}
        self.scalers = list(scalers.values())
        self.averaged = [o for o in modules if isinstance(o, AveragedModel)]
        self.schedulers: list[Any] = []
        self.extras: dict[str, Stateful] = {}
        known = {id(o) for o in (self.model, self.loader, *self.optimizers)}
        for place, extra in enumerate(objects):
            if id(extra) in known:
                continue
            if not all(hasattr(extra, name) for name in ("state_dict", "load_state_dict")):
                raise UnsupportedError(
                    f"prepare got a {type(extra).__name__}, which has no state_dict and load_state_dict",
                    hint="prepare takes the model, optimizers, the training DataLoader, schedulers, a"
                    " GradScaler, averaged models and other objects with state",
                )
            if hasattr(extra, "step") and not isinstance(extra, torch.amp.GradScaler | torch.nn.Module):
                self.schedulers.append(extra)
            else:
                self.extras[f"prepared.{place}.{type(extra).__name__}"] = extra


def _parts(given: Any) -> list[Any]:
    """Return an object's attributes: libraries wrap a GradScaler in an object of their own."""
    if isinstance(given, torch.nn.Module | torch.optim.Optimizer | DataLoader):
        return []
    return list(getattr(given, "__dict__", {}).values())


def _trained(
    modules: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> list[torch.nn.Module]:
    """Return the modules that an optimizer trains; a single module counts in any case."""
    if len(modules) == 1:
        return list(modules)
    optimized = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    return [module for module in modules if any(id(p) in optimized for p in module.parameters())]


def check_modules(model: torch.nn.Module) -> None:
    """Refuse, before training, modules whose result in a ring would differ from that of stock ranks.

    Raises UnsupportedError that names the module.
    """
    if is_compiled(model) and torch._dynamo.config.optimize_ddp:
        raise UnsupportedError(
            "the model is compiled, and torch._dynamo.config.optimize_ddp is on: under DDP torch would cut "
            "the compiled graph at the buckets, which changes them",
            hint="set torch._dynamo.config.optimize_ddp = False before prepare, for both runs",
        )
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) and isinstance(
            module, torch.nn.Embedding | torch.nn.EmbeddingBag
        ):
            raise UnsupportedError(
                f"{name or 'the model'} produces sparse gradients",
                hint="build it with sparse=False",
                module=name,
            )
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise UnsupportedError(
                f"{name} is a SyncBatchNorm, which would need the batches of all ESTs at once",
                hint="use BatchNorm: like stock DDP, Elastane keeps the statistics of rank 0",
                module=name,
            )
        if any(torch.nn.parameter.is_lazy(parameter) for parameter in module.parameters(recurse=False)):
            raise UnsupportedError(
                f"{name or 'the model'} has uninitialized (lazy) parameters",
                hint="run one forward pass before prepare",
                module=name,
            )


def is_compiled(model: torch.nn.Module) -> bool:
    """True if torch.compile was applied to the model or a part of it."""
    return any(
        module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"
        for module in model.modules()
    )


class StepCalls(Protocol):
    """Replacements for the calls in a loop body that must take effect once a global step.

    Each receives the object's original method first, then the arguments of the call.
    """

    def adding(self) -> bool:
        """True if gradients only accumulate in this mini-batch, because it is not the last of its step."""
        ...

    def optimizer_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step` and `scaler.step`: run with the averaged gradients only."""
        ...

    def unscale(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`scaler.unscale_`: runs with the averaged gradients only."""
        ...

    def once(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`scaler.update` and `averaged.update_parameters`: run where the optimizer has stepped."""
        ...

    def scheduler_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`scheduler.step`: runs where the optimizer has stepped, or between epochs."""
        ...

    def zero_grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`zero_grad` of optimizers and model, used if gradients are accumulated over mini-batches."""
        ...


def intercept(prepared: PreparedObjects, calls: StepCalls, *, zeroing: bool) -> None:
    """Route methods of the prepared objects through `calls`. zeroing: zero_grad and clipping too."""
    for optimizer in prepared.optimizers:
        replace_method(optimizer, "step", calls.optimizer_step)
        if zeroing:
            replace_method(optimizer, "zero_grad", calls.zero_grad)
    if zeroing:
        replace_method(prepared.model, "zero_grad", calls.zero_grad)
        count_clips_once(prepared.model, calls.adding)
    for scheduler in prepared.schedulers:
        _in_class(scheduler, "step", calls.scheduler_step)
    for scaler in prepared.scalers:
        replace_method(scaler, "unscale_", calls.unscale)
        replace_method(scaler, "step", calls.optimizer_step)
        replace_method(scaler, "update", calls.once)
    for averaged in prepared.averaged:
        replace_method(averaged, "update_parameters", calls.once)


def set_to_none(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Zero gradients as `original`, `zero_grad` of an optimizer, does.

    It is called in every turn, and torch's own spends more time on its record for profilers, and on what
    keeps it out of compiled graphs, than on the gradients: that is left out while nothing is profiled.
    """
    is_stock = getattr(original, "__func__", None) is torch.optim.Optimizer.zero_grad
    is_plain = not args and kwargs in ({}, {"set_to_none": True})
    is_profiled = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    if not (is_stock and is_plain) or is_profiled:
        original(*args, **kwargs)
        return
    for group in original.__self__.param_groups:  # type: ignore[attr-defined]
        for param in group["params"]:
            if param.grad is not None:
                param.grad = None


def intercept_zero_grad(model: torch.nn.Module, calls: StepCalls) -> None:
    """Route zero_grad of a wrapper around the prepared model through `calls`."""
    replace_method(model, "zero_grad", calls.zero_grad)


def refuse_new_groups(prepared: PreparedObjects) -> None:
    """Refuse `add_param_group` at its line from now on."""

    def refuse(original: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
        raise LateGroupError(
            "add_param_group() was called after prepare: a worker that joins later would not have the group",
            hint=(
                "create all groups before prepare; for layers that are trained later use lr=0, or "
                "requires_grad_(False) with find_unused_parameters=True"
            ),
        )

    for optimizer in prepared.optimizers:
        replace_method(optimizer, "add_param_group", refuse)


def refuse_other_scalers(prepared: PreparedObjects) -> None:
    """Refuse, from now on, a GradScaler that was not prepared where it is used with a prepared optimizer."""
    known = {id(scaler) for scaler in prepared.scalers}
    optimizers = {id(optimizer) for optimizer in prepared.optimizers}

    def checked(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if id(optimizer) in optimizers and id(self) not in known and self.is_enabled():
                raise UnpreparedScalerError(
                    f"a {type(self).__name__} that was not prepared steps the {type(optimizer).__name__}: "
                    "its scale would change once per turn, from the gradients of one EST",
                    hint="pass the scaler to prepare, or the object that holds it: job.prepare(..., scaler)",
                )
            return original(self, optimizer, *args, **kwargs)

        return method

    # In the class, not in instances: an unprepared scaler is unknown until it is used.
    kind = torch.amp.GradScaler
    for name in ("step", "unscale_"):
        setattr(kind, name, checked(getattr(kind, name)))


def check_schedulers(prepared: PreparedObjects) -> None:
    """Refuse a scheduler that was not prepared: it would step once a turn. Raises UnsupportedError."""
    watched = {id(getattr(scheduler, "optimizer", None)) for scheduler in prepared.schedulers}
    for optimizer in prepared.optimizers:
        if hasattr(optimizer.step, "_wrapped_by_lr_sched") and id(optimizer) not in watched:
            raise UnsupportedError(
                f"a scheduler of the {type(optimizer).__name__} was not prepared",
                hint="pass every scheduler to prepare",
            )


class _Controlled:
    """Replacement for a method: calls `replacement(method, ...)`.

    Copying or pickling the owner restores the original method. `update_wrapper` carries over the attribute by
    which schedulers recognize that the optimizer's step is counted.
    """

    def __init__(self, original: Any, replacement: Callable[..., Any]) -> None:
        self._original = original
        self._replacement = replacement
        functools.update_wrapper(self, original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._replacement(self._original, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # deepcopy has already made the owner's copy when it reaches the attribute; bind the method to that.
        owner = memo.get(id(self._original.__self__), self._original.__self__)
        return types.MethodType(self._original.__func__, owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._original.__self__, self._original.__name__)


def replace_method(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a method by an instance attribute: the object keeps its class and the script its reference."""
    setattr(owner, name, _Controlled(_method(owner, name), replacement))


def _method(owner: Any, name: str) -> Callable[..., Any]:
    """Return the bound method; schedulers replace their optimizer's `step` with a plain function, bound
    here."""
    found: Callable[..., Any] = getattr(owner, name)
    if hasattr(found, "__self__"):
        return found

    @functools.wraps(found)
    def method(_: Any, *args: Any, **kwargs: Any) -> Any:
        return found(*args, **kwargs)

    return types.MethodType(method, owner)


def _in_class(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a scheduler's method by a subclass: its `state_dict` would include an instance attribute."""
    kind = type(owner)
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(functools.partial(original, self), *args, **kwargs)

    owner.__class__ = type(kind.__name__, (kind,), {name: method, "__module__": kind.__module__})
