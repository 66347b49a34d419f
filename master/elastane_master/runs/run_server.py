"""Serving of the training service: events in, decisions made durable, effects out.

Sessions of runners, deadlines, watchers; what is common to all servers of a state machine is in
`jobs.durable_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import structlog

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.runs.effects import (
    CancelElasticJob,
    CreateElasticJob,
    LaunchFailureCounted,
    RunChanged,
    RunEnded,
    RunnerMessage,
    RunsDecision,
    RunsEffect,
    SendToRunner,
    WriteRecord,
)
from elastane_master.decisions.runs.events import AnyRunsEvent, RunnerJoined, RunnerStreamLost, Tick
from elastane_master.decisions.runs.machine import RunsMachine
from elastane_master.errors import MachineBroken
from elastane_master.jobs.clock import Clock
from elastane_master.jobs.durable_server import DurableServer
from elastane_master.jobs.limits import Limits, require_room
from elastane_master.jobs.sessions import Session
from elastane_master.jobs.transactions import Transactions
from elastane_master.metrics.counters import RunCounters
from elastane_master.runs import records
from elastane_master.runs.log_relay import LogRelay
from elastane_master.runs.records import StoredRunsEvent
from elastane_master.signals import Signal, SignalsByKey
from elastane_master.store.errors import StoreError
from elastane_master.store.log import JobLog
from elastane_proto.v1 import training_pb2

logger = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 5.0
"""Interval of runners' heartbeats."""

SILENT_SECONDS = 20.0
"""A runner silent for longer counts as disconnected; its lease runs on."""

PLAN_SECONDS = 0.02
"""Minimum interval between checks for deadlines."""

BROKEN_SECONDS = 1.0
"""Delay before the next attempt after a Tick that could not be decided."""

RunnerSession = Session[RunnerMessage | training_pb2.RunnerReadLog]


class RunServerOwner:
    """Callbacks from the server to its owner; every method may be overridden."""

    def server_failed(self, server: RunServer, error: StoreError) -> None:
        """The runs can no longer be served: another master took them over, or their log broke."""

    def store_reachable(self, server: RunServer, reachable: bool) -> None:
        """The store stopped or resumed answering."""

    async def revive_store(self) -> None:
        """Awaited after each failed attempt to write."""

    async def store_mended(self) -> None:
        """Awaited once the store has the runs again after a loss. May raise redis errors."""

    def create_job(self, effect: CreateElasticJob) -> None:
        """Create an elastic run's job, unless it is there, and follow it to its end."""

    def cancel_job(self, effect: CancelElasticJob) -> None:
        """Cancel an elastic run's job, and report its end."""

    def write_record(self, effect: WriteRecord) -> None:
        """Write the record of a run that is over, and report that."""


class RunServer(DurableServer[AnyRunsEvent]):
    """The runs and runners being served. Used from one event loop.

    sessions: of the runners that attend, by id. changed: announces durable changes. relay: readers of logs.
    counters: of what happened while this master served the runs.
    """

    def __init__(
        self,
        machine: RunsMachine,
        log: JobLog,
        clock: Clock,
        owner: RunServerOwner,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(log, clock, limits)
        self._transactions = Transactions(machine, records.decode_event)
        self._owner = owner
        self.sessions: dict[str, RunnerSession] = {}
        self._streams: dict[RunnerSession, None] = {}
        self.liveness = Liveness()
        self.changed = Signal()
        self._runs_changed: SignalsByKey[int] = SignalsByKey()
        self.counters = RunCounters()
        self.relay = LogRelay(self.limits.run_log_readers_max)
        self._timer: asyncio.TimerHandle | None = None
        self._watchers = 0

    @property
    def machine(self) -> RunsMachine:
        """The machine. Do not keep it: another takes its place when a decision is rolled back."""
        return self._transactions.machine

    def start(self, event: AnyRunsEvent) -> Awaitable[None]:
        """Start serving, with `event` as the first entry; resolves when all is durable."""
        self.log.start(self._transactions.snapshot, self)
        # Replaces the records that were just replayed, so that the next takeover need not replay them.
        self.log.snapshot_soon()
        self._decide(event)
        return asyncio.shield(self.log.append(None))

    async def stop(self, refusal: Rejection) -> None:
        """End every stream with `refusal`, and write what is pending."""
        self._end_service(refusal)
        self.stopping = True
        await self.log.close()

    def pause(self, refusal: Rejection) -> None:
        """End all streams; pending writes continue."""
        self.paused = refusal
        self._end_service(refusal)
        for session in list(self.sessions.values()):
            self._forget(session)

    def resume(self, event: AnyRunsEvent) -> None:
        """Serve again after `pause`, deciding `event` first. As after a restart, no session is left."""
        self.paused = None
        self._decide(event)

    async def abandon(self, refusal: Rejection) -> None:
        """Stop without writing: the runs belong to another master."""
        self._end_service(refusal)
        self.stopping = True
        await self.log.abandon()

    def require_serving(self) -> None:
        """Raise what ended the service, if anything did."""
        if self.paused is not None:
            raise self.paused
        self._require_deciding()

    @contextlib.contextmanager
    def watching(self, run_id: int) -> Iterator[Signal]:
        """Count a watcher of a run inside the block, and give the signal of the run's durable changes.

        The signal also announces the end of the service. Raises Rejection when there are too many watchers.
        """
        with self._counted("watchers of runs"), self._runs_changed.watching(run_id) as changed:
            yield changed

    @contextlib.contextmanager
    def submitting(self, end: Callable[[Rejection], None]) -> Iterator[None]:
        """Count a stream of submissions inside the block; `end` is called when the service ends.

        Raises Rejection when there are too many, watchers included.
        """
        with self._counted("streams of submissions"), self.ending(end):
            yield

    @contextlib.contextmanager
    def _counted(self, what: str) -> Iterator[None]:
        require_room("run_watchers_max", self._watchers, self.limits.run_watchers_max, what)
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    def _end_service(self, refusal: Rejection) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for end in list(self._ends):
            end(refusal)
        for session in self._streams:
            session.end(refusal)
            self.relay.session_over(session.id)
        self.changed.announce()
        self._runs_changed.announce_all()

    # ---------------------------------------------------------------- runners

    def open_session(self, make_event: Callable[[str], RunnerJoined]) -> RunnerSession:
        """Decide on a Hello and open its session; an older stream of the same runner is closed.

        make_event: builds the Hello's event for a session id. Raises as `submit`.
        """
        self.require_taking()
        session = RunnerSession("", self.limits.session_messages_max)
        event = make_event(session.id)
        session.worker = event.runner_id
        previous = self.sessions.get(event.runner_id)
        self.sessions[event.runner_id] = session
        try:
            self._decide(event)
        except BaseException:  # whatever it was, the old stream stays the runner's
            del self.sessions[event.runner_id]
            if previous is not None:
                self.sessions[event.runner_id] = previous
            raise
        self._streams[session] = None
        self.liveness.heard(session.worker, session.id, self.clock())
        self._plan()
        if previous is not None:
            self.liveness.forget(previous.worker, previous.id)
            self.relay.session_over(previous.id)
            previous.end(Rejection("evicted", f"another stream of runner {event.runner_id} began"))
        return session

    def heard(self, session: RunnerSession) -> None:
        """Record a sign of life: a message of any kind arrived."""
        if self.sessions.get(session.worker) is session:
            self.liveness.heard(session.worker, session.id, self.clock())

    def deliver(self, session: RunnerSession, event: AnyRunsEvent) -> None:
        """Decide on a message from a runner's stream. Raises as `submit`."""
        if self.sessions.get(session.worker) is session:
            self._decide(event)

    def stream_over(self, session: RunnerSession, reason: str) -> None:
        """Handle the end of a stream. The runner keeps its ranks, and its lease runs."""
        self._streams.pop(session, None)
        self.relay.session_over(session.id)
        if self.sessions.get(session.worker) is not session:
            return
        heard_at = self.liveness.last_heard(session.worker, session.id) or self.clock()
        self._forget(session)
        session.end(Rejection("evicted", reason, hint="connect again"))
        if self.stopping or self.paused is not None:
            return
        try:
            self._decide(RunnerStreamLost(session.worker, session.id, heard_at))
        except (Rejection, StoreError, MachineBroken) as error:
            logger.warning("a lost stream could not be recorded", runner=session.worker, error=str(error))

    def _forget(self, session: RunnerSession) -> None:
        self.liveness.forget(session.worker, session.id)
        if self.sessions.get(session.worker) is session:
            del self.sessions[session.worker]

    # ---------------------------------------------------------------- decisions

    def _decide(self, event: AnyRunsEvent) -> RunsDecision:
        self._require_deciding()
        stored = StoredRunsEvent(self.clock(), event)
        decision: RunsDecision = self._transactions.decide(stored)
        if decision.durable:
            record = records.encode(stored)
            self._transactions.keep(stored, record)
            self.log.append(record)
        for effect in decision.effects:
            self._bind(effect)
        if decision.durable:
            self._when_durable(self.changed.announce)
            self._plan()
        return decision

    def _bind(self, effect: RunsEffect) -> None:
        """Schedule an effect for when its decision is durable, and the session that it refers to now."""
        match effect:
            case SendToRunner():
                session = self.sessions.get(effect.runner_id)
                if session is not None and session.id == effect.session:
                    self._when_durable(partial(self._send, session, effect.message))
            case CreateElasticJob():
                self._when_durable(partial(self._owner.create_job, effect))
            case CancelElasticJob():
                self._when_durable(partial(self._owner.cancel_job, effect))
            case RunChanged():
                self._when_durable(partial(self._runs_changed.announce, effect.run_id))
            case WriteRecord():
                self._when_durable(partial(self._owner.write_record, effect))
            case RunEnded():
                self._when_durable(partial(self._run_ended, effect.run_id))
            case LaunchFailureCounted():
                self._when_durable(self._launch_failed)

    def _launch_failed(self) -> None:
        self.counters.launches_failed += 1

    def _run_ended(self, run_id: int) -> None:
        if (run := self.machine.state.runs.get(run_id)) is not None:
            self.counters.ended[run.state] += 1
            logger.info("run ended", run=run_id, owner=run.owner, state=run.state, reason=run.reason)

    def _send(self, session: RunnerSession, message: RunnerMessage) -> None:
        if not session.put(message):
            self.stream_over(session, "it does not read its stream")

    # ---------------------------------------------------------------- time

    def _plan(self) -> None:
        """Schedule the next check for deadlines."""
        if self.stopping or self.paused is not None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + PLAN_SECONDS
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._look_for_deadlines)

    def _look_for_deadlines(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = self.clock()
        try:
            for runner_id, session_id in self.liveness.silent(now, SILENT_SECONDS):
                session = self.sessions.get(runner_id)
                if session is None or session.id != session_id:
                    self.liveness.forget(runner_id, session_id)
                else:
                    self.stream_over(session, f"nothing was heard of it for {SILENT_SECONDS:g} s")
            deadline = self.machine.next_deadline()
            if deadline is not None and deadline <= now:
                self._decide(Tick())
                deadline = self.machine.next_deadline()
        except StoreError:
            return  # the runs are not served any more
        except (Rejection, MachineBroken) as error:
            logger.error("a deadline could not be decided on", error=str(error))
            self._timer = loop.call_later(BROKEN_SECONDS, self._look_for_deadlines)
            return
        silence = self.liveness.next_deadline(SILENT_SECONDS)
        delays = [at - now for at in (deadline, silence) if at is not None]
        if delays and self._timer is None:
            self._timer = loop.call_later(max(PLAN_SECONDS, min(delays)), self._look_for_deadlines)

    # ---------------------------------------------------------------- from the log

    def reachable(self, reachable: bool) -> None:
        self._owner.store_reachable(self, reachable)

    def failed(self, error: StoreError) -> None:
        self._outbox.clear()
        self._end_service(Rejection("fenced", str(error), hint=error.hint, **error.facts))
        if not self.stopping:
            self._owner.server_failed(self, error)

    async def revive(self) -> None:
        await self._owner.revive_store()

    async def mended(self) -> None:
        await self._owner.store_mended()
