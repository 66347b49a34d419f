"""Queues with guaranteed slots: what is guaranteed is there at once, and all else holds as without queues."""

from __future__ import annotations

import msgspec
import pytest

from elastane_master.decisions.runs import events
from elastane_master.decisions.runs.pool_view import pool_view
from elastane_master.decisions.runs.queue_shares import QueueShare, queue_of, slots_held
from elastane_master.decisions.runs.spec import CodeRef, RunSpec
from elastane_scheduler.costs import Costs
from elastane_scheduler.policies.catalogue import make_policy
from elastane_scheduler.policies.prioritized import PrioritizedPolicy
from elastane_scheduler.policies.queued import ByQueuePolicy
from service_sim.checkers import RunTruth
from service_sim.runner_model import RunnerModel
from service_sim.simulation import EVENTS_MAX, POLICY, Simulation
from sim.world import BEGIN, SimulationError

SLOTS = 6
GUARANTEED = 4
QUEUES = (
    QueueShare("paid", 1.0, {"cpu": GUARANTEED}, ("ann",)),
    QueueShare("spare", 3.0, {}, ("bob",)),
)
DECIDE_SECONDS = 1.0
GRACE_SECONDS = 3.0
BOUND_SECONDS = 2 * DECIDE_SECONDS + GRACE_SECONDS + 1.0
"""Until the next decision, until what it takes back has ended, until the next decision; and messages."""
SECONDS = 300.0


class QueuedSimulation(Simulation):
    """A service with queues, whose policy is a real one.

    borrowed: looks at which others had slots of the guarantee. served: runs that had waited for some of it.
    """

    def __init__(self, seed: int, policy: str, queues: tuple[QueueShare, ...] = QUEUES) -> None:
        super().__init__(seed)
        self.master.settings = msgspec.structs.replace(
            self.master.settings, scheduling_policy=POLICY, reshape_seconds=30.0, queues=queues
        )
        self.master.machine.state.settings = self.master.settings
        self.master.snapshot = self.master.machine.snapshot()
        self.real = ByQueuePolicy(lambda: PrioritizedPolicy(lambda: make_policy(policy)))
        self.short_since: dict[int, float] = {}
        self.borrowed = self.served = 0

    def decide(self) -> None:
        """As the master's scheduler does: about what there is."""
        machine = self.master.machine
        if self.master.up:
            view = pool_view(machine.state, machine.index, {}, self.master.clock, Costs())
            if view is not None:
                decision = self.real.decide(view.view)
                self.master.deliver(
                    events.AllocationDecided(POLICY, view.revision, view.targets(decision), decision.choice)
                )
        self.world.after(DECIDE_SECONDS, self.decide)

    def submit_elastic(self, owner: str, instances: int, least: int, seconds: float) -> None:
        spec = RunSpec(
            output_model_name="model",
            framework="elastane",
            instances=instances,
            instances_min=least,
            code=CodeRef(installed=True),
            command=("train",),
            grace_seconds=GRACE_SECONDS,
        )
        run_id = self.master.machine.state.next_run_id
        self.checkers.runs[run_id] = RunTruth(run_id, False, instances, 0)
        self.profiles[run_id] = (seconds, 1.0)
        self.master.handle(events.RunSubmitted(spec, owner))

    def check_guarantee(self) -> None:
        """A run of the guaranteed queue that fits into what is left of that does not wait for long."""
        state = self.master.machine.state
        active = [run for run in state.runs.values() if run.launch is not None]
        held = slots_held(QUEUES, active, state.runners)
        self.borrowed += held["spare", "cpu"] > SLOTS - GUARANTEED
        waiting = [run for run in state.runs.values() if run.waits and queue_of(QUEUES, run.owner) == "paid"]
        oldest = min(waiting, key=lambda run: run.queued_at, default=None)
        fits = oldest is not None and held["paid", "cpu"] + oldest.demand.instances_min <= GUARANTEED
        since = (
            {oldest.run_id: self.short_since.get(oldest.run_id, self.world.now)} if oldest and fits else {}
        )
        self.served += len(self.short_since.keys() - since.keys())
        self.short_since = since
        for run_id, at in since.items():
            if self.world.now - at > BOUND_SECONDS:
                self.world.fail("what is guaranteed is there at once", f"run {run_id} waits, {dict(held)}")
        self.world.after(0.25, self.check_guarantee)

    def run_quietly(self) -> None:
        """No faults: long runs of others fill the service, short ones of the guaranteed queue come and go.

        What others need at least leaves room for the guarantee.
        """
        self.faulty = False
        rng = self.rng
        self.runners["r0"] = RunnerModel(
            "r0", SLOTS, "process", self.world, self.checkers, self.script, device_type="cpu"
        )
        self.connect(self.runners["r0"])
        for _ in range(SLOTS - GUARANTEED):
            self.world.after(rng.uniform(1, 5), lambda: self.submit_elastic("bob", SLOTS, 1, 10 * SECONDS))
        at = 20.0
        while at < SECONDS:
            least = rng.randint(1, 2)
            instances, seconds = rng.randint(least, GUARANTEED), rng.uniform(2, 20)
            self.world.after(at, lambda a=instances, b=least, c=seconds: self.submit_elastic("ann", a, b, c))
            at += rng.uniform(5, 40)
        self.heartbeat()
        self.decide()
        self.check_guarantee()
        self.world.run_until(lambda: False, BEGIN + SECONDS, EVENTS_MAX)
        if self.world.failure is not None:
            raise self.world.failure


@pytest.mark.parametrize("policy", ["foresight", "maxmin", "elastic-srtf"])
def test_what_is_guaranteed_is_there_at_once_and_others_borrow_it_meanwhile(policy: str) -> None:
    borrowed = served = 0
    for seed in range(8):
        simulation = QueuedSimulation(8 * seed, policy)
        simulation.run_quietly()
        borrowed, served = borrowed + simulation.borrowed, served + simulation.served
    assert borrowed > 100 and served > 20


def test_without_the_guarantee_the_same_runs_wait_for_longer() -> None:
    shares = tuple(msgspec.structs.replace(queue, guaranteed={}, weight=1e-6) for queue in QUEUES[:1])
    with pytest.raises(SimulationError, match="what is guaranteed is there at once"):
        for seed in range(8):
            QueuedSimulation(8 * seed, "foresight", (*shares, QUEUES[1])).run_quietly()


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_under_faults_every_run_ends_and_nothing_runs_twice_with_queues(first: int) -> None:
    for seed in range(first, first + 8):
        simulation = QueuedSimulation(seed, "elastic-srtf")
        simulation.run()
