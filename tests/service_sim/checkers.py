"""What must hold, seen from outside: from what users, runners and processes really did.

The checkers know nothing of how the master decides. What the master says of runs is compared with the world.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from elastane_master.decisions.runs import effects
from elastane_master.decisions.runs.events import AttemptKey
from elastane_master.decisions.runs.index import Index
from elastane_master.decisions.runs.machine import RunsMachine
from elastane_master.decisions.runs.run import OVER
from service_sim.runner_model import Process, RunnerModel
from sim.world import World

EPSILON = 1e-6
SETTLING_SECONDS = 4.0
"""What a few messages and the next look take together."""
BESIDE = ("runs beside its successor", "runs beside its successor in the same launch")
"""Counted when an instance starts while one that was given up lives elsewhere: of another launch, or of the
same launch of an elastic run."""


@dataclass
class RunTruth:
    """What is known of a run without the master. cancelled: that was accepted, and no retry since."""

    run_id: int
    gang: bool
    instances: int
    retries_max: int
    seen: str = ""
    cancelled: bool = False
    retried: int = 0
    failing_exits: int = 0
    exits: dict[AttemptKey, dict[int, int]] = field(default_factory=dict)
    prepared: dict[AttemptKey, set[int]] = field(default_factory=dict)
    losses: int = 0
    deleted: bool = False
    retry_pending: bool = False


@dataclass
class Checkers:
    """See the module. contact: when a master last heard each runner; gaps: ends of silences of a lease.

    stopped_at: when the last master ended.
    """

    world: World
    lease_seconds: float
    runners: dict[str, RunnerModel] = field(default_factory=dict)
    runs: dict[int, RunTruth] = field(default_factory=dict)
    contact: dict[str, float] = field(default_factory=dict)
    gaps: dict[str, float] = field(default_factory=dict)
    stopped_at: float = 0.0
    unanswered: dict[tuple[str, AttemptKey], float] = field(default_factory=dict)
    stopping: dict[int, float] = field(default_factory=dict)
    ending: set[int] = field(default_factory=set)
    launch_failure_rate: float = 0.0
    set_back_seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    # ------------------------------------------------------------------ contact between runners and masters

    def heard(self, runner: str) -> None:
        """A master received a message of a runner."""
        now = self.world.now
        if now - self.contact.get(runner, now) >= self.lease_seconds - EPSILON:
            self.gaps[runner] = now
        self.contact[runner] = now

    def master_stopped(self) -> None:
        """From now on no lease runs out."""
        self.stopped_at = self.world.now

    def master_started(self) -> None:
        """Leases begin anew, and so does the wait for a stop."""
        self.stopping.clear()
        for runner, at in self.contact.items():
            if self.stopped_at - at >= self.lease_seconds - EPSILON:
                self.gaps[runner] = self.stopped_at
            self.contact[runner] = self.world.now

    def may_be_given_up(self, runner: str, process: Process) -> bool:
        """True if a process may have been given up: a lease without contact, or an unanswered stop."""
        now = self.world.now
        silent = now - self.contact.get(runner, now) >= self.lease_seconds - EPSILON
        gap = self.gaps.get(runner, -1.0) >= process.started_at > 0 or (
            process.started_at == 0 and runner in self.gaps
        )
        stop_at = self.unanswered.get((runner, process.key))
        unanswered = stop_at is not None and now - stop_at >= self.lease_seconds - EPSILON
        return silent or gap or unanswered

    # ------------------------------------------------------------------ processes

    def prepared(self, runner: RunnerModel, process: Process) -> None:
        self.runs[process.key.run_id].prepared.setdefault(process.key, set()).add(process.rank)
        if runner.slots_taken > runner.slots:
            self.world.fail(
                "no slot is given twice", f"{runner.name}: {runner.slots_taken} of {runner.slots} slots"
            )

    def starts(self, runner: RunnerModel, process: Process, message: effects.Start) -> None:
        run = self.runs[process.key.run_id]
        for other in self.runners.values():
            for one in other.processes.values():
                if one is process or one.state != "running" or one.key.run_id != run.run_id:
                    continue
                same_launch = one.key.fence == process.key.fence
                if same_launch and one.rank != process.rank:
                    continue
                self.counts[BESIDE[same_launch]] += 1
                if not self.may_be_given_up(other.name, one):
                    self.world.fail(
                        "nothing runs twice",
                        f"run {run.run_id} starts rank {process.rank} of fence {process.key.fence} on"
                        f" {runner.name}, and rank {one.rank} of {one.key.fence} lives on {other.name}",
                    )
        if not run.gang:
            return
        if run.prepared.get(process.key, set()) != set(range(run.instances)):
            self.world.fail(
                "a gang starts whole", f"run {run.run_id}: {run.prepared.get(process.key)} are prepared"
            )
        ports = {one.rank: (one.host, one.port) for one in message.endpoints}
        for other in self.runners.values():
            for one in other.processes.values():
                if one.key == process.key and one.lives and ports.get(one.rank) != (other.name, one.port):
                    self.world.fail("peers know each other", f"run {run.run_id}: rank {one.rank}")

    def exited(self, runner: RunnerModel, process: Process) -> None:
        run = self.runs[process.key.run_id]
        run.exits.setdefault(process.key, {})[process.rank] = process.exit_code
        if process.exit_code and not process.stopping:
            run.failing_exits += 1

    def lost(self, process: Process) -> None:
        self.runs[process.key.run_id].losses += 1

    # ------------------------------------------------------------------ what the master says

    def observe(self, machine: RunsMachine, run_id: int) -> None:
        """A run has changed."""
        run, truth = machine.state.runs.get(run_id), self.runs.get(run_id)
        if truth is None:
            self.world.fail("a repeated request takes effect once", f"nobody submitted run {run_id}")
            return
        if run is None:
            return
        launch = run.launch
        if launch is not None and launch.ending is not None and launch.fence not in self.ending:
            self.ending.add(launch.fence)
            if " had not " in launch.ending.reason:
                self._taken_back(run_id, launch.ending.reason)
        if truth.seen in OVER and run.state != truth.seen:
            if not truth.retry_pending:
                self.world.fail("what is over stays", f"run {run_id}: {truth.seen} -> {run.state}")
            truth.cancelled = False
        if run.state in OVER and truth.seen != run.state:
            self._ended(run, truth)
        if run.state == "suspended" and truth.seen != "suspended":
            self._suspended(run, truth)
        truth.seen, truth.retry_pending = run.state, False
        attempts = 1 + truth.retried + truth.failing_exits + self.counts["launch failures"]
        if run.attempt > attempts:
            self.world.fail(
                "a preemption is no attempt",
                f"run {run_id}: attempt {run.attempt}, {truth.failing_exits} exits, {truth.retried} retries",
            )

    def _ended(self, run: Any, truth: RunTruth) -> None:
        self.counts[run.state] += 1
        if truth.cancelled and run.state != "cancelled":
            self.world.fail("cancel ends cancelled", f"run {run.run_id} is {run.state}: {run.reason}")
        if run.state == "cancelled" and not truth.cancelled:
            self.world.fail("only the cancelled end so", f"run {run.run_id}: {run.reason}")
        if run.state == "succeeded" and truth.gang:
            whole = any(
                len(exits) == truth.instances and not any(exits.values()) for exits in truth.exits.values()
            )
            if not whole:
                self.world.fail("success of all instances", f"run {run.run_id}: {truth.exits}")
        if run.state == "failed" and " ended with " in run.reason and not truth.failing_exits:
            self.world.fail("failures have a cause", f"run {run.run_id}: {run.reason}")

    def _taken_back(self, run_id: int, reason: str) -> None:
        """A launch is taken back since a runner did not make it in time."""
        self.counts["taken back"] += 1
        runner = self.runners[reason.partition(" ")[0]]
        here = runner.session and self.world.now - runner.connected_at > SETTLING_SECONDS
        if here and not runner.lied:
            self.world.fail("launches are made in time", f"run {run_id}: {reason}")

    def counted_once(self, machine: RunsMachine) -> None:
        """However many processes there are of an instance, the master counts one as running."""
        seen: set[tuple[int, int]] = set()
        for runner in machine.state.runners.values():
            for holding in runner.holds.values():
                for rank in holding.ranks:
                    if (holding.run_id, rank) in seen:
                        text = f"rank {rank} of run {holding.run_id}, the second time on {runner.runner_id}"
                        self.world.fail("an instance is counted once", text)
                    seen.add((holding.run_id, rank))

    def noticed(self, machine: RunsMachine) -> None:
        """A runner that is lost, and a stop that is not answered, are noticed in time."""
        now, slack = self.world.now, SETTLING_SECONDS + self.set_back_seconds
        for name, at in self.contact.items():
            record = machine.state.runners.get(name)
            if record is not None and not record.lost and now - at > self.lease_seconds + slack:
                self.world.fail("a lost runner is noticed", f"{name} was heard {now - at:.0f} s ago")
        stopping: dict[int, float] = {}
        for run_id in machine.index.active:
            run = machine.state.runs[run_id]
            if run.launch is not None and run.launch.ending is not None:
                since = stopping[run.launch.fence] = self.stopping.get(run.launch.fence, now)
                if now - since > run.demand.grace_seconds + self.lease_seconds + slack:
                    self.world.fail("a stop comes to its end", f"run {run_id}: {run.reason}")
        self.stopping = stopping

    def _suspended(self, run: Any, truth: RunTruth) -> None:
        self.counts["suspended"] += 1
        lost = truth.losses or any(
            now_gone or name in self.gaps
            for name, now_gone in (
                (name, self.world.now - at >= self.lease_seconds - EPSILON)
                for name, at in self.contact.items()
            )
        )
        leaving = any(runner.said_leaving for runner in self.runners.values())
        if not lost and not leaving and truth.gang:
            self.world.fail("nothing is stopped without a cause", f"run {run.run_id}: {run.reason}")

    def sent(self, runner: str, message: effects.RunnerMessage) -> None:
        """The master sends a message, whether it arrives or not."""
        if isinstance(message, effects.Stop) and message.rank is None:
            grace = message.grace_seconds
            self.unanswered.setdefault((runner, message.attempt), self.world.now + grace)

    def takes_back(self, machine: RunsMachine, message: effects.RunnerMessage) -> None:
        """An elastic run that gives an instance back for others has its least left, and it runs."""
        if not isinstance(message, effects.Stop) or message.rank is None:
            return
        for_others = (
            message.reason.startswith("the scheduling policy") or "has waited longest" in message.reason
        )
        run = machine.state.runs.get(message.attempt.run_id)
        if not for_others or run is None:
            return
        self.counts["taken back for others"] += 1
        left = sum(1 for record in run.ranks if record.placed)
        if run.ranks[message.rank].started_at is not None:  # it ran
            left = sum(1 for record in run.ranks if record.state == "running")
        if left < run.demand.instances_min and run.launch is not None and run.launch.ending is None:
            text = f"run {run.run_id}: {left} of {run.demand.instances_min} are left, and {message}"
            self.world.fail("nobody gives up what it needs", text)

    def consistent(self, machine: RunsMachine) -> None:
        """What is kept twice in the state is equal, and the index is that of a new machine."""
        state = machine.state
        held: Counter[str] = Counter()
        for runner in state.runners.values():
            slots = sum(holding.slots for holding in runner.holds.values())
            if slots != runner.slots_used:
                self.world.fail("slots add up", f"{runner.runner_id}: {runner.slots_used}, not {slots}")
            for holding in runner.holds.values():
                if holding.ranks and holding.run_id in state.runs:
                    charged = len(holding.ranks) * holding.slots_per_instance
                    held[state.runs[holding.run_id].owner] += charged
        for owner, use in state.uses.items():
            if use.slots != held[owner]:
                self.world.fail("slots add up", f"{owner}: {use.slots}, not {held[owner]}")
        index, fresh = machine.index, Index(state)
        for name in ("by_wait", "by_priority"):
            if getattr(index.waiting, name) != getattr(fresh.waiting, name):
                self.world.fail("the index is the state's", name)
        for name in ("active", "pending", "waiting_data", "alive_by_owner"):
            if getattr(index, name) != getattr(fresh, name):
                self.world.fail("the index is the state's", name)
        for run in state.runs.values():
            waits = run.waits or run.launch is not None or run.next_attempt_at is not None
            if run.state not in OVER and run.state != "waiting_data" and not waits:
                self.world.fail("nothing is lost", f"run {run.run_id} is {run.state}, and waits for nothing")
            if not run.reason:
                self.world.fail("nothing is lost", f"run {run.run_id} is {run.state} without a reason")
