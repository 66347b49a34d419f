"""The job's policies (prices, recovery, max wait) under faults: their random choice, and their checkers.

cost        every nanosecond and every fraction of a micro is charged as in an independent account
too few     no ring is decided on with fewer members than are needed
max wait    workers are released after the wait, not before, and not much later

Policies are drawn from a separate generator, so that all other runs keep their draws.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cost_oracle import Charged, CostOracle, charged, difference
from elastane_master.decisions.effects import Decision, Note
from elastane_master.decisions.events import MasterStarted
from elastane_master.decisions.machine import JobMachine
from elastane_proto.history.events import RingAnnounced
from elastane_proto.v1 import job_pb2
from sim.world import World

LATE_SECONDS = 2.0
"""A master counts at most this much of a pause of its process (clock.py), so no decision is later."""


@dataclass(frozen=True)
class Policies:
    """The policies of one run. prices: (seconds from the beginning, spot, on demand)."""

    max_wait_seconds: float = 0.0
    fixed: bool = False
    prices: tuple[tuple[float, int, int], ...] = ()

    def apply(self, settings: job_pb2.JobSettings) -> None:
        """Write the policies into a job's settings."""
        settings.max_wait.FromNanoseconds(round(self.max_wait_seconds * 1e9))
        if self.fixed:
            settings.recovery = job_pb2.RECOVERY_POLICY_FIXED
        if self.prices:
            settings.spot_price_micros, settings.on_demand_price_micros = 300_000, 1_000_000

    def needed(self, settings: job_pb2.JobSettings) -> int:
        """Return the least number of workers with which the job trains."""
        full = min(settings.workers_max or settings.ests, settings.ests)
        return full if self.fixed else settings.workers_min


def draw(seed: int) -> Policies:
    """Draw the policies of a run; none for most seeds."""
    rng = random.Random(f"policies {seed}")
    if rng.random() < 0.6:
        return Policies()
    times = sorted(rng.uniform(0.0, 15.0) for _ in range(rng.randint(0, 4)))
    prices = tuple((at, rng.choice((0, 1, 310_000, 7_000_001)), rng.choice((0, 999_999))) for at in times)
    return Policies(rng.choice((0.0, 4.0, 12.0)), rng.random() < 0.4, prices)


@dataclass
class PolicyChecker:
    """Checks every decision of every master of a run."""

    world: World
    accounts: dict[int, tuple[JobMachine, CostOracle, dict[str, Charged]]] = field(default_factory=dict)
    #: When a master took over its state machine: timers that expired before are due then.
    started: dict[int, float] = field(default_factory=dict)

    def wrap(self, handle: Callable[..., Decision]) -> Callable[..., Decision]:
        """Wrap `JobMachine.handle` so that every decision is checked."""

        def looked_at(machine: JobMachine, event: Any, now: float) -> Decision:
            if id(machine) not in self.accounts:
                oracle = CostOracle(machine)
                self.accounts[id(machine)] = machine, oracle, charged(machine, oracle.now)
            if isinstance(event, MasterStarted):
                self.started[id(machine)] = now
            state = machine.state
            phase, until = state.phase, state.wait_until
            decision = handle(machine, event, now)
            if decision.durable:
                self._check_cost(machine, decision, now)
                if any(map(_announces_members, decision.effects)):
                    self._check_members(machine)
                self._check_wait(machine, event, now, phase, until)
            return decision

        return looked_at

    def _check_cost(self, machine: JobMachine, decision: Decision, now: float) -> None:
        _, oracle, base = self.accounts[id(machine)]
        oracle.seen([effect for effect in decision.effects if isinstance(effect, Note)], now)
        if oracle.is_lost:  # discarded work was charged before the account began
            del self.accounts[id(machine)]
            return
        wrong = difference(oracle, base, charged(machine, oracle.now))
        if wrong:
            self.world.fail("cost", wrong)

    def _check_members(self, machine: JobMachine) -> None:
        state = machine.state
        settings = state.settings
        full = min(settings.workers_max or settings.ests, settings.ests)
        needed = full if settings.recovery == "fixed" else settings.workers_min
        if len(state.ring.members) < needed and not state.finished:
            text = f"ring {state.ring.generation} has {len(state.ring.members)} members of {needed} needed"
            self.world.fail("too few", text)

    def _check_wait(
        self, machine: JobMachine, event: object, now: float, phase: str, until: float | None
    ) -> None:
        state = machine.state
        limit = state.settings.max_wait_seconds
        if state.phase == "max_wait_exceeded" != phase:
            if until is None or now < until or not limit:
                self.world.fail("max wait", f"workers are released at {now}, and may wait until {until}")
        elif state.phase == "waiting" and state.wait_until is not None and not state.awaited():
            if now > max(state.wait_until, self.started.get(id(machine), 0.0)) + LATE_SECONDS:
                self.world.fail(
                    "max wait", f"at {now} nobody is released, but it was due at {state.wait_until}"
                )
            if state.wait_until > now + max(limit, state.settings.return_grace_seconds) + 0.001:
                self.world.fail("max wait", f"a wait of {limit} s lasts until {state.wait_until} at {now}")


def _announces_members(effect: object) -> bool:
    """True if a ring is decided on; its generation alone changes when the store has lost a newer one."""
    event = effect.event if isinstance(effect, Note) else None
    return isinstance(event, RingAnnounced) and bool(event.members)
