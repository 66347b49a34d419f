"""Serves one job: events in, durable decisions, effects out.

Handles sessions of workers, watchers and deadlines; `durable_server` has the part common to all servers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import structlog

from elastane_master.decisions import stragglers
from elastane_master.decisions.effects import Close, Commit, Decision, Note, Send, TaskCommit, WorkerMessage
from elastane_master.decisions.events import (
    AnyEvent,
    AppliedReported,
    ByeReported,
    Rejection,
    StepReported,
    StreamLost,
    Tick,
    WorkerJoined,
)
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.slots import leasing
from elastane_master.decisions.state import HALTED
from elastane_master.errors import MachineBroken
from elastane_master.jobs import records
from elastane_master.jobs.admission import require_admissible
from elastane_master.jobs.captures import Captures
from elastane_master.jobs.clock import Clock
from elastane_master.jobs.durable_server import DurableServer
from elastane_master.jobs.last_steps import LastSteps, ToldStep
from elastane_master.jobs.limits import Limits, clip, require_room
from elastane_master.jobs.recent_notes import RecentNotes
from elastane_master.jobs.records import StoredCommit, StoredEvent, StoredNote
from elastane_master.jobs.resource_series import ResourceSeries
from elastane_master.jobs.ring_tracing import RingTracing
from elastane_master.jobs.sessions import Session
from elastane_master.jobs.slot_sessions import SlotSessions
from elastane_master.jobs.task_waiters import TaskWaiters, Wanted
from elastane_master.jobs.transactions import Transactions
from elastane_master.jobs.worker_output import WorkerOutputs
from elastane_master.metrics.counters import JobCounters
from elastane_master.signals import Signal
from elastane_master.store.errors import JobDamaged, StoreError
from elastane_master.store.log import JobLog
from elastane_proto.history.events import RingAnnounced
from elastane_scheduler.autoscaling.stragglers import Report, StragglerWatch
from elastane_shards.tasks import QueueStatus

logger = structlog.get_logger(__name__)

RECENT_NOTES = 1000
"""Number of notes kept in memory for watchers; older ones are read from the store."""

PLAN_SECONDS = 0.005
"""Minimum interval between checks for deadlines: there may be thousands of decisions per second."""

PLAN_SECONDS_AFTER_REPORT = 0.05
"""Minimum interval after a step's report: the deadlines that it moves are those of steps, seconds away."""

PLAN_SECONDS_PER_SESSION = 40e-6
"""Minimum interval per session: 20 times the cost of its check, so checks take at most 5 % of the time."""

BROKEN_SECONDS = 1.0
"""Delay before the next attempt after a Tick that could not be decided."""


_STORED_ALONE = (TaskCommit, Commit, Note)
"""Effects that are sent to nobody."""

_WITHOUT_TASKS = HALTED | {"failed", "cancelled"}

_WANTED: dict[QueueStatus, Wanted] = {
    QueueStatus.HAS_TODO: "one",
    QueueStatus.WAIT: "none",
    QueueStatus.COMPLETE: "all",
}


class JobServerOwner:
    """Callbacks from a server to its owner; every method may be overridden."""

    def server_failed(self, server: JobServer, error: StoreError) -> None:
        """The job can no longer be served: another master took it over, or its log broke."""

    def store_reachable(self, server: DurableServer[Any], reachable: bool) -> None:
        """The store stopped or resumed answering."""

    async def revive_store(self) -> None:
        """Awaited after each failed attempt to write."""

    async def store_mended(self, server: JobServer) -> None:
        """Awaited once lost data of a job is restored in the store. May raise redis errors."""


class JobServer(DurableServer[AnyEvent]):
    """One job being served. Used from one event loop.

    changed: announces durable changes of the job's state. noted: announces new notes. counters: those since
    this master began to serve the job. tracing: spans of ring changes, if enabled. figures: each worker's
    latest metrics, serialized, oldest report first. stragglers: watches the workers' rates.
    outputs: last lines of its workers. captures: under way. resources: used by its
    workers over time. last_steps: in a pipeline, times of recent
    blocks. slots: sessions of its parameter servers.
    """

    def __init__(
        self,
        machine: JobMachine,
        log: JobLog,
        clock: Clock,
        owner: JobServerOwner,
        note_sequence: int = 0,
        limits: Limits | None = None,
        tracing: RingTracing | None = None,
    ) -> None:
        super().__init__(log, clock, limits)
        self.tracing = tracing
        self.watchers = 0
        self._transactions = Transactions(machine, records.decode_event)
        self.counters = JobCounters(machine.state)
        self.sessions: dict[str, Session[WorkerMessage]] = {}
        self.figures: OrderedDict[str, bytes] = OrderedDict()
        self.liveness = Liveness()
        self.stragglers = StragglerWatch()
        self.last_steps = LastSteps(self.limits.sessions_per_job_max)
        self.outputs = WorkerOutputs(self.limits)
        self.captures = Captures()
        self.resources = ResourceSeries(self.limits.sessions_per_job_max)
        self.changed = Signal()
        self.noted = Signal()
        self.recent_notes = RecentNotes(RECENT_NOTES)
        self.task_waiters = TaskWaiters(self._waiters_wanted)
        self._loop = asyncio.get_running_loop()
        self._asked_at = self._loop.time()
        # Ordered by begin, not a set, so that a simulated run is reproducible.
        self._streams: dict[Session[WorkerMessage], None] = {}
        self._owner = owner
        self._note_sequence = note_sequence
        self._clip = partial(clip, characters=self.limits.note_characters_max)
        self._timer: asyncio.TimerHandle | None = None
        self._looks_soon = False
        self.slots = SlotSessions(
            self._decide, self._when_durable, self.clock, self.limits, lambda: self._plan(self._plan_seconds)
        )

    @property
    def machine(self) -> JobMachine:
        """The job's machine. Do not keep it: another takes its place when a decision is rolled back."""
        return self._transactions.machine

    @property
    def name(self) -> str:
        return self.log.job

    def asked_for(self) -> None:
        """Record that the job was requested, which delays its closing."""
        self._asked_at = self._loop.time()

    def is_unused(self, seconds: float) -> bool:
        """True if for `seconds` nobody requested or follows the job and nothing in it changed."""
        if (
            self.sessions
            or self._streams
            or self.slots.streams
            or self._ends
            or self.watchers
            or self.task_waiters.count
        ):
            return False
        if self.stopping or self.paused is not None or self.log.pending is not None:
            return False
        unasked_seconds = self._loop.time() - self._asked_at
        unchanged_seconds = self.clock() - self.machine.state.decided_at
        return self.log.reachable and min(unasked_seconds, unchanged_seconds) >= seconds

    def start(self, event: AnyEvent | None = None, note: Note | None = None) -> Awaitable[None]:
        """Start serving, with `event` and `note` as the first entries; resolves when all is durable."""
        self.log.start(self._transactions.snapshot, self)
        self.slots.stored(self.machine.state.slots)
        # Replaces the records that were just replayed, so that the next takeover need not replay them.
        self.log.snapshot_soon()
        if event is not None:
            self._decide(event)
        if note is not None:
            self._store(StoredEvent(self.clock(), Tick()), Decision([note]), awaited=True)
        self._plan(self._plan_seconds)  # a new job may wait for workers that never come
        return asyncio.shield(self.log.append(None))

    async def stop(self, refusal: Rejection) -> None:
        """End every stream with `refusal`, without declaring workers dead, and write what is pending."""
        self.stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._end_streams(refusal)
        await self.log.close()

    def pause(self, refusal: Rejection) -> None:
        """End all streams without declaring workers dead; pending writes continue."""
        self.paused = refusal
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._looks_soon = None, False
        self._end_streams(refusal)
        for end in list(self._ends):
            end(refusal)
        for session in list(self.sessions.values()):
            self._forget(session)
        self.slots.forget_all()

    def resume(self, event: AnyEvent) -> None:
        """Serve again after `pause`, deciding `event` first. As after a restart, no session is left."""
        self.paused = None
        self._decide(event)
        self._plan(self._plan_seconds)

    async def abandon(self, refusal: Rejection) -> None:
        """Stop without writing: the job belongs to another master."""
        self.stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._end_streams(refusal)
        await self.log.abandon()

    def _end_streams(self, refusal: Rejection) -> None:
        """End every session and wake all followers, which then find that the job is no longer served."""
        for session in self._streams:
            session.end(refusal)
        self.slots.end_all(refusal)
        if self.tracing is not None:
            self.tracing.stopped("not served any more")
        self.changed.announce()
        self.noted.announce()
        self.task_waiters.wake_all()

    # ---------------------------------------------------------------- events in

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count a watcher of the job inside the block. Raises Rejection when there are too many."""
        maximum = self.limits.watchers_per_job_max
        require_room("watchers_per_job_max", self.watchers, maximum, "watchers of the job")
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    def open_session(self, make_event: Callable[[str], WorkerJoined]) -> Session[WorkerMessage]:
        """Decide on a Hello and open its session; an older stream of the same worker is closed.

        make_event: builds the Hello's event for a session id. Raises as `submit`.
        """
        session = Session[WorkerMessage]("", self.limits.session_messages_max)
        event = make_event(session.id)
        session.worker = event.worker
        previous = self.sessions.get(event.worker)
        if previous is None:
            maximum = self.limits.sessions_per_job_max
            require_room("sessions_per_job_max", len(self.sessions), maximum, "workers of the job")
        self.sessions[event.worker] = session
        try:
            decision = self._decide(event, previous)
        except BaseException:  # after any error the old stream remains the worker's
            del self.sessions[event.worker]
            if previous is not None:
                self.sessions[event.worker] = previous
            raise
        self._streams[session] = None
        self.liveness.heard(session.worker, session.id, self.clock())
        self._plan(self._plan_seconds)
        if previous is not None:
            self.liveness.forget(previous.worker, previous.id)
        if previous is not None and not any(isinstance(effect, Close) for effect in decision.effects):
            previous.end(Rejection("evicted", f"another stream of worker {event.worker} began"))
        return session

    def heard(self, session: Session[WorkerMessage], held_seconds: float = 0.0) -> None:
        """Record a sign of life: a message of any kind arrived. held_seconds: for which a relay kept it."""
        if self.sessions.get(session.worker) is session:
            self.liveness.heard(session.worker, session.id, self.clock() - held_seconds)

    def keep_figures(self, session: Session[WorkerMessage], figures: bytes) -> None:
        """Keep a worker's latest figures for display, beyond its session."""
        if self.sessions.get(session.worker) is session:
            self.figures[session.worker] = figures
            self.figures.move_to_end(session.worker)
            # Attending workers report often, so the first to go are those of workers that left long ago.
            if len(self.figures) > self.limits.sessions_per_job_max:
                self.figures.popitem(last=False)

    def last_step(self) -> dict[str, ToldStep]:
        """Return the newest step of a pipeline whose blocks are known, by worker; {} if there is none."""
        state = self.machine.state
        stages = state.pipeline.plan.stages if state.pipeline.plan is not None else ()
        workers = {worker for stage in stages for worker in stage.replicas}
        return self.last_steps.newest(workers, state.ring.generation)

    def judged(
        self, session: Session[WorkerMessage], event: AppliedReported, report: Report
    ) -> AppliedReported:
        """Return a heartbeat with whether its worker is a straggler. report: of its figures."""
        if self.sessions.get(session.worker) is not session:
            return event
        ring = self.machine.state.ring
        verdict = self.stragglers.heard(session.worker, session.id, report, ring.names, ring.generation)
        if verdict is None:
            return event
        return msgspec.structs.replace(
            event, straggler=verdict.cause or stragglers.NONE, rate_ratio=verdict.ratio
        )

    def deliver(self, session: Session[WorkerMessage], event: AnyEvent) -> None:
        """Decide on a message from a worker's stream. Raises as `submit`."""
        if self.sessions.get(session.worker) is not session:
            return
        self._decide(event)
        if isinstance(event, ByeReported):
            self._forget(session)
            self._when_durable(session.end)

    def traceparent(self, generation: int) -> str:
        """Parent for workers' spans of this generation's ring change; empty if it is not traced."""
        return self.tracing.traceparent(generation) if self.tracing is not None else ""

    def close_session(self, session: Session[WorkerMessage], reason: str) -> None:
        """Handle the end of a stream. Without a Bye before it, the worker counts as dead."""
        if self.sessions.get(session.worker) is not session:
            return  # its end was already decided: by a Bye, or by a Close
        if not self.stopping:
            try:
                self._decide(StreamLost(session.worker, session.id, reason))
            except (Rejection, StoreError, MachineBroken) as error:
                logger.warning(
                    "a lost stream could not be recorded",
                    **self.machine.facts,
                    worker=session.worker,
                    error=str(error),
                )
        self._forget(session)
        session.end(Rejection("evicted", reason, hint="join again as a new worker"))

    def stream_over(self, session: Session[WorkerMessage], reason: str) -> None:
        """Handle a stream to which nothing can be sent any more."""
        self._streams.pop(session, None)
        self.close_session(session, reason)

    def _forget(self, session: Session[WorkerMessage]) -> None:
        self.liveness.forget(session.worker, session.id)
        self.stragglers.forget(session.worker, session.id)
        if self.sessions.get(session.worker) is session:
            del self.sessions[session.worker]

    # ---------------------------------------------------------------- decisions

    def _decide(self, event: AnyEvent, previous: Session[WorkerMessage] | None = None) -> Decision:
        """Decide on one event, store it and schedule its effects. previous: see `_bind`."""
        self._require_deciding()
        require_admissible(self.limits, self.machine, event)
        stored = StoredEvent(self.clock(), event)
        decision: Decision = self._transactions.decide(stored)
        if is_report := isinstance(event, StepReported):
            self.counters.reported(event.step, stored.now)
        # Nothing leaves the master for a report of a step that is not the last one.
        awaited = not is_report or bool(decision.effects)
        self._store(stored, decision, awaited=awaited)
        if self.tracing is not None:
            self._trace(self.tracing, event, decision)
        for effect in decision.effects:
            if not isinstance(effect, _STORED_ALONE):
                self._bind(effect, event, previous)
                self.slots.bind(effect)
        if decision.durable:
            self._when_durable(self.changed.announce, hurries=awaited)
            self.task_waiters.check()
            if not self._looks_soon:
                least_seconds = PLAN_SECONDS_AFTER_REPORT if is_report else 0.0
                self._plan(max(least_seconds, self._plan_seconds))
        return decision

    def _store(self, stored: StoredEvent, decision: Decision, *, awaited: bool) -> None:
        history, notes = [], []
        for effect in decision.effects:
            if isinstance(effect, TaskCommit):
                history.append(records.encode(StoredCommit(stored.now, effect)))
            elif isinstance(effect, Note):
                self._note_sequence += 1
                self.counters.noted(effect, self.machine.state, stored.now)
                effect = effect.cut(self._clip)
                if isinstance(effect.event, RingAnnounced):
                    event = msgspec.structs.replace(effect.event, cause=self.counters.last_cause)
                    effect = msgspec.structs.replace(effect, event=event)
                notes.append(StoredNote(self._note_sequence, stored.now, effect))
            elif isinstance(effect, Commit):
                self.counters.committed(effect, stored.now)
                history.append(records.encode(StoredCommit(stored.now, effect)))
        if decision.durable or history or notes:
            record = records.encode(stored) if decision.durable else None
            if record is not None:
                self._transactions.keep(stored, record)
            events = [(note.sequence, records.encode(note)) for note in notes]
            self.log.append(record, history, events, awaited=awaited)
        if notes:
            self._when_durable(partial(self._show, notes))

    def _trace(self, tracing: RingTracing, event: AnyEvent, decision: Decision) -> None:
        """Trace the decision. Must precede its messages, which carry the parent of workers' spans."""
        action = tracing.decided(event, decision.effects, self.machine.state, self.counters.last_cause)
        if action is not None:
            self._when_durable(action)

    def _bind(self, effect: object, event: AnyEvent, previous: Session[WorkerMessage] | None) -> None:
        """Schedule an effect for the session it refers to now, whichever sessions exist when it is due.

        A Close in answer to a Hello refers to the worker's `previous` session, not to the one that just
        began.
        """
        if isinstance(effect, Send):
            if (session := self.sessions.get(effect.worker)) is not None:
                self._when_durable(partial(self._send, session, effect.message))
        elif isinstance(effect, Close):
            joining = isinstance(event, WorkerJoined) and event.worker == effect.worker
            closed = previous if joining else self.sessions.get(effect.worker)
            if closed is not None:
                self._forget(closed)
                refusal = Rejection(effect.reason, effect.message, hint=effect.hint, worker=effect.worker)
                self._when_durable(partial(closed.end, refusal))

    # ---------------------------------------------------------------- effects out

    def _send(self, session: Session[WorkerMessage], message: WorkerMessage) -> None:
        if not session.answered:
            self.heard(session)
        if not session.put(message):
            self.close_session(session, "it does not read its stream")

    def _show(self, notes: list[StoredNote]) -> None:
        for stored in notes:
            note = stored.note
            logger.info(
                note.kind,
                job=self.name,
                worker=note.worker,
                generation=note.generation,
                step=note.step,
                reason=note.reason,
                facts=note.facts,
            )
        self.recent_notes.extend(notes)
        self.noted.announce()

    def _waiters_wanted(self, dataset: str) -> Wanted:
        queue = self.machine.queues.dynamic.get(dataset)
        if queue is None or self.machine.state.phase in _WITHOUT_TASKS:
            return "all"
        return _WANTED[leasing.status(self.machine.state.slots, queue, dataset, self.clock())]

    # ---------------------------------------------------------------- time

    @property
    def _plan_seconds(self) -> float:
        return max(PLAN_SECONDS, PLAN_SECONDS_PER_SESSION * len(self.sessions))

    def _plan(self, delay_seconds: float) -> None:
        """Schedule a check for deadlines after the delay (PLAN_SECONDS or more) unless an earlier one is."""
        if self._looks_soon:
            return
        at = self._loop.time() + delay_seconds
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        if not self.stopping and self.paused is None:
            self._timer = self._loop.call_at(at, self._look_for_deadlines)
            self._looks_soon = delay_seconds <= self._plan_seconds

    def _look_for_deadlines(self) -> None:
        # Forget the handle that fired first: uvloop rounds to milliseconds, so a handle that fired early
        # would look like one that is still pending.
        self._timer, self._looks_soon = None, False
        now = self.clock()
        timeout_seconds = self.machine.state.settings.heartbeat_timeout_seconds
        try:
            for worker, session_id in self.liveness.silent(now, timeout_seconds):
                self._fall_silent(worker, session_id, timeout_seconds)
            self.slots.end_silent(now, timeout_seconds)
            deadline = self.machine.next_deadline()
            if deadline is not None and deadline <= now:
                self._decide(Tick())
                deadline = self.machine.next_deadline()
        except StoreError:
            return  # the job is no longer served
        except (Rejection, MachineBroken) as error:
            logger.error("a deadline could not be decided on", **self.machine.facts, error=str(error))
            self._plan(BROKEN_SECONDS)
            return
        silence = self.liveness.next_deadline(timeout_seconds)
        silent_ps = self.slots.liveness.next_deadline(timeout_seconds)
        delays = [at - now for at in (deadline, silence, silent_ps) if at is not None]
        if delays:
            self._plan(max(self._plan_seconds, min(delays)))

    def _fall_silent(self, worker: str, session_id: str, timeout_seconds: float) -> None:
        session = self.sessions.get(worker)
        if session is None or session.id != session_id:
            self.liveness.forget(worker, session_id)
        elif not session.answered:
            self.heard(session)
        else:
            self.close_session(session, f"no heartbeat for {timeout_seconds:g} s")

    # ---------------------------------------------------------------- from the log

    def reachable(self, reachable: bool) -> None:
        self._owner.store_reachable(self, reachable)

    def failed(self, error: StoreError) -> None:
        self._outbox.clear()
        reason = "damaged" if isinstance(error, JobDamaged) else "fenced"
        self._end_streams(Rejection(reason, str(error), hint=error.hint, **error.facts))
        if not self.stopping:
            self._owner.server_failed(self, error)

    async def revive(self) -> None:
        await self._owner.revive_store()

    async def mended(self) -> None:
        await self._owner.store_mended(self)
