"""When a scheduling policy is asked, and what becomes of one that fails or takes too long."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from elastane_common.bounded_thread import StillBusy, TooSlow
from elastane_master.decisions.runs import events
from elastane_master.decisions.runs.pool_view import Progress
from elastane_master.decisions.runs.state import ServiceSettings
from elastane_master.metrics.counters import RunCounters
from elastane_master.runs import scheduler as scheduler_module
from elastane_master.runs.run_server import RunServer
from elastane_master.runs.scheduler import PolicyThread, RunScheduler
from elastane_master.signals import Signal
from elastane_scheduler.costs import Costs
from elastane_scheduler.policies.catalogue import make_policy
from elastane_scheduler.pool import Pool
from elastane_scheduler.view import Decision, View
from unit.runs.runs_driver import RunsDriver

POLICY = "elastic-srtf"
VIEW = View(0.0, [], Pool(("cpu",), (1,)), (1,), Costs())


class Scripted:
    """A policy that does what a test says; counts its decisions."""

    name = POLICY

    def __init__(self, act: Callable[[View], Decision]) -> None:
        self.act = act
        self.decisions = 0

    def decide(self, view: View) -> Decision:
        self.decisions += 1
        return self.act(view)


class Served:
    """A server of runs, without a store. submitted: what the scheduler has said."""

    def __init__(self) -> None:
        self.driver = RunsDriver(ServiceSettings(scheduling_policy=POLICY))
        self.driver.do(events.MasterStarted("master", self.driver.machine.state.settings))
        self.changed = Signal()
        self.counters = RunCounters()
        self.submitted: list[events.AllocationDecided] = []

    @property
    def machine(self) -> Any:
        return self.driver.machine

    def clock(self) -> float:
        return self.driver.now

    def require_serving(self) -> None:
        pass

    async def submit(self, event: events.AllocationDecided) -> None:
        self.submitted.append(event)
        self.driver.do(event)


def scheduler_of(served: Served, policy: Scripted, seconds_max: float = 10.0) -> RunScheduler:
    return RunScheduler(
        cast("RunServer", served),
        POLICY,
        lambda state: ({}, {}),
        make=lambda: policy,
        seconds_max=seconds_max,
    )


def real(view: View) -> Decision:
    return make_policy(POLICY).decide(view)


def broken(view: View) -> Decision:
    raise ZeroDivisionError("a bug")


async def test_it_decides_when_something_has_changed_and_not_otherwise() -> None:
    served, policy = Served(), Scripted(real)
    scheduler = scheduler_of(served, policy)
    await scheduler.look()
    assert policy.decisions == 0  # no slots, no runs
    served.driver.join("a", 4)
    run = served.driver.submit(framework="elastane", instances=4)
    await scheduler.look()
    assert served.machine.state.allocation.targets == {run: {"cpu": 4}}
    for _ in range(5):
        await scheduler.look()
    before = policy.decisions
    assert before <= 2  # for the run, and since it was launched
    served.driver.submit(framework="elastane", instances=4)
    await scheduler.look()
    assert policy.decisions == before + 1


async def test_with_a_policy_that_fails_runs_are_ordered_by_fair_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_module, "INTERVAL_SECONDS", 0.0)
    served, policy = Served(), Scripted(broken)
    scheduler = scheduler_of(served, policy)
    served.driver.join("a", 4)
    served.driver.do(events.AllocationDecided(POLICY, served.machine.state.revision))
    run = served.driver.submit(framework="elastane", instances=4)
    assert served.driver.state(run) == "queued"
    await scheduler.look()
    assert served.driver.state(run) == "launching"
    assert "ZeroDivisionError: a bug" in served.machine.state.allocation.failure
    assert served.counters.scheduling == {"failed": 1}
    policy.act = real
    await scheduler.look()
    assert served.machine.state.allocation.in_charge
    assert served.counters.scheduling == {"failed": 1, "decided": 1}


async def test_what_cannot_be_shown_to_a_policy_is_a_failure_too() -> None:
    def progress(state: Any) -> Any:
        raise KeyError("a bug")

    served = Served()
    served.driver.join("a", 4)
    served.driver.do(events.AllocationDecided(POLICY, served.machine.state.revision))
    run = served.driver.submit(framework="elastane", instances=4)
    await RunScheduler(cast("RunServer", served), POLICY, progress).look()
    assert served.driver.state(run) == "launching"


async def test_a_policy_that_takes_too_long_is_not_waited_for_and_nothing_is_begun_beside_it() -> None:
    go = threading.Event()
    made: list[Scripted] = []

    def wait(view: View) -> Decision:
        go.wait()
        return Decision([], math.inf, "late")

    def make() -> Scripted:
        made.append(Scripted(wait))
        return made[-1]

    thread = PolicyThread(make, seconds_max=0.05)
    with pytest.raises(TooSlow, match=r"longer than 0\.05 s"):
        await thread.decide(VIEW)
    with pytest.raises(StillBusy, match="has not ended"):
        await thread.decide(VIEW)
    assert [policy.decisions for policy in made] == [1, 0]
    go.set()
    for other in threading.enumerate():
        if other.name == "scheduling policy":
            other.join()
    assert (await thread.decide(VIEW)).choice == "late"
    assert [policy.decisions for policy in made] == [1, 1]


async def test_rho_of_runs_that_have_ended_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "INTERVAL_SECONDS", 0.0)
    served = Served()
    progress: dict[int, Progress] = {}
    scheduler = RunScheduler(cast("RunServer", served), POLICY, lambda state: (progress, {}))
    served.driver.join("a", 4)
    run = served.driver.submit(framework="elastane", instances=4)
    progress[run] = Progress({"cpu": 1.0}, 0, 300)
    await scheduler.look()
    served.driver.start_all()
    await scheduler.look()
    assert served.counters.rho.count == 0
    served.driver.now += 600.0
    served.driver.do(events.ElasticJobEnded(run, served.driver.run(run).job, "succeeded"))
    served.driver.stop_all()
    await scheduler.look()
    assert served.counters.rho.count == 1 and 1.9 < served.counters.rho.sum < 2.0
    await scheduler.look()
    assert served.counters.rho.count == 1


async def test_a_figure_that_fails_costs_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr(scheduler_module.FairnessBook, "ended", fails)
    served, policy = Served(), Scripted(real)
    served.driver.join("a", 4)
    run = served.driver.submit(framework="elastane", instances=4)
    await scheduler_of(served, policy).look()
    assert served.machine.state.allocation.targets == {run: {"cpu": 4}}
    assert not served.machine.state.allocation.failure


async def test_what_a_failed_policy_remembers_is_given_up() -> None:
    made: list[Scripted] = []

    def make() -> Scripted:
        made.append(Scripted(broken if not made else real))
        return made[-1]

    thread = PolicyThread(make, seconds_max=10.0)
    with pytest.raises(ZeroDivisionError):
        await thread.decide(VIEW)
    assert (await thread.decide(VIEW)).allocation == []
    assert [policy.decisions for policy in made] == [1, 1]
