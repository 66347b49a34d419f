"""Sessions of the parameter servers of one job, and distribution of the slot map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from typing import Final

import structlog

from elastane_master.decisions.effects import Decision
from elastane_master.decisions.events import AnyEvent, Rejection
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.slot_book import SlotBook
from elastane_master.decisions.slot_effects import ClosePs, PsMessage, SendMap, SendPs, ToldMap
from elastane_master.decisions.slot_events import PsJoined, PsLeft, PsStreamLost
from elastane_master.decisions.slots.processes import told_map
from elastane_master.errors import MachineBroken
from elastane_master.jobs.clock import Clock
from elastane_master.jobs.limits import Limits, require_room
from elastane_master.jobs.sessions import Session
from elastane_master.metrics.figures import VERDICTS
from elastane_master.metrics.measures import SlotMeasures
from elastane_master.signals import Signal
from elastane_master.store.errors import StoreError
from elastane_proto.v1 import ps_pb2
from elastane_slots.staleness_counts import hot

logger = structlog.get_logger(__name__)

PsSession = Session[PsMessage]

_RATE_SECONDS: Final = 2.0


class SlotSessions:
    """Streams of parameter servers, by id. Used from one event loop.

    decide: decides on an event, stores it and schedules its effects. when_durable: runs an action once all
    decisions so far are stored. look_soon: schedules a check of deadlines. sessions: the current ones.
    streams: all open ones, including replaced ones. figures: latest metrics of each, serialized; push_rates:
    pushes per second, once known. told: the stored and sent map; None: there is none. changed: announces a
    new map.
    """

    def __init__(
        self,
        decide: Callable[[AnyEvent], Decision],
        when_durable: Callable[[Callable[[], None]], None],
        clock: Clock,
        limits: Limits,
        look_soon: Callable[[], None],
    ) -> None:
        self._decide = decide
        self._when_durable = when_durable
        self._clock = clock
        self._limits = limits
        self._look_soon = look_soon
        self._previous: PsSession | None = None
        self._joining = ""
        self.sessions: dict[str, PsSession] = {}
        self.streams: dict[PsSession, None] = {}
        self.figures: dict[str, bytes] = {}
        self.push_rates: dict[str, float] = {}
        self._pushes: dict[str, tuple[float, int]] = {}
        self.liveness = Liveness()
        self.told: ToldMap | None = None
        self.changed = Signal()

    def stored(self, book: SlotBook) -> None:
        """Set the map stored at the time when the job begins to be served."""
        self.told = told_map(book) if book.map is not None else None

    def open(self, make_event: Callable[[str], PsJoined]) -> PsSession:
        """Decide on a Hello and open its session. Raises as a decision does."""
        session = PsSession("", self._limits.session_messages_max)
        event = make_event(session.id)
        session.worker = event.ps
        previous = self.sessions.get(event.ps)
        if previous is None:
            maximum = self._limits.ps_per_job_max
            require_room("ps_per_job_max", len(self.sessions), maximum, "parameter servers of the job")
        self.sessions[event.ps] = session
        self._previous, self._joining = previous, event.ps
        try:
            self._decide(event)
        except BaseException:  # after any error the old stream remains the process's
            del self.sessions[event.ps]
            if previous is not None:
                self.sessions[event.ps] = previous
            raise
        finally:
            self._previous, self._joining = None, ""
        self.streams[session] = None
        self.liveness.heard(session.worker, session.id, self._clock())
        self._look_soon()
        if previous is not None:
            self.liveness.forget(previous.worker, previous.id)
            previous.end(Rejection("evicted", f"another stream of {event.ps} began"))
        return session

    def heard(self, session: PsSession) -> None:
        """Record a sign of life."""
        if self.is_current(session):
            self.liveness.heard(session.worker, session.id, self._clock())

    def is_current(self, session: PsSession) -> bool:
        """True unless the session was ended or replaced."""
        return self.sessions.get(session.worker) is session

    def keep_figures(self, session: PsSession, figures: bytes, pushes: int) -> None:
        """Keep the latest figures of a parameter server for display. pushes: requests it has answered."""
        if not self.is_current(session):
            return
        self.figures[session.worker] = figures
        now = self._clock()
        since, before = self._pushes.setdefault(session.worker, (now, pushes))
        if now - since >= _RATE_SECONDS:
            self.push_rates[session.worker] = max(0, pushes - before) / (now - since)
            self._pushes[session.worker] = (now, pushes)

    def measured(self) -> SlotMeasures:
        """Return the summed metrics of connected parameter servers."""
        told = [ps_pb2.PsFigures.FromString(figures) for figures in self.figures.values()]
        slots = [slot for one in told for slot in one.slots]
        sizes = [slot.weight_bytes + slot.optimizer_bytes for slot in slots]
        verdicts: Counter[str] = Counter()
        for one in told:
            verdicts.update(dict(one.verdicts))
        return SlotMeasures(
            verdicts={name: count for name, count in verdicts.items() if name in VERDICTS},
            staleness_counts=tuple(
                sum(counts) for counts in zip_longest(*(one.staleness_counts for one in told), fillvalue=0)
            ),
            staleness_sum=sum(one.staleness_sum for one in told),
            rows=sum(slot.rows for slot in slots),
            weight_bytes=sum(slot.weight_bytes for slot in slots),
            optimizer_bytes=sum(slot.optimizer_bytes for slot in slots),
            hot=hot(sizes, sizes),
            non_finite=sum(one.non_finite for one in told),
            unsaved=sum(bool(one.unsaved_error) for one in told),
        )

    def deliver(self, session: PsSession, event: AnyEvent) -> None:
        """Decide on a message of a parameter server. Raises as a decision does."""
        if not self.is_current(session):
            return
        self._decide(event)
        if isinstance(event, PsLeft):
            self._forget(session)
            self._when_durable(session.end)

    def stream_over(self, session: PsSession, reason: str, *, stopping: bool = False) -> None:
        """Handle a stream to which nothing can be sent any more. stopping: no fault of the process."""
        self.streams.pop(session, None)
        self.close(session, reason, stopping=stopping)

    def close(self, session: PsSession, reason: str, *, stopping: bool = False) -> None:
        """End a session; without PsBye before it, its process counts as lost."""
        if not self.is_current(session):
            return
        if not stopping:
            try:
                self._decide(PsStreamLost(session.worker, session.id, reason))
            except (Rejection, StoreError, MachineBroken) as error:
                logger.warning("a lost stream could not be recorded", ps=session.worker, error=str(error))
        self._forget(session)
        session.end(Rejection("evicted", reason, hint="say Hello again, with the slots that are held"))

    def end_silent(self, now: float, timeout_seconds: float) -> None:
        """End the sessions of processes that have been silent for too long."""
        for ps, session_id in self.liveness.silent(now, timeout_seconds):
            session = self.sessions.get(ps)
            if session is None or session.id != session_id:
                self.liveness.forget(ps, session_id)
            elif not session.answered:
                self.heard(session)
            else:
                self.close(session, f"no heartbeat for {timeout_seconds:g} s")

    def end_all(self, refusal: Rejection) -> None:
        """End every stream, without counting processes as lost."""
        for session in self.streams:
            session.end(refusal)
        self.changed.announce()

    def forget_all(self) -> None:
        """Drop all sessions: the job is not served for now."""
        for session in list(self.sessions.values()):
            self._forget(session)

    def bind(self, effect: object) -> None:
        """Schedule an effect for the sessions that it refers to now."""
        if isinstance(effect, SendPs):
            if (session := self.sessions.get(effect.ps)) is not None:
                self._when_durable(partial(self._send, session, effect.message))
        elif isinstance(effect, SendMap):
            self._when_durable(partial(self._tell, effect.map, tuple(self.sessions.values())))
        elif isinstance(effect, ClosePs):
            joining = effect.ps == self._joining
            closed = self._previous if joining else self.sessions.get(effect.ps)
            if closed is not None:
                if not joining:
                    self._forget(closed)
                refusal = Rejection(effect.reason, effect.message, hint=effect.hint, ps=effect.ps)
                self._when_durable(partial(closed.end, refusal))

    def _tell(self, told: ToldMap, sessions: tuple[PsSession, ...]) -> None:
        self.told = told
        for session in sessions:
            self._send(session, told)
        self.changed.announce()

    def _send(self, session: PsSession, message: PsMessage) -> None:
        if not session.answered:
            self.heard(session)
        if not session.put(message):
            self.close(session, "it does not read its stream")

    def _forget(self, session: PsSession) -> None:
        self.liveness.forget(session.worker, session.id)
        if self.sessions.get(session.worker) is session:
            del self.sessions[session.worker]
            for kept in (self.figures, self.push_rates, self._pushes):
                kept.pop(session.worker, None)
