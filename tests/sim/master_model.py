"""The master around the unmodified `JobMachine`: log with group commit, effects after durability, restart.

What the edge does, in the order in which it must be done: decide at once, store what changed the
state, carry effects out once stored. A crash loses the tail that was not stored, with its effects,
and also effects of stored events that were not sent yet. A stream is bound to its worker by the
Welcome of its own Hello.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from elastane_master.decisions import effects, events
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.machine import JobMachine
from sim.checkers import Checkers
from sim.network import Stream
from sim.world import SimulationError, World

_events = msgspec.msgpack.Decoder(events.AnyEvent)


@dataclass
class Undelivered:
    """The outcome of one event until it is stored and carried out. stream: of a Hello, to be bound."""

    record: tuple[bytes, float] | None
    effects: list[effects.Effect]
    stream: Stream | None
    is_bye: bool = False
    reply: Callable[[], None] | None = None


@dataclass
class MasterModel:
    """log: stored events since `snapshot`. queue: decided, not yet carried out."""

    world: World
    checkers: Checkers
    machine: JobMachine
    incarnation: int = 0
    is_up: bool = True
    snapshot: bytes = b""
    log: list[tuple[bytes, float]] = field(default_factory=list)
    queue: list[Undelivered] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    bound: dict[str, Stream] = field(default_factory=dict)
    liveness: Liveness = field(default_factory=Liveness)
    is_flushing: bool = False
    tick_at: float | None = None
    usable_holders: Callable[[], list[str]] = list

    def start(self) -> None:
        """First start: the empty job is stored."""
        self.snapshot = self.machine.snapshot()
        self.event(events.MasterStarted("master-0"))
        self._watch(self.incarnation)

    def crash(self, down_seconds: float) -> None:
        """SIGKILL, and a new master after a while."""
        if not self.is_up:
            return
        self.world.log(f"MASTER crashes, loses {len(self.queue)} outcomes")
        self.is_up = False
        self.incarnation += 1
        for stream in self.streams:
            stream.break_down()
        self.streams.clear()
        self.bound.clear()
        self.queue.clear()
        self.world.after(down_seconds, self._restart)

    def message(self, stream: Stream, event: events.Event) -> None:
        """A worker's message arrived."""
        if not stream.open_down:
            return
        self.liveness.heard(stream.worker.name, stream.session, self.world.now)
        self.event(event, stream)

    def heartbeat(self, stream: Stream) -> None:
        """A heartbeat without news."""
        if stream.open_down and self.is_up and self.incarnation == stream.incarnation:
            self.liveness.heard(stream.worker.name, stream.session, self.world.now)

    def stream_broke(self, stream: Stream, reason: str) -> None:
        """EOF without Bye."""
        self.liveness.forget(stream.worker.name, stream.session)
        self.event(events.StreamLost(stream.worker.name, stream.session, reason))
        if self.bound.get(stream.worker.name) is stream:
            del self.bound[stream.worker.name]

    def call(self, event: events.Event, reply: Callable[[object], None]) -> None:
        """A unary request; the reply leaves when everything it rests on is durable, or never."""
        if not self.is_up:
            return
        result = self.event(event)
        self.queue.append(Undelivered(None, [], None, reply=lambda: reply(result)))
        self._flush()

    def event(self, event: events.Event, stream: Stream | None = None) -> object:
        """Decides; what it led to is carried out once it is durable. Returns the result or the Rejection."""
        if not self.is_up:
            return None
        before = self.machine.snapshot() if self.world.rng.random() < 0.02 else b""
        try:
            decision = self.machine.handle(event, self.world.now)  # type: ignore[arg-type]
        except Rejection as rejection:
            self.world.log(f"MASTER refuses {event!r}: {rejection}")
            self.checkers.refused(event, rejection)
            if before and self.machine.snapshot() != before:
                raise SimulationError(f"a refused {event!r} changed the state") from rejection
            if stream is not None:
                stream.break_down()
            return rejection
        if before and not decision.durable and self.machine.snapshot() != before:
            raise SimulationError(f"not durable, but the state changed: {event!r}")
        for effect in decision.effects:
            if isinstance(effect, effects.Send) and isinstance(effect.message, effects.Load):
                # The leader itself may have loaded already, before the master was restarted.
                self.checkers.loading([name for name in self.usable_holders() if name != effect.worker])
        if decision.durable:
            self.world.log(f"  handle {type(event).__name__} {_short(event)}")
        record = (msgspec.msgpack.encode(event), self.world.now) if decision.durable else None
        is_bye = isinstance(event, events.ByeReported)
        if record is not None or decision.effects or is_bye:
            self.queue.append(Undelivered(record, decision.effects, stream, is_bye))
            self._flush()
        self._schedule_tick()
        return decision.result

    def check_replay(self) -> None:
        """The stored events give the live state, when nothing is on its way to the store."""
        if any(outcome.record for outcome in self.queue):
            return
        if self._replayed().snapshot() != self.machine.snapshot():
            raise SimulationError("replaying the stored events gives another state")

    def _replayed(self) -> JobMachine:
        machine = JobMachine.restore(self.snapshot)
        for record, now in self.log:
            machine.handle(_events.decode(record), now)
        return machine

    def _flush(self) -> None:
        if self.is_flushing or not self.queue:
            return
        self.is_flushing = True
        batch, incarnation = list(self.queue), self.incarnation
        delay = self.world.rng.choice((0.0005, 0.001, 0.005))
        self.world.after(delay, lambda: self._stored(batch, incarnation))

    def _stored(self, batch: list[Undelivered], incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        for outcome in batch:
            if outcome.record is not None:
                self.log.append(outcome.record)
            for effect in outcome.effects:
                self.checkers.stored(effect)
        self.world.after(0.0002, lambda: self._carry_out(batch, incarnation))

    def _carry_out(self, batch: list[Undelivered], incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        self.is_flushing = False
        del self.queue[: len(batch)]
        for outcome in batch:
            for effect in outcome.effects:
                self._effect(effect, outcome.stream)
            if outcome.reply is not None:
                outcome.reply()
            if outcome.is_bye and outcome.stream is not None:
                outcome.stream.break_down(final=True)
        if self.world.rng.random() < 0.01 and not self.queue:
            self.check_replay()
            self.snapshot, self.log = self.machine.snapshot(), []
        self._flush()

    def _effect(self, effect: effects.Effect, stream: Stream | None) -> None:
        match effect:
            case effects.Send(worker, message):
                if isinstance(message, effects.Welcome) and stream is not None:
                    self.bound[worker] = stream
                target = self.bound.get(worker)
                if target is not None:
                    self.checkers.sent(worker, message)
                    target.down(message)
                    if isinstance(message, effects.Done):
                        target.break_down(final=True)
            case effects.Close(worker, reason, _):
                target = self.bound.pop(worker, None)
                if target is not None:
                    self.liveness.forget(worker, target.session)
                    target.break_down()
                self.world.log(f"MASTER closes {worker}: {reason}")
            case effects.Note():
                place = f"g{effect.generation} s{effect.step}"
                self.world.log(f"NOTE {effect.kind} {effect.worker} {place}: {effect.reason}")

    def _restart(self) -> None:
        self.machine = self._replayed()
        self.is_up, self.is_flushing = True, False
        self.liveness = Liveness()
        self.tick_at = None
        self.world.log("MASTER is back")
        self.event(events.MasterStarted(f"master-{self.incarnation}"))
        self._watch(self.incarnation)

    def _watch(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        timeout_seconds = self.machine.state.settings.heartbeat_timeout_seconds
        for worker, session in self.liveness.silent(self.world.now, timeout_seconds):
            self.liveness.forget(worker, session)
            self.event(events.StreamLost(worker, session, "silent"))
        self.world.after(0.25, lambda: self._watch(incarnation))

    def _schedule_tick(self) -> None:
        due = self.machine.next_deadline()
        if due is None or (self.tick_at is not None and self.world.now < self.tick_at <= due):
            return
        self.tick_at = due = max(due, self.world.now)
        incarnation = self.incarnation
        self.world.at(due, lambda: self._tick(incarnation, due))

    def _tick(self, incarnation: int, due: float) -> None:
        if incarnation != self.incarnation or self.tick_at != due:
            return
        self.tick_at = None
        self.event(events.Tick())
        after = self.machine.next_deadline()
        if after is not None and after <= self.world.now:
            raise SimulationError(f"a Tick at its deadline changed nothing: {after} is still due")


def _short(event: events.Event) -> str:
    hidden = {"contexts", "tasks", "signature", "session"}
    return str({k: v for k, v in msgspec.structs.asdict(event).items() if k not in hidden})
