"""Serves one job: events in, decisions made durable, effects out.

    submit, deliver --> machine.handle (at once, one at a time) --> log.append
                                                                       | durable
                        streams, watchers, answers  <-- effects, in order

The machine is ahead of the store by what is in flight, and nobody outside may act on that: effects
wait until everything appended before them is durable. What needs no storing waits for what was
decided before it, so a worker gets its messages in the order in which they were decided.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import msgspec
import structlog

from elastane_master import records
from elastane_master.admission import require_admissible
from elastane_master.clock import Clock
from elastane_master.decisions.effects import Close, Commit, Decision, Note, Send, TaskCommit
from elastane_master.decisions.events import (
    AnyEvent,
    ByeReported,
    Rejection,
    StepReported,
    StreamLost,
    Tick,
    WorkerJoined,
)
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.state import HALTED
from elastane_master.errors import MachineBroken
from elastane_master.limits import Limits, clip, require_room
from elastane_master.metrics.tally import JobTally
from elastane_master.records import StoredCommit, StoredEvent, StoredNote
from elastane_master.ring_tracing import RingTracing
from elastane_master.sessions import Session, WorkerMessage
from elastane_master.signals import Signal
from elastane_master.store.errors import JobDamaged, LogClosed, StoreError
from elastane_master.store.log import JobLog, LogListener
from elastane_master.task_waiters import TaskWaiters, Wanted
from elastane_shards.tasks import QueueStatus

logger = structlog.get_logger(__name__)

RECENT_NOTES = 1000
"""Notes kept in memory for those who follow; older ones are read from the store."""

CONFIRM_SECONDS = 5.0
"""How long a refusal waits for a store that does not answer."""

PLAN_SECONDS = 0.005
"""The next deadline is looked up at most so often: decisions come in thousands a second."""

PLAN_SECONDS_PER_SESSION = 40e-6
"""Twenty times what the look costs for each worker: at most a twentieth of the time goes into it."""

SMALL_RECORD_BYTES = 1024
"""An event since the last snapshot is kept as its record where that is small: it takes a fourth of what the
object does. The contexts in a large one are the state's own, so that the object costs less."""

BROKEN_SECONDS = 1.0
"""After a Tick that could not be decided, the next is tried so much later."""


_WITHOUT_TASKS = HALTED | {"failed", "cancelled"}

_WANTED: dict[QueueStatus, Wanted] = {
    QueueStatus.HAS_TODO: "one",
    QueueStatus.WAIT: "none",
    QueueStatus.COMPLETE: "all",
}


class HostOwner:
    """What a host tells its owner; every method may be overridden."""

    def host_failed(self, host: JobHost, error: StoreError) -> None:
        """The job cannot be served any more: it was taken over, or its log broke."""

    def store_reachable(self, host: JobHost, reachable: bool) -> None:
        """The store stopped, or started again, to answer."""

    async def revive_store(self) -> None:
        """Awaited after each failed attempt to write."""

    async def store_mended(self, host: JobHost) -> None:
        """Awaited once the store has a job again of which it had lost some. May raise redis errors."""


class JobHost(LogListener):
    """One job, served. Used from one event loop.

    changed: the job's state changed, durably. noted: there are new notes. tally: what came to pass since
    this master serves the job. tracing: of changes of the ring, where that is asked for.
    """

    def __init__(
        self,
        machine: JobMachine,
        log: JobLog,
        clock: Clock,
        owner: HostOwner,
        note_sequence: int = 0,
        limits: Limits | None = None,
        tracing: RingTracing | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.tracing = tracing
        self.watchers = 0
        self.machine = machine
        self.tally = JobTally(machine.state)
        self.log = log
        self.clock = clock
        self.sessions: dict[str, Session] = {}
        self.liveness = Liveness()
        self.changed = Signal()
        self.noted = Signal()
        self.recent_notes: deque[StoredNote] = deque(maxlen=RECENT_NOTES)
        self.task_waiters = TaskWaiters(self._waiters_wanted)
        self._loop = asyncio.get_running_loop()
        self._asked_at = self._loop.time()
        self.stopping = False
        self.paused: Rejection | None = None
        self._ends: dict[Callable[[Rejection], None], None] = {}
        # In the order they began, so that a simulated run repeats.
        self._streams: dict[Session, None] = {}
        self._owner = owner
        self._note_sequence = note_sequence
        self._outbox: deque[tuple[int, Callable[[], None]]] = deque()
        self._base = machine.snapshot()
        self._since_base: list[StoredEvent | bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._looks_soon = False

    @property
    def name(self) -> str:
        return self.log.job

    @property
    def _where(self) -> dict[str, object]:
        """What every log line about the job has."""
        state = self.machine.state
        return {"job": self.name, "generation": state.ring.generation, "step": state.steps.committed}

    def asked_for(self) -> None:
        """Somebody wants something of the job."""
        self._asked_at = self._loop.time()

    def is_unused(self, seconds: float) -> bool:
        """Whether for so long nobody has asked for the job, nothing changed in it, and nobody follows it."""
        if self.sessions or self._streams or self._ends or self.watchers or self.task_waiters.count:
            return False
        if self.stopping or self.paused is not None or self.log.pending is not None:
            return False
        unasked_seconds = self._loop.time() - self._asked_at
        unchanged_seconds = self.clock() - self.machine.state.decided_at
        return self.log.reachable and min(unasked_seconds, unchanged_seconds) >= seconds

    def start(self, event: AnyEvent | None = None, note: Note | None = None) -> Awaitable[None]:
        """Starts to serve, with `event` and `note` as the first; resolves when all is durable."""
        self.log.start(self.snapshot, self)
        self.log.snapshot_soon()
        if event is not None:
            self._decide(event)
        if note is not None:
            self._store(StoredEvent(self.clock(), Tick()), Decision([note]))
        self._plan(self._plan_seconds)  # a new job may be waited for, and nobody come
        return asyncio.shield(self.log.append(None))

    async def stop(self, refusal: Rejection) -> None:
        """Ends every stream with `refusal`, without calling anybody dead, and writes what is pending."""
        self.stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._end_streams(refusal)
        await self.log.close()

    def pause(self, refusal: Rejection) -> None:
        """Sends everybody away, without calling anybody dead; what is being written goes on."""
        self.paused = refusal
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._looks_soon = None, False
        self._end_streams(refusal)
        for end in list(self._ends):
            end(refusal)
        for session in list(self.sessions.values()):
            self._forget(session)

    def resume(self, event: AnyEvent) -> None:
        """Serves again after `pause`, `event` first: as after a restart, every session is gone."""
        self.paused = None
        self._decide(event)
        self._plan(self._plan_seconds)

    async def abandon(self, refusal: Rejection) -> None:
        """Stops without writing: the job is another master's."""
        self.stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._end_streams(refusal)
        await self.log.abandon()

    def _end_streams(self, refusal: Rejection) -> None:
        """Ends every session, and wakes all who follow: they find that the job is not served any more."""
        for session in self._streams:
            session.end(refusal)
        if self.tracing is not None:
            self.tracing.stopped("not served any more")
        self.changed.announce()
        self.noted.announce()
        self.task_waiters.wake_all()

    # ---------------------------------------------------------------- events in

    async def submit(self, event: AnyEvent) -> object:
        """Decides on a request; returns its result once all it rests on is durable.

        Raises Rejection, MachineBroken, and StoreError when the job is not served any more.
        """
        self.require_taking()
        try:
            result, durable = self.begin(event)
        except Rejection:
            await self.confirm()
            raise
        if durable is not None:
            # The write is shared by all who wait for it: a caller who leaves must not cancel it.
            await asyncio.shield(durable)
        return result

    def require_taking(self) -> None:
        """Raises Rejection while no request can be taken."""
        if self.paused is not None:
            raise self.paused
        if not self.log.reachable and self.log.appended - self.log.durable > self.limits.backlog_requests_max:
            raise Rejection(
                "store_unavailable",
                "the store does not answer, and too many requests wait for it",
                hint="ask again later",
                limit="backlog_requests_max",
                maximum=self.limits.backlog_requests_max,
            )

    def begin(self, event: AnyEvent) -> tuple[object, asyncio.Future[None] | None]:
        """Decides on a request at once: its result, and what must resolve before anybody is told of it.

        None: nothing must. The future is shared: await it through `asyncio.shield`. Raises as `submit`; a
        Rejection, too, may be told only after `confirm`.
        """
        decision = self._decide(event)
        return decision.result, self.log.pending

    async def confirm(self) -> None:
        """Returns once the store has said, after this call, that the job is still this master's.

        A refusal rests on the state as any answer does: a master that lost the job without knowing it yet
        would refuse what the new one knows to be right. Raises StoreError when the job is not served any
        more, and Rejection when the store does not answer for `CONFIRM_SECONDS`.
        """
        if self.stopping or self.log.failure is not None:
            raise self.log.failure or LogClosed(f"the log of job {self.name} is closed", job=self.name)
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                await asyncio.shield(self.log.append(None))
        except TimeoutError:
            raise Rejection(
                "store_unavailable",
                "the store does not answer: whether this master may refuse the request is not known",
                hint="ask again in a moment",
            ) from None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Counts who watches the job inside the block; raises Rejection when there are too many."""
        maximum = self.limits.watchers_per_job_max
        require_room("watchers_per_job_max", self.watchers, maximum, "watchers of the job")
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    @contextlib.contextmanager
    def ending(self, end: Callable[[Rejection], None]) -> Iterator[None]:
        """Calls `end` when the job is paused inside the block: for streams that wait for the store."""
        self._ends[end] = None
        try:
            yield
        finally:
            del self._ends[end]

    def open_session(self, make_event: Callable[[str], WorkerJoined]) -> Session:
        """Decides on a Hello; an older stream of the same worker is closed.

        make_event: gives the event of the Hello for a session's id. Raises as `submit`.
        """
        session = Session("", self.limits.session_messages_max)
        event = make_event(session.id)
        session.worker = event.worker
        previous = self.sessions.get(event.worker)
        if previous is None:
            maximum = self.limits.sessions_per_job_max
            require_room("sessions_per_job_max", len(self.sessions), maximum, "workers of the job")
        self.sessions[event.worker] = session
        try:
            decision = self._decide(event, previous)
        except BaseException:  # whatever it was, the old stream stays the worker's
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

    def heard(self, session: Session) -> None:
        """A message came, whatever it says."""
        if self.sessions.get(session.worker) is session:
            self.liveness.heard(session.worker, session.id, self.clock())

    def deliver(self, session: Session, event: AnyEvent) -> None:
        """Decides on a message of a worker's stream. Raises as `submit`."""
        if self.sessions.get(session.worker) is not session:
            return
        self._decide(event)
        if isinstance(event, ByeReported):
            self._forget(session)
            self._when_durable(session.end)

    def traceparent(self, generation: int) -> str:
        """The parent of what workers tell of this generation's change; empty: it is not traced."""
        return self.tracing.traceparent(generation) if self.tracing is not None else ""

    def close_session(self, session: Session, reason: str) -> None:
        """The stream is gone; without a Bye before it, the worker is dead."""
        if self.sessions.get(session.worker) is not session:
            return  # its end was decided on before: by a Bye, or by a Close
        if not self.stopping:
            try:
                self._decide(StreamLost(session.worker, session.id, reason))
            except (Rejection, StoreError, MachineBroken) as error:
                logger.warning(
                    "a lost stream could not be recorded",
                    **self._where,
                    worker=session.worker,
                    error=str(error),
                )
        self._forget(session)
        session.end(Rejection("evicted", reason, hint="rejoin as a newcomer"))

    def stream_over(self, session: Session, reason: str) -> None:
        """Nothing can be sent down the stream any more."""
        self._streams.pop(session, None)
        self.close_session(session, reason)

    def _forget(self, session: Session) -> None:
        self.liveness.forget(session.worker, session.id)
        if self.sessions.get(session.worker) is session:
            del self.sessions[session.worker]

    # ---------------------------------------------------------------- decisions

    def _decide(self, event: AnyEvent, previous: Session | None = None) -> Decision:
        """Decides on one event and sees to its effects. previous: see `_bind`."""
        if self.log.failure is not None:
            raise self.log.failure
        if self.stopping:
            # The last snapshot would hold what was decided, and the history would not.
            raise LogClosed(f"the log of job {self.name} is closed", job=self.name)
        require_admissible(self.limits, self.machine, event)
        stored = StoredEvent(self.clock(), event)
        try:
            decision = self.machine.handle(event, stored.now)
        except Rejection:
            raise
        except Exception as error:  # whatever it is, half a decision must not stay
            logger.exception("an event could not be decided", **self._where, kind=type(event).__name__)
            self._rebuild()
            raise MachineBroken(f"{type(event).__name__} could not be decided: {error!r}") from error
        if isinstance(event, StepReported):
            self.tally.reported(event.step, stored.now)
        self._store(stored, decision)
        if self.tracing is not None:
            self._trace(self.tracing, event, decision)
        for effect in decision.effects:
            self._bind(effect, event, previous)
        if decision.durable:
            self._when_durable(self.changed.announce)
            self.task_waiters.check()
            self._plan(self._plan_seconds)
        return decision

    def _store(self, stored: StoredEvent, decision: Decision) -> None:
        history, notes = [], []
        for effect in decision.effects:
            if isinstance(effect, TaskCommit):
                history.append(records.encode(StoredCommit(stored.now, effect)))
            elif isinstance(effect, Note):
                self._note_sequence += 1
                self.tally.noted(effect, stored.event, self.machine.state, stored.now)
                effect = self._clipped(effect)
                notes.append(StoredNote(self._note_sequence, stored.now, effect))
            elif isinstance(effect, Commit):
                self.tally.committed(effect, stored.now)
                history.append(records.encode(StoredCommit(stored.now, effect)))
        if decision.durable or history or notes:
            record = records.encode(stored) if decision.durable else None
            if record is not None:
                self._since_base.append(record if len(record) <= SMALL_RECORD_BYTES else stored)
            self.log.append(record, history, [(note.sequence, records.encode(note)) for note in notes])
        if notes:
            self._when_durable(partial(self._show, notes))

    def _trace(self, tracing: RingTracing, event: AnyEvent, decision: Decision) -> None:
        """Before the decision's messages are planned: they say whose children the workers' spans are."""
        told = tracing.decided(event, decision.effects, self.machine.state, self.tally.last_cause)
        if told is not None:
            self._when_durable(told)

    def _clipped(self, note: Note) -> Note:
        """The note with its texts cut to what is kept of them: workers and scripts write into them."""
        characters = self.limits.note_characters_max
        texts = (note.reason, *note.facts.values())
        if max(map(len, texts)) <= characters:
            return note
        facts = {name: clip(value, characters) for name, value in note.facts.items()}
        return msgspec.structs.replace(note, reason=clip(note.reason, characters), facts=facts)

    def _bind(self, effect: object, event: AnyEvent, previous: Session | None) -> None:
        """Plans an effect for the session that is meant now, whatever sessions there are when it is due.

        A Close in answer to a Hello means the worker's `previous` session, not the one that just began.
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

    def _rebuild(self) -> None:
        """Takes back a decision that failed half-way: the state is made again from what was decided."""
        machine = JobMachine.restore(self._base)
        for kept in self._since_base:
            stored = records.decode_event(kept) if isinstance(kept, bytes) else kept
            machine.handle(stored.event, stored.now)
        self.machine = machine

    def snapshot(self) -> bytes:
        """The state after all that was decided."""
        self._base = self.machine.snapshot()
        self._since_base.clear()
        return self._base

    # ---------------------------------------------------------------- effects out

    def _when_durable(self, action: Callable[[], None]) -> None:
        """Does `action` when all appended so far is durable, after what was planned before it."""
        if not self._outbox and self.log.durable >= self.log.appended:
            action()
        else:
            self._outbox.append((self.log.appended, action))

    def _send(self, session: Session, message: WorkerMessage) -> None:
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
        return _WANTED[queue.status(self.clock())]

    # ---------------------------------------------------------------- time

    @property
    def _plan_seconds(self) -> float:
        return max(PLAN_SECONDS, PLAN_SECONDS_PER_SESSION * len(self.sessions))

    def _plan(self, delay_seconds: float) -> None:
        """Looks for deadlines after the delay (PLAN_SECONDS or more), or earlier if that is planned."""
        if self._looks_soon:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_seconds
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        if not self.stopping and self.paused is None:
            self._timer = loop.call_at(at, self._look_for_deadlines)
            self._looks_soon = delay_seconds <= self._plan_seconds

    def _look_for_deadlines(self) -> None:
        # The handle that fired is forgotten first: uvloop rounds to milliseconds, and one that fired
        # early would look like one still to come.
        self._timer, self._looks_soon = None, False
        now = self.clock()
        timeout_seconds = self.machine.state.settings.heartbeat_timeout_seconds
        try:
            for worker, session_id in self.liveness.silent(now, timeout_seconds):
                self._fall_silent(worker, session_id, timeout_seconds)
            deadline = self.machine.next_deadline()
            if deadline is not None and deadline <= now:
                self._decide(Tick())
                deadline = self.machine.next_deadline()
        except StoreError:
            return  # the job is not served any more
        except (Rejection, MachineBroken) as error:
            logger.error("a deadline could not be decided on", **self._where, error=str(error))
            self._plan(BROKEN_SECONDS)
            return
        silence = self.liveness.next_deadline(timeout_seconds)
        delays = [at - now for at in (deadline, silence) if at is not None]
        if delays:
            self._plan(max(self._plan_seconds, min(delays)))

    def _fall_silent(self, worker: str, session_id: str, timeout_seconds: float) -> None:
        session = self.sessions.get(worker)
        if session is None or session.id != session_id:
            self.liveness.forget(worker, session_id)
            return
        self.close_session(session, f"no heartbeat for {timeout_seconds:g} s")

    # ---------------------------------------------------------------- from the log

    def durable(self, position: int) -> None:
        while self._outbox and self._outbox[0][0] <= position:
            self._outbox.popleft()[1]()

    def reachable(self, reachable: bool) -> None:
        self._owner.store_reachable(self, reachable)

    def failed(self, error: StoreError) -> None:
        self._outbox.clear()
        reason = "damaged" if isinstance(error, JobDamaged) else "fenced"
        self._end_streams(Rejection(reason, str(error), hint=error.hint, **error.facts))
        if not self.stopping:
            self._owner.host_failed(self, error)

    async def revive(self) -> None:
        await self._owner.revive_store()

    async def mended(self) -> None:
        await self._owner.store_mended(self)
