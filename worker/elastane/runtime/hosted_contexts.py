"""Contexts of the ESTs that a worker hosts: received with Go, reported with each step. Pure.

    worker      `reported`: what has changed since the last report  ──▶  StepReport
    master      translate_session ──▶ decisions/step_boundary: merged, and stored when those of all N are in
                (decisions/contexts); when the ring changes, each member gets those of its ESTs  ──▶  Go
    worker      `enter`: the contexts at the resumed step

The value is `elastane.context.EstContext`, its form on the wire `elastane_proto.contexts`.

The first step of an epoch has the script's code between two epochs before it. The master stores the contexts
from before that code, and beside them how the code changed the generators of each EST. A context from after
the code has the step in an item of its own, so that the change is made once, wherever the context has been
meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from elastane.context import EstContext, Parts
from elastane.rng_draws import advance
from elastane_proto.contexts import context_to_proto
from elastane_proto.generator_positions import find_position
from elastane_proto.v1 import common_pb2, ring_pb2

Change = int | bytes
"""Effect of the code on a generator or item: its number of raw draws, or its new state."""

_BEHIND: Final = "item/@interval"
_STEP: Final = struct.Struct("<q")


@dataclass
class HostedContexts:
    """Contexts of this worker's ESTs, by virtual rank."""

    #: At the start of the current step.
    now: dict[int, EstContext] = field(default_factory=dict)
    #: Bases of the deltas in reports of the current step, as the master has them.
    known: dict[int, EstContext] = field(default_factory=dict)
    #: Both before the last step that was applied.
    _before: tuple[dict[int, EstContext], dict[int, EstContext]] = field(default_factory=lambda: ({}, {}))

    def enter(self, go: ring_pb2.Go) -> None:
        """Adopt the contexts that the master sends with Go. Raises ContextError."""
        self.take(_received(go.contexts), go.resume_step, go.interval if go.HasField("interval") else None)

    def decide(self, decided: ring_pb2.IntervalDecided, step: int) -> None:
        """Change the contexts as the code before `step` does; those that come with the decision are whole.

        Raises ContextError.
        """
        self.take(self.now | _received(decided.contexts), step, decided)

    def reported(self, after: Mapping[int, EstContext], *, positions: bool) -> list[common_pb2.EstContext]:
        """Return what is reported of the contexts after a step: the parts that the master does not have.

        positions: the master reads positions of generators, which most states are sent as.
        """
        return [
            _delta(self.known[rank], context) if positions else context.to_proto(self.known[rank])
            for rank, context in after.items()
        ]

    def applied(self, after: dict[int, EstContext]) -> None:
        """Adopt the contexts after a step that was applied; the master has them once it is prepared."""
        self._before = self.now, self.known
        self.now = self.known = after

    def take_back(self) -> None:
        """Return to the contexts before the last step that was applied, which is lost."""
        self.now, self.known = self._before

    def take(self, known: dict[int, EstContext], step: int, decided: ring_pb2.IntervalDecided | None) -> None:
        """Adopt the master's contexts at the start of `step`, changed by the code that `decided` is about."""
        self.now = known if decided is None else closed(known, decided)
        self.known = reported_against(known, step)

    def is_open(self, step: int) -> bool:
        """True if contexts of `step`, the first of an epoch, are from before the code that precedes it."""
        return any(not _is_behind(context, step) for context in self.now.values())


def _delta(base: EstContext, context: EstContext) -> common_pb2.EstContext:
    parts, positions = context.delta(base), {}
    for name in list(parts):
        position = find_position(name, base.parts.get(name, b""), parts[name])
        if position is not None:
            positions[name] = position
            del parts[name]
    return context_to_proto(context.virtual_rank, context.step, parts, delta=True, positions=positions)


def _received(messages: Iterable[common_pb2.EstContext]) -> dict[int, EstContext]:
    return {message.virtual_rank: EstContext.from_proto(message) for message in messages}


def closed(contexts: Mapping[int, EstContext], decided: ring_pb2.IntervalDecided) -> dict[int, EstContext]:
    """Return the contexts after the code, as decided; those already after it are unchanged."""
    changes: dict[str, Change] = {
        change.name: change.draws if change.WhichOneof("change") == "draws" else change.state
        for change in decided.changes
    }
    result = {}
    for rank, context in contexts.items():
        if not _is_behind(context, decided.step):
            context = behind(context, changed(context.parts, changes), decided.step)
        result[rank] = context
    return result


def reported_against(contexts: Mapping[int, EstContext], step: int) -> dict[int, EstContext]:
    """Return the bases of the deltas in which contexts after `step` are reported, from those before it.

    For a context from after the code the base is empty, so that it is sent in full: a store that lost its
    latest writes has the context before the code, and a delta on top of that would lack the code's draws.
    """
    return {
        rank: EstContext(rank, context.step, {}) if _is_behind(context, step) else context
        for rank, context in contexts.items()
    }


def behind(context: EstContext, states: Mapping[str, bytes], step: int) -> EstContext:
    """Return the same context with these states, marked as after the code before `step`."""
    return EstContext(
        context.virtual_rank, context.step, {**context.parts, **states, _BEHIND: _STEP.pack(step)}
    )


def changed(parts: Mapping[str, bytes], changes: Mapping[str, Change]) -> Parts:
    """Return generators and items after the changes, including the unchanged ones."""
    states = {name: part for name, part in parts.items() if name.startswith("rng/") or _is_item(name)}
    for name, change in changes.items():
        states[name] = advance(name, parts[name], change) if isinstance(change, int) else change
    return states


def _is_behind(context: EstContext, step: int) -> bool:
    return context.parts.get(_BEHIND) == _STEP.pack(step)


def _is_item(name: str) -> bool:
    return name.startswith("item/") and not name.startswith("item/@")
