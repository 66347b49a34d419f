"""The EST contexts from which steps can be started: contexts[step][virtual rank].

A step's contexts are in the table all together or not at all, so that "can the job resume at
this step" is one question. Those of a step are kept until the step is committed, because
until then a member may have to start it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from elastane_master.decisions.events import ContextDelta, Parts, Rejection


class ContextTable(msgspec.Struct):
    """Complete sets of contexts by step, each in the order of virtual ranks."""

    steps: dict[int, list[Parts]] = {}

    def has(self, step: int) -> bool:
        """True when the job can resume at `step`."""
        return step in self.steps

    def ranks(self, step: int, start: int, end: int) -> tuple[tuple[int, Parts], ...]:
        """The contexts of virtual ranks [start, end) at the start of `step`, as Go carries them."""
        return tuple(enumerate(self.steps[step][start:end], start))

    def after(self, step: int, deltas: Iterable[ContextDelta]) -> dict[int, Parts]:
        """Contexts after `step` by virtual rank: each delta laid over the context before it."""
        before = self.steps[step]
        return {
            delta.virtual_rank: {**before[delta.virtual_rank], **delta.parts} if delta.delta else delta.parts
            for delta in deltas
        }

    def put(self, step: int, contexts: Sequence[Parts]) -> None:
        """Stores the complete set of `step`; what a replay gives replaces the first run's."""
        self.steps[step] = list(contexts)

    def reset(self, step: int, contexts: Sequence[Parts]) -> None:
        """Forgets all, stores the complete set of `step`: history goes on from there."""
        self.steps = {step: list(contexts)}

    def drop_below(self, step: int) -> None:
        """Drops the sets that no member needs any more."""
        for old in [kept for kept in self.steps if kept < step]:
            del self.steps[old]

    def bytes(self) -> int:
        """Size of all that is kept, without the names of the parts."""
        return sum(parts_bytes(parts) for contexts in self.steps.values() for parts in contexts)


def parts_bytes(parts: Parts) -> int:
    """Size of one context, without the names of its parts."""
    return sum(len(value) for value in parts.values())


def parts_sha256(parts: Parts) -> str:
    """sha256 over names, lengths and values of the parts, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(f"{name}\0{len(parts[name])}\0".encode())
        digest.update(parts[name])
    return digest.hexdigest()


def require_ranks(deltas: Sequence[ContextDelta], start: int, end: int, *, worker: str) -> None:
    """Raises Rejection unless `deltas` are of exactly the virtual ranks [start, end), ascending."""
    found = [delta.virtual_rank for delta in deltas]
    if found != list(range(start, end)):
        raise Rejection(
            "invalid_argument",
            f"contexts of virtual ranks {found} where those of {start}..{end - 1} belong",
            hint="report the context of each hosted EST once, in ascending order",
            worker=worker,
            start=start,
            end=end,
        )
