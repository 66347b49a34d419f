"""State that each EST has separately and that no global generator holds: the script's registered items.

A stock rank is a process, so an object of the script belongs to one rank. Here one object serves several ESTs
in turn. `job.register(name, object)` makes its state part of every EST's context: it is restored before the
EST's mini-batch and captured after it, and it moves with the EST.

An item is stored as bytes, never pickled: a header, the structure of its state in the form of
`elastane.state.codec`, and the bytes of its tensors. Equal states give equal bytes.
"""

from __future__ import annotations

import random
import re
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from elastane.context import ITEM, RESERVED
from elastane.state.codec import (
    Exported,
    StateFormatError,
    StateNotCarriedError,
    decode,
    encode,
    flat_bytes,
    from_flat_bytes,
    specs_of,
)
from elastane_common.errors import EXIT_REFUSED, ElastaneError

ITEM_BYTES_MAX: Final = 1024 * 1024

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_HEADER = struct.Struct("<4sI")  # magic, bytes of the structure
_MAGIC = b"ELI1"

Parts = dict[str, bytes]


class RegistryError(ElastaneError):
    """An object cannot be registered, or a stored item does not match the registered one."""

    code = "ELA303"
    exit_code = EXIT_REFUSED


@dataclass(slots=True)
class _Item:
    kind: str
    value: Any
    capture: Callable[[], Any]
    restore: Callable[[Any], None]
    known: bytes = b""  # as last captured or restored: equal states are returned as the same object


class Registry:
    """The registered items of a script, by name. Used by the thread that trains, and in data workers."""

    def __init__(self) -> None:
        self._items: dict[str, _Item] = {}
        self._frozen = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the order of registration."""
        return tuple(self._items)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def objects(self) -> tuple[Any, ...]:
        """The registered objects themselves."""
        return tuple(item.value for item in self._items.values())

    def holds(self, value: object) -> bool:
        """True if this very object is registered."""
        return self.name_of(value) is not None

    def name_of(self, value: object) -> str | None:
        """Return the name under which this very object is registered; None if it is not."""
        return next((name for name, item in self._items.items() if item.value is value), None)

    def register(self, name: str, value: Any) -> None:
        """Make the state of `value` part of every EST's context. Called by `job.register`, before prepare.

        value: an object with `state_dict` and `load_state_dict`, a tensor or a dict that the script changes
        in place, a torchmetrics `Metric`, a NumPy `Generator` or `RandomState`, a `random.Random` or a
        `torch.Generator`. Raises RegistryError for a name or an object given twice, an
        invalid name, an object of another kind, a state over ITEM_BYTES_MAX, and after `freeze`;
        StateNotCarriedError, with the path, for a state with a part that cannot be encoded.
        """
        if self._frozen:
            raise RegistryError(
                f"{name!r} was registered after prepare",
                hint="call job.register before job.prepare: the ESTs' states are taken there",
                item=name,
            )
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RegistryError(
                f"invalid item name {name!r}",
                hint="use letters, digits, '_', '.' and '-'",
                item=name,
            )
        if name in self._items:
            raise RegistryError(
                f"{name!r} is registered twice", hint="give every item its own name", item=name
            )
        for other, item in self._items.items():
            if item.value is value:
                raise RegistryError(
                    f"{name!r} is the same object as {other!r}", hint="register it once", item=name
                )
        item = _item_of(name, value)
        item.known = _to_bytes(name, item)
        self._items[name] = item

    def freeze(self) -> None:
        """Make `register` raise from now on. Called by prepare."""
        self._frozen = True

    def capture(self) -> Parts:
        """Return the current states: parts "item/NAME". Unchanged ones are the same bytes objects.

        Raises StateNotCarriedError, and RegistryError for a state that has grown over ITEM_BYTES_MAX.
        """
        return {ITEM + name: self._capture(name, item) for name, item in self._items.items()}

    def captured(self, name: str) -> bytes:
        """Return the current state of one item. Raises as `capture` does."""
        return self._capture(name, self._items[name])

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore every item from `parts`; keys other than "item/..." and reserved ones are ignored.

        Raises RegistryError if an item is missing, unknown, damaged or of another kind.
        """
        self._check_names(parts)
        for name, item in self._items.items():
            self._restore(name, item, parts[ITEM + name])

    def exchange(self, parts: Mapping[str, bytes]) -> Parts:
        """Capture the current states, then restore `parts`: the switch from one EST to another.

        An item that already has its state is not restored.
        """
        self._check_names(parts)
        present = self.capture()
        for name, item in self._items.items():
            if present[ITEM + name] != parts[ITEM + name]:
                self._restore(name, item, parts[ITEM + name])
        return present

    def _capture(self, name: str, item: _Item) -> bytes:
        state = _to_bytes(name, item)
        # Keep the known object if nothing changed, so that deltas compare by identity.
        if state != item.known:
            item.known = state
        return item.known

    def _restore(self, name: str, item: _Item, state: bytes) -> None:
        kind, value = from_bytes(name, state)
        if kind != item.kind:
            raise RegistryError(
                f"the stored item {name!r} is a {kind}, here it is a {item.kind}",
                hint="all workers must run the same script",
                item=name,
            )
        try:
            item.restore(value)
        except Exception as error:
            raise RegistryError(
                f"item {name!r} does not take its stored state: {type(error).__name__}: {error}",
                hint="its load_state_dict must take what its state_dict gives",
                item=name,
            ) from error
        item.known = state

    def _check_names(self, parts: Mapping[str, bytes]) -> None:
        stored = {
            key.removeprefix(ITEM)
            for key in parts
            if key.startswith(ITEM) and not key.startswith(ITEM + RESERVED)
        }
        if stored != set(self._items):
            missing, unknown = sorted(set(self._items) - stored), sorted(stored - set(self._items))
            raise RegistryError(
                f"the stored items are {sorted(stored)}, registered here are {sorted(self._items)}",
                hint="all workers must run the same script, and register the same names before prepare",
                missing=missing,
                unknown=unknown,
            )


def to_bytes(name: str, kind: str, state: Any) -> bytes:
    """Encode the state of the item `name`. Raises StateNotCarriedError, RegistryError if it is too big."""
    exported = encode([kind, state], path=name)
    bodies = [flat_bytes(tensor).cpu().contiguous() for tensor in exported.tensors]
    size = _HEADER.size + len(exported.structure) + sum(body.numel() for body in bodies)
    if size > ITEM_BYTES_MAX:
        raise RegistryError(
            f"the state of item {name!r} has {size:,} bytes, at most {ITEM_BYTES_MAX:,} can be carried",
            hint="it travels with every step: keep positions and generators in it, not data",
            item=name,
            bytes=size,
        )
    head = _HEADER.pack(_MAGIC, len(exported.structure))
    return b"".join([head, exported.structure, *(bytes(body.numpy()) for body in bodies)])


def from_bytes(name: str, stored: bytes) -> tuple[str, Any]:
    """Decode kind and state of an item; inverse of `to_bytes`. Raises RegistryError for damaged bytes."""
    try:
        magic, length = _HEADER.unpack_from(stored)
        if magic != _MAGIC:
            raise ValueError("it does not start like an item")
        structure = stored[_HEADER.size : _HEADER.size + length]
        place, tensors = _HEADER.size + length, []
        for spec in specs_of(structure):
            body = bytearray(stored[place : place + spec.nbytes])
            if len(body) != spec.nbytes:
                raise ValueError("it ends too early")
            place += spec.nbytes
            flat = torch.frombuffer(body, dtype=torch.uint8) if body else torch.empty(0, dtype=torch.uint8)
            tensors.append(from_flat_bytes(flat, spec).to(spec.device))
        if place != len(stored):
            raise ValueError("there are extra bytes after its end")
        kind, state = decode(Exported(structure, tensors))
    except (ValueError, TypeError, RuntimeError, struct.error, StateFormatError) as error:
        raise RegistryError(f"the stored item {name!r} is damaged: {error}", item=name) from error
    return str(kind), state


def has_state(value: object) -> bool:
    """True if the object has `state_dict` and `load_state_dict`."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _to_bytes(name: str, item: _Item) -> bytes:
    return to_bytes(name, item.kind, item.capture())


def _item_of(name: str, value: Any) -> _Item:
    if isinstance(value, type):
        raise _bad_object(name, f"the class {value.__name__}, not an object")
    if isinstance(value, torch.nn.ModuleDict) and isinstance(value, _torchmetrics("MetricCollection")):
        raise _bad_object(name, "a MetricCollection, whose metrics share their states; register each metric")
    if is_metric(value):
        return _Item("torchmetrics", value, lambda: _metric_state(value), lambda s: _set_metric(value, s))
    if isinstance(value, torch.Tensor):
        return _Item("tensor", value, value.detach, lambda state: _set_tensor(value, state))
    if type(value) is dict:
        return _Item("dict", value, lambda: value, lambda state: _set_dict(value, state))
    if has_state(value):
        return _Item("state_dict", value, value.state_dict, value.load_state_dict)
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return _Item(f"numpy {type(bits).__name__}", value, lambda: bits.state, _setter(bits, "state"))
    if isinstance(value, np.random.RandomState):
        return _Item("numpy RandomState", value, lambda: value.get_state(legacy=False), value.set_state)
    if isinstance(value, torch.Generator):
        return _Item("torch Generator", value, value.get_state, lambda state: _set_torch(value, state))
    if isinstance(value, random.SystemRandom):
        raise _bad_object(name, "a SystemRandom, which has no state to keep")
    if isinstance(value, random.Random):
        return _Item("random.Random", value, lambda: _python_state(value), lambda s: _set_python(value, s))
    raise _bad_object(name, f"a {type(value).__name__}")


def _bad_object(name: str, what: str) -> RegistryError:
    return RegistryError(
        f"item {name!r} is {what}",
        hint="register a generator of NumPy, Python or torch, a tensor, a dict, a torchmetrics Metric, or an"
        " object with state_dict and load_state_dict",
        item=name,
    )


def _torchmetrics(name: str) -> Any:
    """Return a class of torchmetrics; no class if the script has not imported it."""
    return getattr(sys.modules.get("torchmetrics"), name, ())


def is_metric(value: object) -> bool:
    """True for a Metric of torchmetrics."""
    return isinstance(value, _torchmetrics("Metric"))


def _metric_state(metric: Any) -> dict[str, Any]:
    """Return all of a torchmetrics Metric's state; its state_dict has none of it by default."""
    states = {name: getattr(metric, name) for name in metric._defaults}
    return {"states": states, "updates": metric._update_count}


def _set_metric(metric: Any, state: dict[str, Any]) -> None:
    for name, value in state["states"].items():
        setattr(metric, name, value)
    metric._update_count, metric._computed = state["updates"], None


def _set_tensor(value: torch.Tensor, state: torch.Tensor) -> None:
    with torch.no_grad():
        value.copy_(state)


def _set_dict(value: dict[Any, Any], state: dict[Any, Any]) -> None:
    value.clear()
    value.update(state)


def _setter(owner: Any, attribute: str) -> Callable[[Any], None]:
    return lambda value: setattr(owner, attribute, value)


def _set_torch(value: torch.Generator, state: torch.Tensor) -> None:
    value.set_state(state)


def _python_state(value: random.Random) -> dict[str, Any]:
    version, words, gaussian = value.getstate()
    # As an array: a list would be three times as long.
    return {"version": version, "words": np.array(words, dtype=np.uint32), "gaussian": gaussian}


def _set_python(value: random.Random, state: dict[str, Any]) -> None:
    words = tuple(int(word) for word in state["words"])
    value.setstate((state["version"], words, state["gaussian"]))


__all__ = [
    "ITEM",
    "ITEM_BYTES_MAX",
    "RESERVED",
    "Registry",
    "RegistryError",
    "StateNotCarriedError",
    "from_bytes",
    "has_state",
    "is_metric",
    "to_bytes",
]
