"""EST context: all that one EST needs, besides the weights, to continue from the start of a step.

A context is a value. A step starts from one and produces the next; the one it started from is kept until the
step is committed, and a replay starts from it again. Therefore nothing here changes in place.

The parts are flat (`elastane_proto.contexts` lists the keys), so that merging a delta and comparing are each
one dictionary operation. Items whose names begin with "@" are Elastane's own (the loader's generator,
iterators, items at the fork of data workers), the others the script's. Parts are never removed: a delta can
only add and replace. The loader position decides whether an old part is still valid (see
`EstContext.stream`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from elastane_common.errors import ElastaneError
from elastane_proto import contexts as wire
from elastane_proto.v1 import common_pb2

Parts = dict[str, bytes]

LOADER = "loader"
ITEM = "item/"
"""Prefix of the parts of registered objects."""
RESERVED = "@"
"""Prefix of the names of Elastane's own (the loader's generator, iterators), never the script's."""


class ContextError(ElastaneError):
    """A context is incomplete, corrupted, or of an unexpected step."""

    code = "ELA309"


@dataclass(frozen=True, slots=True)
class LoaderPosition:
    """Position of an EST's loader: `batch` batches of `epoch` are consumed.

    base_seed is None until the EST has drawn it at its first batch of the epoch.
    """

    epoch: int = 0
    batch: int = 0
    base_seed: int | None = None

    def pack(self) -> bytes:
        return wire.pack_loader(self.epoch, self.batch, self.base_seed)


@dataclass(frozen=True, slots=True)
class EstContext:
    """Context of EST `virtual_rank` at the start of `step`."""

    virtual_rank: int
    step: int
    parts: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", MappingProxyType(dict(self.parts)))

    @classmethod
    def initial(cls, virtual_rank: int, rng: Mapping[str, bytes]) -> EstContext:
        """Return the context at step 0: the given states "rng/...", nothing consumed."""
        return cls(virtual_rank, 0, {**rng, LOADER: LoaderPosition().pack()})

    @property
    def position(self) -> LoaderPosition:
        part = self.parts.get(LOADER)
        if part is None:
            raise ContextError(
                f"the context of EST {self.virtual_rank} at step {self.step} has no loader position",
                virtual_rank=self.virtual_rank,
                step=self.step,
            )
        try:
            return LoaderPosition(*wire.unpack_loader(part))
        except ValueError as error:
            raise ContextError(
                f"the context of EST {self.virtual_rank} at step {self.step} is corrupted: {error}",
                virtual_rank=self.virtual_rank,
                step=self.step,
            ) from error

    @property
    def rng(self) -> Parts:
        """States of the EST's own generators, in the form of `elastane.rng.Generators.restore`."""
        return {name: state for name, state in self.parts.items() if name.startswith("rng/")}

    def stream(self, number: int) -> Parts:
        """Return the states "rng/..." and "item/..." last stored for data-worker stream `number`; empty if
        never stored.

        They belong to an earlier epoch until the stream's first batch of this one is consumed.
        """
        prefix = f"stream/{number}/"
        return {
            name.removeprefix(prefix): state for name, state in self.parts.items() if name.startswith(prefix)
        }

    @property
    def items(self) -> Parts:
        """The script's registered items by name."""
        return {
            name.removeprefix("item/"): value
            for name, value in self.parts.items()
            if name.startswith("item/") and not name.startswith("item/@")
        }

    def next(self, *changes: Mapping[str, bytes]) -> EstContext:
        """Return the context of the next step, with these parts replaced or added."""
        return EstContext(self.virtual_rank, self.step + 1, _merged(self.parts, changes))

    def merge(self, delta: EstContext) -> EstContext:
        """Return the complete context of which `delta` holds the parts changed since this one.

        Raises ContextError if `delta` is of another EST, or of an earlier step.
        """
        if delta.virtual_rank != self.virtual_rank or delta.step < self.step:
            raise ContextError(
                f"a delta of EST {delta.virtual_rank} at step {delta.step} does not fit "
                f"the context of EST {self.virtual_rank} at step {self.step}",
                virtual_rank=self.virtual_rank,
                step=self.step,
            )
        return EstContext(self.virtual_rank, delta.step, _merged(self.parts, [delta.parts]))

    def delta(self, base: EstContext) -> Parts:
        """Return the parts that differ from those of `base`.

        Fast if unchanged parts are the same bytes objects.
        """
        known = base.parts.get
        return {name: part for name, part in self.parts.items() if known(name) != part}

    def to_proto(self, base: EstContext | None = None) -> common_pb2.EstContext:
        """Return the wire form: complete, or with `base` only the changes since it."""
        parts = self.parts if base is None else self.delta(base)
        return wire.context_to_proto(self.virtual_rank, self.step, parts, delta=base is not None)

    @classmethod
    def from_proto(cls, message: common_pb2.EstContext) -> EstContext:
        """Inverse of `to_proto`. A delta is returned with its few parts, for `merge`."""
        try:
            parts = wire.context_from_proto(message)
        except ValueError as error:
            raise ContextError(
                f"the context of EST {message.virtual_rank} cannot be read: {error}",
                virtual_rank=message.virtual_rank,
                step=message.step,
            ) from error
        return cls(message.virtual_rank, message.step, parts)


def stream_parts(number: int, states: Mapping[str, bytes]) -> Parts:
    """Return the context parts for the states "rng/..." and "item/..." of data-worker stream `number`."""
    return {f"stream/{number}/{name}": state for name, state in states.items()}


def _merged(parts: Mapping[str, bytes], changes: Iterable[Mapping[str, bytes]]) -> Parts:
    merged = dict(parts)
    for change in changes:
        merged.update(change)
    return merged
