"""Finds random number generators that the script keeps itself, wherever the loop can reach them.

A generator that is neither a global one nor registered with `job.register` has a state that no EST context
holds: all ESTs of a worker draw from the one object, and after a ring change the draws differ from those of
the stock ranks. `find_generators` names them. It starts from the globals of the script and of its other
modules, from the local variables of the script's running functions, and from objects given by the caller
(dataset, sampler, model ...), and follows attributes, slots, elements of containers, closures and defaults,
to a bounded depth and number.

Names show where to look: `train.py: noise` is a global, `train.py: main().noise` a local variable (or one
that a function has captured), `dataset.transform.rng` an attribute.

Used by traces (step_trace.py) and `elastane doctor`. Nothing here raises, and no code of the
script is called: no property, no `__getattr__`.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import types
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

from elastane.rng import HAS_NUMPY
from elastane.script_source.places import OWN_PACKAGES, display_name, is_script_class, is_script_file

if HAS_NUMPY:
    import numpy as np

OBJECTS_MAX: Final = 50_000
DEPTH_MAX: Final = 7
ITEMS_MAX: Final = 64  # per container: lists of transforms are short, and long containers hold data

_LEAVES: Final[tuple[type, ...]] = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    type(None),
    torch.Tensor,
    torch.dtype,
    torch.device,
    types.ModuleType,  # the walk starts from the script's own modules; others are libraries
    types.BuiltinFunctionType,
    types.CodeType,
    range,
    Path,
    *((np.ndarray, np.generic, np.dtype, np.random.BitGenerator) if HAS_NUMPY else ()),
)

Reader = Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Located:
    """A generator and where it was found. `read` returns its state as bytes: equal bytes mean equal draws."""

    name: str
    value: object
    read: Reader

    @property
    def suggestion(self) -> str:
        """The line that makes it part of the EST contexts, as a best guess."""
        path = self.name.rpartition(": ")[2]
        word = path.replace("()", "").rpartition(".")[2] or "noise"
        label = "".join(c for c in word if c.isalnum() or c == "_") or "noise"
        expression = path.rpartition("().")[2]
        return f'job.register("{label}", {expression})'


def find_generators(
    roots: Mapping[str, object] | None = None, *, known: Container[int] = frozenset()
) -> dict[str, Reader]:
    """Return the script's own generators by name, each with a function that reads its state.

    Args:
        roots: objects to search besides the script's modules and running functions, by the name under
            which they are reported (see `roots_of`).
        known: ids of objects to skip with everything they hold: the registered ones, and the generators
            of the loader and sampler that Elastane keeps itself. The global generators are always skipped.
    """
    return {found.name: found.read for found in locate(roots, known=known)}


def locate(
    roots: Mapping[str, object] | None = None, *, known: Container[int] = frozenset()
) -> list[Located]:
    """Like `find_generators`, with the objects themselves, in the order they were found, nearest first."""
    globals_: list[tuple[str, object]] = []
    locals_: list[tuple[str, object]] = []
    with contextlib.suppress(Exception):  # a script may have done anything to its frames and modules
        globals_, locals_ = _script_roots()
    starts = [*globals_, *(roots or {}).items(), *locals_]
    result: dict[str, Located] = {}
    for name, value in _walk(starts, known):
        read = state_reader(value)
        if read is None:
            continue
        unique, number = name, 2
        while unique in result:
            unique, number = f"{name} #{number}", number + 1
        result[unique] = Located(unique, value, read)
    return list(result.values())


def roots_of(model: object = None, loader: DataLoader[Any] | None = None) -> dict[str, object]:
    """Return a model and a DataLoader as roots for `find_generators`."""
    roots = {"model": model}
    if loader is not None:
        for name in ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn"):
            roots[name] = getattr(loader, name, None)
    return {name: value for name, value in roots.items() if value is not None}


def state_reader(value: object) -> Reader | None:
    """Return a function that reads a generator's state; None for a global generator and for anything else."""
    try:
        if isinstance(value, torch.Generator):
            return None if _is_global(value) else functools.partial(_torch_state, value)
        if isinstance(value, random.Random):
            if value is getattr(random, "_inst", None) or isinstance(value, random.SystemRandom):
                return None
            return functools.partial(_python_state, value)
        if HAS_NUMPY and isinstance(value, np.random.Generator):
            return lambda: _encoded(value.bit_generator.state)
        if HAS_NUMPY and isinstance(value, np.random.RandomState):
            if value is np.random.mtrand._rand:
                return None
            return lambda: _encoded(value.get_state(legacy=False))
    except Exception:  # noqa: BLE001 - isinstance asks the object for its class, which may do anything
        return None
    return None


def _is_global(value: torch.Generator) -> bool:
    return value is torch.default_generator or any(
        value is generator for generator in getattr(torch.cuda, "default_generators", ())
    )


def _torch_state(generator: torch.Generator) -> bytes:
    return bytes(generator.get_state().untyped_storage().tolist())


def _python_state(generator: random.Random) -> bytes:
    version, words, gauss = generator.getstate()
    return b"%d/%r/" % (version, gauss) + array("L", words).tobytes()


def _encoded(value: object) -> bytes:
    """Encode a state: equal states give equal bytes, whatever objects they consist of."""
    if isinstance(value, Mapping):
        return b"{%s}" % b",".join(b"%s:%s" % (str(k).encode(), _encoded(value[k])) for k in sorted(value))
    if HAS_NUMPY and isinstance(value, np.ndarray):
        return value.dtype.str.encode() + value.tobytes()
    return repr(value).encode()


def _walk(starts: Iterable[tuple[str, object]], known: Container[int]) -> Iterator[tuple[str, object]]:
    """Yield everything reachable from `starts`, breadth first, so that each object gets its shortest name."""
    waiting = deque((name, value, 0) for name, value in starts)
    keep: list[object] = []  # ids are unique only while the objects live
    seen: set[int] = set()
    while waiting and len(seen) < OBJECTS_MAX:
        name, value, depth = waiting.popleft()
        if id(value) in seen or id(value) in known:
            continue
        seen.add(id(value))
        keep.append(value)
        yield name, value
        if depth >= DEPTH_MAX or state_reader(value) is not None:
            continue
        try:
            for suffix, child in _children(value):
                if not issubclass(type(child), _LEAVES):  # isinstance would ask the object itself
                    waiting.append((f"{name}{suffix}", child, depth + 1))
        except Exception:  # noqa: BLE001 - one odd object must not hide the generators of others
            continue


def _children(value: object) -> Iterator[tuple[str, object]]:
    """Yield everything that a value refers to directly, each with the suffix of its name."""
    kind = type(value)
    if kind.__module__.partition(".")[0] in OWN_PACKAGES:
        return
    if isinstance(value, _Globals):
        yield from ((name, child) for name, child in value.items.items() if not name.startswith("__"))
        return
    if issubclass(kind, (dict, types.MappingProxyType)):
        # dict.items(value), because a subclass's own items() would be code of the script.
        for key, child in _few(dict.items(value) if isinstance(value, dict) else value.items()):  # type: ignore[attr-defined]
            yield f"[{key!r}]" if isinstance(key, (str, int)) else "[...]", child
    elif issubclass(kind, (list, tuple, set, frozenset, deque)):
        for index, child in enumerate(_few(value)):  # type: ignore[arg-type]
            yield f"[{index}]", child
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield "", value.__func__
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield from ((f".args[{index}]", child) for index, child in enumerate(value.args))
        yield from ((f".keywords[{name!r}]", child) for name, child in value.keywords.items())
    elif isinstance(value, types.GeneratorType) and value.gi_frame is not None:
        yield from ((f"().{name}", child) for name, child in dict(value.gi_frame.f_locals).items())
    if isinstance(value, type):
        if is_script_class(value):
            yield from ((f".{name}", child) for name, child in list(vars(value).items()))
        return
    yield from _attributes(value)
    if is_script_class(kind):
        yield "", kind


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    """Yield the instance's own attributes: never a property, never `__getattr__`."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = None
    if isinstance(own, dict):
        hidden = ("_parameters", "_buffers") if isinstance(value, torch.nn.Module) else ()
        for name, child in list(own.items()):
            if name == "_modules" and isinstance(value, torch.nn.Module):
                yield from ((f".{part}", module) for part, module in child.items())
            elif name not in hidden:
                yield f".{name}", child
    for base in type(value).__mro__:
        for name, slot in list(vars(base).items()) if "__slots__" in vars(base) else ():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # not set yet
                    yield f".{name}", slot.__get__(value, type(value))


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # an empty cell
            yield f"().{name}", cell.cell_contents
    arguments = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    filled = zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)
    yield from ((f"().{name}", value) for name, value in filled)
    yield from ((f"().{name}", value) for name, value in (function.__kwdefaults__ or {}).items())
    if is_script_file(code.co_filename):
        named = [name for name in code.co_names if name in function.__globals__]
        yield from ((f"().{name}", function.__globals__[name]) for name in named)


def _few(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the first elements; only eight if those are all plain data."""
    leaves_only = True
    for index, value in enumerate(values):
        if index == ITEMS_MAX or (index == 8 and leaves_only):
            return
        part = value[1] if isinstance(value, tuple) and len(value) == 2 else value
        leaves_only = leaves_only and issubclass(type(part), _LEAVES)
        yield value


class _Globals:
    """Globals of a module, walked without the module's own attributes."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.items = dict(items)


_Globals.__module__ = "script"  # counts as the script's, not as one of Elastane's own objects


def _script_roots() -> tuple[list[tuple[str, object]], list[tuple[str, object]]]:
    """Return the globals of the script's modules, and the local variables of its running functions."""
    spaces: OrderedDict[int, tuple[str, dict[str, Any]]] = OrderedDict()
    modules = [m for m in (sys.modules.get("__main__"), *list(sys.modules.values())) if m is not None]
    for module in modules:
        filename = getattr(module, "__file__", None)
        if isinstance(filename, str) and is_script_file(filename):
            spaces.setdefault(id(vars(module)), (display_name(filename), vars(module)))
    locals_: list[tuple[str, object]] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_script_file(filename):
            title = display_name(filename)
            spaces.setdefault(id(frame.f_globals), (title, frame.f_globals))
            if frame.f_code.co_name != "<module>":
                items = dict(frame.f_locals)
                function = frame.f_code.co_name
                locals_ += [(f"{title}: {function}().{name}", child) for name, child in items.items()]
        frame = frame.f_back
    return [(f"{title}: ", _Globals(items)) for title, items in spaces.values()], locals_
