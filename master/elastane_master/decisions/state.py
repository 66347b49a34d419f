"""Everything the decisions of one job depend on, as plain values.

The whole state is these structs and the task queues; a snapshot is their MessagePack form. Nothing here
decides anything: the modules named in the comments do.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Literal, cast

import msgspec

from elastane_master.decisions.checkpoints import CheckpointBook
from elastane_master.decisions.contexts import ContextTable
from elastane_master.decisions.cost import CostBook
from elastane_master.decisions.datasets import DatasetBook
from elastane_master.decisions.effects import Member
from elastane_master.decisions.events import Capacity, JobSettings, Signature, StateDetail
from elastane_master.decisions.sentinel import SentinelBook
from elastane_master.decisions.steps import StepBook

Phase = Literal["waiting", "running", "suspended", "max_wait_exceeded", "succeeded", "failed", "cancelled"]
OVER: frozenset[Phase] = frozenset({"succeeded", "failed", "cancelled"})
"""Phases in which no worker is wanted any more."""
HALTED: frozenset[Phase] = frozenset({"suspended", "max_wait_exceeded"})
"""Phases in which no worker is wanted until Resume."""

Stage = Literal["none", "preparing", "loading", "running"]


class WorkerRecord(msgspec.Struct):
    """A worker that attends, or is awaited after the master restarted.

    joined_order: grows with each joining. applied_step, holds_state: its weights, as far as they are believed
    (claims.py). asked_generation, ready_generation: the newest it got Prepare for, and answered.
    trainer_at: when its trainer last showed life; None before its first ring. between_since: when it
    went into user code between two steps; None inside a step. held_until: it died too often and stands by
    until then, for good where that is infinite (quarantine.py). leave_by: shortly before its node is taken
    away, where that is known.
    """

    worker: str
    session: str
    role: Literal["ring", "tasks"]
    joined_at: float
    joined_order: int
    host: str = ""
    pid: int = 0
    store_address: str = ""
    applied_step: int = 0
    holds_state: bool = False
    asked_generation: int = 0
    ready_generation: int = 0
    trainer_at: float | None = None
    between_since: float | None = None
    draining: bool = False
    drain_reason: str = ""
    drain_sent: bool = False
    awaited: bool = False
    reason: str = ""
    held_until: float | None = None
    capacity: Capacity = "spot"
    leave_by: float | None = None
    rendezvous_key: bytes = b""


class RingState(msgspec.Struct, dict=True):
    """The ring, and the change of membership in flight (ring.py).

    stage: none (no ring), preparing (Ready is awaited), loading (the leader loads a checkpoint), running; it
    began at `since`. gone: members that left since the ring was decided; gone_applied: the step up to
    which each had applied, or its script ended. order: seats of the last ring
    that had members. planned: decided at a step boundary. planned_from: members of the ring before
    whose last Prepared carries the change, empty once the ring goes. rebuild_due: when the ring is
    formed anew because a member's collective broke. put_off: why the ring must change once the return
    grace is over. stalled_since: the first Go after which no step was prepared. unblocked_at: when a member
    last went into or came back from user code.
    """

    generation: int = 0
    stage: Stage = "none"
    members: tuple[Member, ...] = ()
    gone: tuple[str, ...] = ()
    gone_applied: dict[str, int] = {}
    reason: str = ""
    since: float = 0.0
    order: tuple[str, ...] = ()
    planned: bool = False
    planned_from: tuple[str, ...] = ()
    resume_step: int = 0
    donors: tuple[int, ...] = ()
    receivers: tuple[int, ...] = ()
    rebuild_due: float | None = None
    rebuild_reason: str = ""
    breaks: int = 0
    put_off: str = ""
    stalled_since: float | None = None
    unblocked_at: float = 0.0

    def names(self) -> tuple[str, ...]:
        """The worker ids of the members that are not gone, in the ring's order."""
        return tuple(member.worker for member in self.members if member.worker not in self.gone)

    def member(self, worker: str) -> Member | None:
        """The worker's place, or None; a newcomer of a gone member's name has none."""
        if worker in self.gone:
            return None
        return self._places().get(worker)

    def _places(self) -> dict[str, Member]:
        """The members by worker id: asked for at every message, so nothing is searched for in the tuple."""
        members, places = self.__dict__.get("places", (None, {}))
        if members is not self.members:
            places = {member.worker: member for member in self.members}
            self.__dict__["places"] = (self.members, places)
        return cast("dict[str, Member]", places)


class EarlyEnd(msgspec.Struct, frozen=True):
    """Where a worker's script left its loop over epochs, and the digest of its state."""

    step: int
    epoch: int
    place: str
    state_digest: int | None = None


class Drift(msgspec.Struct):
    """Members of the ring that report `step` hold different state. details: what each one's consists of."""

    generation: int
    step: int
    since: float
    details: dict[str, tuple[StateDetail, ...]] = {}


class JobState(msgspec.Struct):
    """One job.

    original: the settings as created; `settings` differ after a Scale. revision: counts every change.
    decided_at: when the last of them was decided; the clock of the next master goes on from there.
    join_due: until then joins are gathered. grace_until: until then members of the ring may return after a
    restart of the master. history_generation, fenced_claims: see claims.py. finished: applied step at
    which each member's script ended; final_digests: of their state then. early_ends: members of the ring
    whose scripts left their loop over epochs; ended_step: with which step the training ended, once all had
    (endings.py). drift: members differ, and were asked in what (fingerprints.py). failures, failed_step,
    failed_generation: script errors in a row at one step. requests: operators' request ids that took
    effect, oldest first. deaths: when ring workers died, by worker id (quarantine.py). cost: what
    workers have cost (cost.py). waiting_since: since when too few workers are there, where that is
    bounded; wait_until: then those there are released (waiting.py). sentinel: see sentinel.py. processes: of
    each worker id, in the order they came (processes.py).
    """

    name: str
    original: JobSettings
    settings: JobSettings
    created_at: float
    phase: Phase = "waiting"
    reason: str = "no worker has joined yet"
    revision: int = 0
    decided_at: float = 0.0
    signature: Signature | None = None
    workers: dict[str, WorkerRecord] = {}
    joined_count: int = 0
    ring: RingState = msgspec.field(default_factory=RingState)
    steps: StepBook = msgspec.field(default_factory=StepBook)
    contexts: ContextTable = msgspec.field(default_factory=ContextTable)
    checkpoints: CheckpointBook = msgspec.field(default_factory=CheckpointBook)
    datasets: DatasetBook = msgspec.field(default_factory=DatasetBook)
    join_due: float | None = None
    grace_until: float | None = None
    suspending: bool = False
    history_generation: int = 0
    fenced_claims: dict[str, int] = {}
    finished: dict[str, int] = {}
    final_digests: dict[str, int] = {}
    early_ends: dict[str, EarlyEnd] = {}
    ended_step: int | None = None
    drift: Drift | None = None
    failures: int = 0
    failed_step: int = -1
    failed_generation: int = -1
    requests: dict[str, str] = {}
    deaths: dict[str, tuple[float, ...]] = {}
    cost: CostBook = msgspec.field(default_factory=CostBook)
    waiting_since: float | None = None
    wait_until: float | None = None
    sentinel: SentinelBook = msgspec.field(default_factory=SentinelBook)
    processes: dict[str, tuple[bytes, ...]] = {}

    @property
    def workers_needed(self) -> int:
        """How many workers a ring has at least; all of them where recovery is fixed."""
        settings = self.settings
        if (
            self.finished
        ):  # members whose scripts ended are not missing: the rest may finish in a smaller ring
            return 1
        if settings.recovery == "fixed":
            return min(settings.workers_max or settings.ests, settings.ests)
        return settings.workers_min

    @property
    def total_steps(self) -> int:
        """Steps of the whole training; 0 while the script has not said it."""
        if self.ended_step is not None:
            return self.ended_step
        return self.signature.steps if self.signature else 0

    def begins_epoch(self, step: int) -> bool:
        """Whether `step` is the first of an epoch of several: False while the script has not said it."""
        return (
            self.signature is not None
            and self.signature.steps_per_epoch > 1
            and (step % self.signature.steps_per_epoch == 0)
        )

    @property
    def steps_unsaved(self) -> int:
        """Committed steps that no checkpoint holds: they are done again once no worker holds the state."""
        return max(0, self.steps.committed - max(self.checkpoints.saved_step, 0))

    @property
    def all_committed(self) -> bool:
        """Every step of the training is committed: the members only have to end."""
        return 0 < self.total_steps <= self.steps.committed

    def ring_workers(self) -> list[WorkerRecord]:
        """Workers that attend to train, in the order they joined."""
        return [record for record in self.workers.values() if record.role == "ring" and not record.awaited]

    def awaited(self) -> list[WorkerRecord]:
        """Workers of the ring that may still return after the master's restart."""
        if self.grace_until is None:  # asked at every Ready: nobody is looked at where nobody can be
            return []
        return [record for record in self.workers.values() if record.awaited and record.role == "ring"]

    def active_members(self) -> list[WorkerRecord]:
        """The ring's members that have not ended, in the ring's order."""
        return [self.workers[name] for name in self.ring.names()]

    def lagging(self, lags: Callable[[WorkerRecord], bool]) -> bool:
        """Whether `lags` is true of an active member.

        Asked at every message of a step, each of which clears one member: the search goes on where it
        found somebody the last time, and so passes each member once a step and not N times.
        """
        ring, count = self.ring, len(self.ring.members)
        first = ring.__dict__.get("lagging", 0)
        for place in chain(range(first, count), range(min(first, count))):
            worker = ring.members[place].worker
            if worker not in ring.gone and lags(self.workers[worker]):
                ring.__dict__["lagging"] = place
                return True
        return False
