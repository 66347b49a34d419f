"""Track the script's code between two epochs as this process runs it: its random draws, and for which ESTs.

A stock rank runs that code with its own generators. Here it runs once, with the generators and registered
items of the worker's first EST (EST 0 on the leader), whose resulting states are kept. The other ESTs would
have drawn as many raw values, each from its own state: `report` says how many, and adds facts this worker
knows that the number does not show. The master compares the reports of all members and decides (its
intervals.py); `closed` then builds the contexts that the epoch starts from. Nothing is decided here.

    begin (the loader loop is over) ── the script's code ── end (the next loop begins) ── report ── closed

The code before the first epoch, from `prepare` on, runs with EST 0's generators in every worker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

from elastane.context import EstContext
from elastane.registry import ITEM, Registry
from elastane.rng import Generators, Parts
from elastane.rng_draws import DRAWS_MAX, advance, draws_between
from elastane.runtime.asked import Asked, BlockTrace, how_asked
from elastane.runtime.rng_watch import RngWatch, refuse_rank_seed
from elastane_common.errors import EXIT_REFUSED, ElastaneError
from elastane_proto.v1 import ring_pb2

Change = int | bytes

_BEHIND: Final = f"{ITEM}@interval"
_STEP: Final = struct.Struct("<q")


class IntervalError(ElastaneError):
    """The draws of the code between two epochs cannot be determined for every EST."""

    code = "ELA330"
    exit_code = EXIT_REFUSED


class BuffersChangedError(ElastaneError):
    """A buffer was written to between two epochs: training would not see the change."""

    code = "ELA331"
    exit_code = EXIT_REFUSED


def is_open(contexts: Mapping[int, EstContext], step: int) -> bool:
    """True if contexts of `step`, the first of an epoch, are from before the code that precedes it."""
    return any(context.parts.get(_BEHIND) != _STEP.pack(step) for context in contexts.values())


def closed(contexts: Mapping[int, EstContext], decided: ring_pb2.IntervalDecided) -> dict[int, EstContext]:
    """Return the contexts after the code, as decided; those already after it are unchanged."""
    changes: dict[str, Change] = {
        change.name: change.draws if change.WhichOneof("change") == "draws" else change.state
        for change in decided.changes
    }
    result = {}
    for rank, context in contexts.items():
        if context.parts.get(_BEHIND) != _STEP.pack(decided.step):
            context = _behind(context, _changed(context.parts, changes), decided.step)
        result[rank] = context
    return result


def reported_against(contexts: Mapping[int, EstContext], step: int) -> dict[int, EstContext]:
    """Return the bases of the deltas in which contexts after `step` are reported, from those before it.

    For a context from after the code the base is empty, so that it is sent in full: a store that lost its
    latest writes has the context before the code, and a delta on top of that would lack the code's draws.
    """
    mark = _STEP.pack(step)
    return {
        rank: EstContext(rank, context.step, {}) if context.parts.get(_BEHIND) == mark else context
        for rank, context in contexts.items()
    }


class Interval:
    """One worker's view of the interval. Used by the training thread.

    `leads`: this worker hosts EST 0, or no ring has formed yet.
    """

    def __init__(self, generators: Generators, registry: Registry) -> None:
        self._generators = generators
        self._registry = registry
        self._watch = RngWatch(self._uneven, self._seeded)
        self._trace = BlockTrace(self._block_left)
        self._running = False
        self._step = -1
        self._contexts: dict[int, EstContext] = {}
        self._first = 0
        self._leads = False
        #: States at the last fold, and states right after seeding of generators seeded since then.
        self._anchor: Parts = {}
        self._fresh: Parts = {}
        self._changes: dict[str, Change] = {}
        #: ESTs whose parts are known in full: all hosted ones, once the code has run for each.
        self._whole: dict[int, Parts] = {}
        self._asked = False
        self._doubt: Asked | None = None
        #: An answer that the script keeps in a variable; it makes all later intervals doubtful.
        self._kept: Asked | None = None
        self._uncertain = self._fault = ""
        #: Above 0: current draws do not affect the other ESTs.
        self._aside = 0
        #: The EST that the script's code runs for.
        self.rank = 0
        #: The same while `each_rank` runs, else None.
        self.est_step: int | None = None

    # ------------------------------------------------------------------ from loop to loop

    def begin(self, step: int, contexts: Mapping[int, EstContext], *, leads: bool) -> None:
        """Begin the script's code before `step`, with the states of the first of these ESTs."""
        self.end()
        self._step, self._contexts, self._leads = step, dict(contexts), leads
        self.rank = self._first = min(contexts)
        self._changes, self._whole, self._fresh = {}, {}, {}
        self._asked, self._doubt, self._uncertain, self._fault = False, self._kept, "", ""
        self._aside = 0
        parts = contexts[self._first].parts
        self._generators.restore(parts)
        self._registry.restore(parts)
        self._anchor = self._states()
        self._running = True
        self._watch.start()

    def entered(self, *, leads: bool) -> None:
        """Note that the first ring has formed; from now on only one worker leads."""
        self._leads = leads

    def end(self) -> None:
        """End the interval, because the next loop begins or the script ends: the states are final."""
        if self._running:
            self._trace.stop()
            self._fold()
            self._running = False
            self._watch.stop()

    def report(self, generation: int, step: int) -> ring_pb2.IntervalReport:
        """Build this worker's report of the code before `step`."""
        report = ring_pb2.IntervalReport(generation=generation, step=step)
        if step != self._step:
            return report
        report.passed, report.as_leader, report.asked = True, self._leads, self._asked
        report.uncertain, report.fault = self._uncertain, self._fault
        for name, change in sorted(self._changes.items()):
            if isinstance(change, int):
                report.changes.add(name=name, draws=change)
            else:
                report.changes.add(name=name, state=change)
        whole, report.each_rank = dict(self._whole), bool(self._whole)
        if self._leads:
            # As a state, because draws in blocks that only EST 0 runs are in no number of draws.
            whole[0] = self._anchor
        for rank, parts in sorted(whole.items()):
            before = self._contexts[rank]
            report.contexts.append(_behind(before, parts, step).to_proto(before))
        return report

    # ------------------------------------------------------------------ what the script does

    def asked(self, name: str, frame: FrameType | None) -> None:
        """Note that the script reads `job.is_leader` or `job.rank` in `frame`.

        Raises the refusal of a seed derived from the rank.
        """
        if frame is None or self._aside:
            return
        how = how_asked(frame)
        if how.seeds and name == "rank":
            raise refuse_rank_seed(how.place)
        if how.harmless:
            return
        if how.kept and (self._leads or name == "rank"):
            self._kept = self._kept or how
        if not self._running:
            return
        self._asked = True
        if how.block is None:
            if self._leads or name == "rank":
                self._fold()
                self._doubt = self._doubt or how
        elif self._leads:
            self._fold()
            if self._trace.follow(frame, how.block):
                self._aside += 1
            else:
                self._doubt = self._doubt or how

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Ignore draws inside the block; the caller restores the states."""
        fresh = dict(self._fresh)
        self._aside += 1
        try:
            yield
        finally:
            self._aside -= 1
            self._fresh = fresh

    def each_rank(self) -> Iterator[int]:
        """Yield each hosted EST's rank with that EST's states in place."""
        self._fold()
        if not self._whole:
            self._whole = {
                rank: _changed(context.parts, self._changes) for rank, context in self._contexts.items()
            }
        self._whole[self._first] = self._anchor
        self._aside += 1
        through = False
        try:
            for rank in sorted(self._whole):
                self._put(self._whole[rank])
                self.rank = self.est_step = rank
                yield rank
                self._whole[rank] = self._states()
            through = True
        finally:
            if not through:
                self._faulty(f"the loop over job.each_rank() was left at rank {self.rank}")
            self._aside -= 1
            self.rank, self.est_step = self._first, None
            self._put(self._whole[self._first])
            self._anchor, self._fresh = self._states(), {}

    # ------------------------------------------------------------------ computing the changes

    def _fold(self) -> None:
        """Add the draws since the last fold to the changes of all ESTs."""
        states = self._states()
        changes = {
            name: self._change(name, self._anchor[name], state)
            for name, state in states.items()
            if state != self._anchor[name] or name in self._fresh
        }
        # 0 draws change nothing. A reseeded generator's change is a state, kept even if it is the old one.
        changes = {name: change for name, change in changes.items() if change != 0}
        self._anchor, self._fresh = states, {}
        if not changes:
            return
        if self._doubt is not None and not self._uncertain:
            self._uncertain = f"what is drawn depends on the answer requested in {self._doubt.place}"
        for name, change in changes.items():
            before = self._changes.get(name, 0)
            both = isinstance(change, int) and isinstance(before, int)
            # A state that all ESTs share stays shared after equal draws, so it is kept as a state.
            self._changes[name] = before + change if both else states[name]  # type: ignore[operator]
        for rank, parts in self._whole.items():
            self._whole[rank] = states if rank == self._first else _changed(parts, changes)

    def _change(self, name: str, before: bytes, after: bytes) -> Change:
        fresh = self._fresh.get(name)
        if fresh is not None and (
            not name.startswith("rng/") or draws_between(name, fresh, after) is not None
        ):
            return after
        if name.startswith(ITEM):
            if len({context.parts[name] for context in self._contexts.values()}) > 1 or self._whole:
                self._faulty(
                    f"the registered item {name.removeprefix(ITEM)!r} was changed, but each rank has a "
                    "separate one"
                )
            return after
        draws = draws_between(name, before, after)
        if draws is None:
            self._faulty(
                f"{name.removeprefix('rng/')}'s generator had its state set, keeps one of a pair of normal "
                f"values, or drew more than {DRAWS_MAX:,} values"
            )
            return after
        return draws

    def _block_left(self) -> None:
        """Handle the end of a block that only EST 0 runs: its draws do not affect the others."""
        self._aside -= 1
        self._anchor, self._fresh = self._states(), {}
        if 0 in self._whole:
            self._whole[0] = self._anchor

    def _uneven(self, place: str) -> None:
        if not self._aside:
            self._faulty(f"how many values are drawn depends on the generator's state in {place}")

    def _seeded(self, names: tuple[str, ...], done: bool) -> None:
        if self._aside:
            return
        if not done:
            drawn = [
                name
                for name, state in self._generators.capture().items()
                if state != self._fresh.get(name, self._anchor[name])
                or (name not in self._fresh and name in self._changes)
            ]
            if drawn:
                self._faulty(
                    f"a generator is seeded after {drawn[0].removeprefix('rng/')} has drawn:"
                    " the seed may have been drawn, too"
                )
            return
        states = self._generators.capture()
        self._fresh |= {name: states[name] for name in names if name in states}

    def _faulty(self, why: str) -> None:
        if self._doubt is not None and self._leads:
            # it may concern EST 0 alone; the other workers' reports tell
            self._uncertain = self._uncertain or why
        else:
            self._fault = self._fault or why

    def _states(self) -> Parts:
        return self._generators.capture() | self._registry.capture()

    def _put(self, parts: Mapping[str, bytes]) -> None:
        self._generators.restore(parts)
        self._registry.restore(parts)


def _changed(parts: Mapping[str, bytes], changes: Mapping[str, Change]) -> Parts:
    """Return generators and items after the changes, including the unchanged ones."""
    states = {name: part for name, part in parts.items() if name.startswith("rng/") or _is_item(name)}
    for name, change in changes.items():
        states[name] = advance(name, parts[name], change) if isinstance(change, int) else change
    return states


def _is_item(name: str) -> bool:
    return name.startswith(ITEM) and not name.startswith(f"{ITEM}@")


def _behind(context: EstContext, states: Mapping[str, bytes], step: int) -> EstContext:
    """Return the same context with these states, marked as after the code before `step`."""
    return EstContext(
        context.virtual_rank, context.step, {**context.parts, **states, _BEHIND: _STEP.pack(step)}
    )
