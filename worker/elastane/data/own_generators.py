"""Detect generators that the dataset keeps for itself.

A dataset that draws from its own `numpy.random.Generator` (or `random.Random`, `torch.Generator`) has
randomness that is in no EST context: all ESTs of a worker would draw from one such generator, and after a
ring change the draws would differ. That cannot give the stock result, so it is an error. Merely holding one
is allowed: only a generator whose state changes while a batch is made is refused. One that the script
registered (`job.register`) is in the contexts, and may be drawn from.
"""

from __future__ import annotations

import pickle
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from elastane.rng import HAS_NUMPY
from elastane.script_source.places import is_script_file
from elastane_common.errors import UnsupportedError

if HAS_NUMPY:
    import numpy as np

_OBJECTS_MAX = 2000
_DEPTH_MAX = 4
_ITEMS_MAX = 64  # of a list or dict: transforms are few, and long ones are the data

_LEAVES = (str, bytes, bytearray, int, float, complex, type(None), type, torch.Tensor, torch.nn.Module)


class OwnGenerators:
    """Generators found in the attributes of `dataset`, at a bounded depth.

    registered: objects whose state the ESTs' contexts hold; they may be drawn from. code: functions; the
    globals of their modules, and of the modules of the dataset's classes, are watched too. That is for data
    workers, where nothing else draws from them.
    """

    def __init__(
        self, dataset: object, registered: Iterable[object] = (), code: Iterable[object] | None = None
    ) -> None:
        registered = tuple(registered)
        found = [(path, value) for path, value in walk(dataset, skip=registered)]
        states = {path: state for path, value in found if (state := _state_of(value)) is not None}
        self._found = [
            ("dataset" + _written(path), _item_name(path), state) for path, state in states.items()
        ]
        if code is not None:
            held = {id(value) for value in (*registered, *(value for _, value in found))}
            for module in _modules_of((dataset, *(value for _, value in found), *code)):
                self._found += [
                    (name, name, state)
                    for name, value in vars(module).items()
                    if id(value) not in held and (state := _state_of(value)) is not None
                ]
        self._states = [state() for _, _, state in self._found]

    def check(self) -> None:
        """Raise UnsupportedError if a generator was drawn from since the last call.

        Cheap if there are none.
        """
        for index, (name, item, state) in enumerate(self._found):
            present = state()
            if present != self._states[index]:
                # Recorded first, so that a script that catches the error is not refused for the draw twice.
                self._states[index] = present
                raise UnsupportedError(
                    f"the dataset draws from its own generator, {name}, whose state no EST context holds",
                    hint=f'write job.register("{item}", {name}) before prepare, or draw from '
                    "random, numpy.random or torch's global generator; create a generator that is seeded for "
                    "each sample where the sample is made",
                    generator=name.removeprefix("dataset."),
                )


def walk(root: object, *, skip: Iterable[object] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield everything reachable from the attributes of `root`, with its path, up to a bounded depth and
    number.

    Paths of attributes can be followed with getattr; elements of containers have their key in brackets. skip:
    objects that are neither entered nor yielded.
    """
    left_out = {id(value) for value in skip}
    seen = {id(root)}
    waiting: list[tuple[tuple[str, ...], object]] = [((), root)]
    count = 0
    while waiting and count < _OBJECTS_MAX:
        path, value = waiting.pop(0)
        if len(path) >= _DEPTH_MAX:
            continue
        for name, child in _children(value):
            if id(child) in left_out:
                continue
            if not isinstance(child, _LEAVES):
                if id(child) in seen:
                    continue
                seen.add(id(child))
                waiting.append(((*path, name), child))
            count += 1
            yield (*path, name), child


def _modules_of(objects: Sequence[object]) -> list[ModuleType]:
    """Return the script's own modules that define these objects' classes, or these functions."""
    kinds = (getattr(one, "__module__", None) if callable(one) else type(one).__module__ for one in objects)
    modules = (sys.modules.get(name) for name in sorted({name for name in kinds if isinstance(name, str)}))
    return [
        module
        for module in modules
        if module is not None and is_script_file(getattr(module, "__file__", "") or "")
    ]


def _written(path: Iterable[str]) -> str:
    """Return the path as the script would write it behind the object's name."""
    return "".join(part if part.startswith("[") else f".{part}" for part in path)


def _item_name(path: tuple[str, ...]) -> str:
    """Derive a name for `job.register` from the path: ("parts", "[0]", "['rng']") -> "parts.0.rng"."""
    return re.sub(r"[^A-Za-z0-9_.-]", "", ".".join(path)) or "NAME"


def _children(value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        pairs = list(value.items()) if len(value) <= _ITEMS_MAX else []
        return [(f"[{key!r}]", child) for key, child in pairs]
    if isinstance(value, (list, tuple)):
        items = value if len(value) <= _ITEMS_MAX else ()
        return [(f"[{index}]", child) for index, child in enumerate(items)]
    attributes = getattr(value, "__dict__", None)
    return list(attributes.items()) if isinstance(attributes, dict) else []


def _state_of(value: object) -> Callable[[], Any] | None:
    """Return a function that reads the state of a non-global generator; None for anything else."""
    if isinstance(value, torch.Generator):
        # A data worker must not ask the driver for a device's generator: it is a fork of the trainer.
        if value is torch.default_generator or value.device.type != "cpu":
            return None
        return lambda: bytes(value.get_state().tolist())
    if isinstance(value, random.Random):
        has_state = value is not getattr(random, "_inst", None) and not isinstance(value, random.SystemRandom)
        return value.getstate if has_state else None
    if HAS_NUMPY and isinstance(value, np.random.Generator):
        return lambda: pickle.dumps(value.bit_generator.state)
    if HAS_NUMPY and isinstance(value, np.random.RandomState):
        if value is np.random.mtrand._rand:
            return None
        return lambda: pickle.dumps(value.get_state(legacy=False))
    return None
