"""The master: the machine, the log of its events, and what is lost when it is killed.

An event is durable before its effects leave. A kill loses effects that have not left, and every stream. The
next master reads the snapshot and the log, and must have the very same state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs import effects, events
from elastane_master.decisions.runs.machine import RunsMachine
from elastane_master.decisions.runs.state import ServiceSettings
from service_sim.checkers import Checkers
from sim.world import World

SNAPSHOT_EVENTS = 60
Carry = Callable[[effects.RunsEffect], None]


@dataclass
class MasterModel:
    """clock_offset: of its machine's clock.

    kill_at_event, kill_at_job: it is killed before it carries out the effects of that event, or of the next
    one that creates or cancels a job. strict: each event is looked at for a change that it does not report.
    """

    world: World
    checkers: Checkers
    settings: ServiceSettings
    carry: Carry
    machine: RunsMachine = field(init=False)
    up: bool = True
    epoch: int = 0
    clock_offset: float = 0.0
    snapshot: bytes = b""
    log: list[tuple[events.RunsEvent, float]] = field(default_factory=list)
    kill_at_event: int = -1
    kill_at_job: bool = False
    strict: bool = False
    events: int = 0
    ticking: float | None = None
    on_kill: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.machine = RunsMachine.create(self.settings)
        self.snapshot = self.machine.snapshot()

    @property
    def clock(self) -> float:
        """What its machine's clock says."""
        return self.world.now + self.clock_offset

    def handle(self, event: events.RunsEvent) -> object:
        """Decide on an event. Raises Rejection."""
        now = self.clock
        before = self.machine.snapshot() if self.strict else b""
        decision = self.machine.handle(event, now)  # type: ignore[arg-type]
        if self.strict and decision.durable != (self.machine.snapshot() != before):
            self.world.fail("what changes is stored", f"{event}")
        self.events += 1
        if decision.durable:
            self.log.append((event, now))
        jobs = any(
            isinstance(one, effects.CreateElasticJob | effects.CancelElasticJob) for one in decision.effects
        )
        killed = self.events == self.kill_at_event or (self.kill_at_job and jobs)
        for effect in decision.effects:
            if isinstance(effect, effects.RunChanged):
                self.checkers.observe(self.machine, effect.run_id)
            elif not killed:
                self.carry(effect)
        if killed:
            self.kill_at_job = False
            self.kill()
            return decision.result
        if len(self.log) >= SNAPSHOT_EVENTS:
            self.snapshot, self.log = self.machine.snapshot(), []
        self.wake()
        return decision.result

    def deliver(self, event: events.RunsEvent) -> None:
        """Handle an event if there is a master; a refusal is no fault."""
        if self.up:
            try:
                self.handle(event)
            except Rejection:
                self.checkers.counts["refused"] += 1

    def wake(self) -> None:
        """Tick at the next deadline."""
        due = self.machine.next_deadline() if self.up else None
        if due is None or (self.ticking is not None and self.ticking <= due):
            return
        self.ticking = due
        epoch = self.epoch

        def tick() -> None:
            if self.epoch != epoch or not self.up or self.ticking != due:
                return
            self.ticking = None
            self.handle(events.Tick())

        self.world.at(due - self.clock_offset + 0.001, tick)

    def kill(self) -> None:
        """End it: effects that have not left are lost, and so is every stream."""
        self.up, self.ticking = False, None
        self.epoch += 1
        self.checkers.counts["master killed"] += 1
        self.on_kill()

    def start(self) -> None:
        """The next master takes over."""
        replayed = self.replay()
        live = self.machine.snapshot()
        if replayed.snapshot() != live:
            self.world.fail("a replay has the same state", f"after {len(self.log)} events")
        self.machine = replayed
        self.checkers.consistent(replayed)
        self.up = True
        self.checkers.master_started()
        self.handle(events.MasterStarted(f"master-{self.epoch}", self.settings))

    def replay(self) -> RunsMachine:
        """Make the machine of the snapshot and the log."""
        machine = RunsMachine.restore(self.snapshot)
        for event, now in self.log:
            machine.handle(event, now)  # type: ignore[arg-type]
        return machine
