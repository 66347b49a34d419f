"""EST contexts from which steps can be started: contexts[step][virtual rank].

A step's contexts are stored all together or not at all, so that "can the job resume at this step" is a single
question. They are kept until the step is committed, because until then a member may have to start it again.

`step_boundary` merges what each member reports into the contexts before the step, and puts the set when all
are in; every Go (`messages.go`) has those of its member's ESTs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from elastane_master.decisions.events import ContextDelta, Parts, Rejection
from elastane_proto.generator_positions import PositionError, at_position


class ContextTable(msgspec.Struct):
    """Complete sets of contexts by step, each in the order of virtual ranks."""

    steps: dict[int, list[Parts]] = {}

    def has(self, step: int) -> bool:
        """True if the job can resume at `step`."""
        return step in self.steps

    def ranks(self, step: int, start: int, end: int) -> tuple[tuple[int, Parts], ...]:
        """Return (virtual rank, context) for [start, end) at the start of `step`, as in Go."""
        return tuple(enumerate(self.steps[step][start:end], start))

    def after(self, step: int, deltas: Iterable[ContextDelta]) -> dict[int, Parts]:
        """Return the contexts after `step` by virtual rank: each delta merged into the context before it.

        Raises Rejection for a generator's position in words that the context before does not have.
        """
        before = self.steps[step]
        return {delta.virtual_rank: _after(before[delta.virtual_rank], delta) for delta in deltas}

    def put(self, step: int, contexts: Sequence[Parts]) -> None:
        """Store the complete set of `step`; a replay's set replaces that of the first run."""
        self.steps[step] = list(contexts)

    def reset(self, step: int, contexts: Sequence[Parts]) -> None:
        """Drop all sets and store that of `step`: history continues from there."""
        self.steps = {step: list(contexts)}

    def drop_below(self, step: int) -> None:
        """Drop the sets that no member needs any more."""
        for old in [kept for kept in self.steps if kept < step]:
            del self.steps[old]

    def bytes(self) -> int:
        """Total size of all sets in bytes, without the names of the parts."""
        return sum(parts_bytes(parts) for contexts in self.steps.values() for parts in contexts)


def _after(before: Parts, delta: ContextDelta) -> Parts:
    """Return the complete context after a delta to `before`."""
    if not delta.delta:
        require_whole([delta])
        return delta.parts
    after = {**before, **delta.parts}
    for name, position in delta.positions.items():
        try:
            after[name] = at_position(name, before.get(name, b""), position)
        except PositionError as error:
            raise Rejection(
                "mismatch",
                f"the context of EST {delta.virtual_rank} cannot be put together: {error}",
                hint="the memory of the worker or of the master may be faulty; start the worker again",
                virtual_rank=delta.virtual_rank,
                part=name,
            ) from None
    return after


def require_whole(deltas: Iterable[ContextDelta]) -> None:
    """Raise Rejection for positions of generators: only a step report's delta follows a stored context."""
    for delta in deltas:
        if delta.positions:
            raise Rejection(
                "invalid_argument",
                f"the context of EST {delta.virtual_rank} has positions of generators",
                hint="positions are read in deltas of a StepReport only; send the states",
                virtual_rank=delta.virtual_rank,
            )


def parts_bytes(parts: Parts) -> int:
    """Size of one context in bytes, without the names of its parts."""
    return sum(len(value) for value in parts.values())


def parts_sha256(parts: Parts) -> str:
    """Return the sha256 over names, lengths and values of the parts, ordered by name."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(f"{name}\0{len(parts[name])}\0".encode())
        digest.update(parts[name])
    return digest.hexdigest()


def require_ranks(deltas: Sequence[ContextDelta], start: int, end: int, *, worker: str) -> None:
    """Raise Rejection unless `deltas` are for exactly the virtual ranks [start, end), ascending."""
    found = [delta.virtual_rank for delta in deltas]
    if found != list(range(start, end)):
        raise Rejection(
            "invalid_argument",
            f"contexts of virtual ranks {found} instead of {start}..{end - 1}",
            hint="report the context of each hosted EST once, in ascending order",
            worker=worker,
            start=start,
            end=end,
        )
