"""Ring changes as tracing spans. Pure: takes decisions and times, returns operations on spans.

    ring change     from its cause until a step of the new ring is committed; parent of workers' spans
      collect       from the cause until the change is decided: joins are gathered, a step boundary awaited
      prepare       Prepare is sent, Ready is awaited; each Ready is an event. In a planned change members
      first
                      apply the prepared step
      load          nobody held the state: the leader loads a checkpoint, or keeps what the script built
      resume        Go is sent: group, hand-over, and the first step, until all have applied it

A change that is disturbed before the ring trains again continues in the same trace. Times are seconds
since the Unix epoch. `ring_tracing` carries the operations out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from elastane_master.decisions.effects import Commit, Effect, Load, Member, Note, Send
from elastane_master.decisions.events import AnyEvent, MasterStarted, ReadyReported
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import HALTED, OVER, JobState
from elastane_master.jobs.limits import clip
from elastane_proto.history.events import RingAnnounced, RingFormed
from elastane_proto.history.fold import Cause, Ring, RingFold

REASON_CHARACTERS = 500
MEMBERS_MAX = 100
"""Maximum number of members that a span names; receivers reject larger attributes."""

Value = str | bool | int | float | Sequence[str]
Attributes = dict[str, Value]
Key = tuple[int, str]
"""A span that is open: the change's number, and the span's name."""

ROOT = "ring change"


@dataclass(frozen=True)
class Begin:
    """A span begins. generation: its workers get this span as parent; 0: none do."""

    key: Key
    parent: Key | None
    at: float
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True)
class Covers:
    """Workers of this generation get `key` as the parent of their spans."""

    key: Key
    generation: int


@dataclass(frozen=True)
class Event:
    """An event within a span."""

    key: Key
    name: str
    at: float
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True)
class End:
    """A span is over."""

    key: Key
    at: float
    attributes: Attributes = field(default_factory=dict)


Operation = Begin | Covers | Event | End


@dataclass
class _Change:
    """A change in progress. phase: its open child span. formed: Go is sent."""

    number: int
    generation: int
    phase: str = ""
    formed: bool = False

    @property
    def root(self) -> Key:
        return self.number, ROOT


class RingSpans:
    """The changes of one job's ring. state: at the time when this master begins to serve it."""

    def __init__(self, job: str, state: JobState) -> None:
        self._job = job
        self._members = state.ring.members
        self._generation = state.ring.generation
        self._count = 0
        self._open: list[_Change] = []
        self._fold = RingFold()

    def decided(
        self, event: AnyEvent, effects: Iterable[Effect], state: JobState, cause: Cause, now: float
    ) -> list[Operation]:
        """Process a decision that led to `state`. cause: of the last change of the ring in it."""
        operations: list[Operation] = []
        if self._open and isinstance(event, ReadyReported):
            operations += self._ready(event, state, now)
        elif isinstance(event, MasterStarted) and state.ring.changing:
            operations += self._taken_over(state, now)
        for effect in effects:
            if isinstance(effect, Note):
                operations += self._noted(effect, state, cause, now)
            elif isinstance(effect, Commit):
                operations += self._committed(effect, now)
            elif isinstance(effect, Send) and isinstance(effect.message, Load) and self._open:
                operations += self._phase(self._open[-1], "load", now, {"elastane.worker": effect.worker})
        if self._open and (state.phase in OVER or state.phase in HALTED):
            operations += self.stopped(state.phase, now)
        return operations

    def stopped(self, outcome: str, now: float) -> list[Operation]:
        """End all changes: the job is over, or this master no longer serves it."""
        operations = [one for change in self._open for one in self._end(change, outcome, now)]
        self._open.clear()
        return operations

    # ---------------------------------------------------------------- what came to pass

    def _noted(self, note: Note, state: JobState, cause: Cause, now: float) -> list[Operation]:
        event = note.event
        if isinstance(event, RingAnnounced) and note.generation != state.ring.generation:
            return []  # decided anew before it was announced
        self._fold.take(note.dated(now))
        if isinstance(event, RingFormed):
            return self._formed(event, now)
        if isinstance(event, RingAnnounced) and self._fold.ring is not None:
            return self._changed(note, self._fold.ring, state, cause, now)
        return []

    def _changed(self, note: Note, ring: Ring, state: JobState, cause: Cause, now: float) -> list[Operation]:
        members, planned = state.ring.members, ring.planned
        before, self._members = self._members, members
        attributes: Attributes = {
            "elastane.ring.generation": note.generation,
            "elastane.ring.reason": clip(note.reason, REASON_CHARACTERS),
            "elastane.ring.planned": planned,
            "elastane.ring.workers": len(members),
            "elastane.ring.members": [member.worker for member in members[:MEMBERS_MAX]],
            "elastane.ring.ests_moved": moved(before, members),
        }
        if self._open and not planned and members:
            # The ring has not committed a step since the last change: the same outage.
            change = self._open[-1]
            change.generation, change.formed = note.generation, False
            operations: list[Operation] = [
                Event(change.root, "decided anew", now, attributes),
                Covers(change.root, note.generation),
            ]
        else:
            began = _began(ring, cause, before, members)
            attributes |= {"elastane.ring.cause": cause, "elastane.ring.generation_before": self._generation}
            change, operations = self._begin(note.generation, began, attributes)
            if began < now:
                collect = (change.number, "collect")
                operations += [Begin(collect, change.root, began), End(collect, now)]
        self._generation = note.generation
        if members:
            return operations + self._phase(change, "prepare", now)
        self._open.remove(change)
        return operations + self._end(change, "no ring", now)

    def _taken_over(self, state: JobState, now: float) -> list[Operation]:
        """Begin spans for a change during which the previous master was lost, with its spans."""
        attributes: Attributes = {
            "elastane.ring.generation": state.ring.generation,
            "elastane.ring.reason": clip(state.ring.reason, REASON_CHARACTERS),
            "elastane.ring.cause": "other",
            "elastane.ring.taken_over": True,
        }
        change, operations = self._begin(state.ring.generation, now, attributes)
        return operations + self._phase(
            change, "prepare" if state.ring.stage is Stage.PREPARING else "load", now
        )

    def _ready(self, event: ReadyReported, state: JobState, now: float) -> list[Operation]:
        change, record = self._open[-1], state.workers.get(event.worker)
        believed = record is not None and record.ready_generation == event.generation
        if not believed or event.generation != change.generation or change.formed:
            return []
        attributes: Attributes = {
            "elastane.worker": event.worker,
            "elastane.step": event.applied_step,
            "elastane.holds_state": event.holds_state,
        }
        return [Event((change.number, change.phase), "ready", now, attributes)]

    def _formed(self, event: RingFormed, now: float) -> list[Operation]:
        if not self._open:
            return []
        change = self._open[-1]
        change.formed = True
        attributes: Attributes = {
            "elastane.ring.resume_step": event.resume_step,
            "elastane.ring.donors": event.donors,
        }
        return self._phase(change, "resume", now, attributes)

    def _committed(self, commit: Commit, now: float) -> list[Operation]:
        over = [change for change in self._open if change.generation <= commit.generation]
        for change in over:
            self._open.remove(change)
        attributes: Attributes = {"elastane.step": commit.step}
        return [one for change in over for one in self._end(change, "completed", now, attributes)]

    # ---------------------------------------------------------------- spans

    def _begin(self, generation: int, at: float, attributes: Attributes) -> tuple[_Change, list[Operation]]:
        self._count += 1
        change = _Change(self._count, generation)
        self._open.append(change)
        begin = Begin(change.root, None, at, {"elastane.job": self._job, **attributes})
        return change, [begin, Covers(change.root, generation)]

    def _phase(
        self, change: _Change, name: str, now: float, attributes: Attributes | None = None
    ) -> list[Operation]:
        """Begin the next phase of a change and end the previous one."""
        operations: list[Operation] = [End((change.number, change.phase), now)] if change.phase else []
        change.phase = name
        return [*operations, Begin((change.number, name), change.root, now, attributes or {})]

    def _end(
        self, change: _Change, outcome: str, now: float, attributes: Attributes | None = None
    ) -> list[Operation]:
        operations: list[Operation] = [End((change.number, change.phase), now)] if change.phase else []
        attributes = {"elastane.ring.outcome": outcome, **(attributes or {})}
        return [*operations, End(change.root, now, attributes)]


def _began(ring: Ring, cause: Cause, before: Sequence[Member], members: Sequence[Member]) -> float:
    """Return the time of the change's cause, if recorded."""
    old, new = ({member.worker for member in one} for one in (before, members))
    if cause == "scale":
        return ring.marks.get("", (cause, ring.decided))[1]
    kind = "join" if cause == "start" else cause
    concerned = new - old if kind == "join" else old - new
    marks = [ring.marks[worker] for worker in concerned if worker in ring.marks]
    return min((at for mark, at in marks if mark == kind), default=ring.decided)


def moved(before: Iterable[Member], after: Iterable[Member]) -> int:
    """Return the number of ESTs that moved from one worker to another."""
    hosts = {rank: member.worker for member in before for rank in range(member.start, member.end)}
    return sum(
        hosts.get(rank, member.worker) != member.worker
        for member in after
        for rank in range(member.start, member.end)
    )
