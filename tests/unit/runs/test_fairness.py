"""rho of the live service: how runs fared beside an even share of the slots."""

from __future__ import annotations

import pytest

from elastane_master.decisions.runs import events, fairness
from elastane_master.decisions.runs.allocation import Target
from elastane_master.decisions.runs.fairness import FairnessBook
from elastane_master.decisions.runs.pool_view import Progress, pool_view
from elastane_master.decisions.runs.state import ServiceSettings
from elastane_scheduler.costs import Costs
from unit.runs.runs_driver import RunsDriver

POLICY = "elastic-srtf"
STEPS = 200


class Service:
    """Four slots, and a policy that does what the test says. progress: what runs have said."""

    def __init__(self) -> None:
        self.driver = RunsDriver(ServiceSettings(scheduling_policy=POLICY))
        self.driver.do(events.MasterStarted("master", self.driver.machine.state.settings))
        self.driver.do(events.AllocationDecided(POLICY, 0))
        self.driver.join("a", 4)
        self.progress: dict[int, Progress] = {}
        self.book = FairnessBook()

    def submit(self, instances: int = 4, steps: int = STEPS) -> int:
        run_id = self.driver.submit(framework="elastane", instances=instances)
        self.progress[run_id] = Progress({"cpu": 1.0}, 0, steps)
        return run_id

    def look(self) -> None:
        machine = self.driver.machine
        view = pool_view(machine.state, machine.index, self.progress, self.driver.now, Costs(2.0, 0.5, 1.0))
        if view is not None:
            self.book.observe(view)

    def decide(self, targets: dict[int, int], after: float = 31.0) -> None:
        wanted = tuple(Target(run_id, {"cpu": count} if count else {}) for run_id, count in targets.items())
        self.driver.do(
            events.AllocationDecided(POLICY, self.driver.machine.state.revision, wanted), after=after
        )
        self.driver.start_all()
        self.driver.start_all()
        self.look()

    def end(self, run_id: int, after: float) -> None:
        self.driver.now += after
        self.driver.do(events.ElasticJobEnded(run_id, self.driver.run(run_id).job, "succeeded"))
        self.driver.stop_all()
        assert self.driver.state(run_id) == "succeeded"

    def rhos(self) -> list[float]:
        comparison = self.book.ended(self.driver.machine.state.runs)
        return comparison.rhos() if comparison is not None else []


def test_a_run_alone_has_what_a_fair_share_is() -> None:
    service = Service()
    run = service.submit()
    service.decide({run: 4}, after=0.0)
    assert service.rhos() == []
    service.end(run, 2.0 + STEPS)
    assert service.rhos() == [pytest.approx(1.0, rel=0.01)]
    assert service.rhos() == [], "each run is counted once"


def test_who_waits_for_others_has_lost_by_it_and_who_is_preferred_has_gained() -> None:
    service = Service()
    first, second = service.submit(), service.submit()
    service.decide({first: 4, second: 0}, after=0.0)
    service.end(first, 2.0 + STEPS)
    (gained,) = service.rhos()
    service.decide({second: 4}, after=0.0)
    service.end(second, 2.0 + STEPS)
    (lost,) = service.rhos()
    # By an even share both would have trained on two slots each, half as fast.
    assert gained == pytest.approx(0.5, abs=0.02) and lost == pytest.approx(1.0, abs=0.02)
    # Four runs, one after the other: the last has waited for three, and for none by an even share.
    service = Service()
    short, *long = service.submit(1, steps=100), *(service.submit() for _ in range(3))
    service.decide(dict.fromkeys(long[:1], 4) | {short: 0}, after=0.0)
    service.end(long[0], 2.0 + STEPS)
    assert len(service.rhos()) == 1
    service.decide({short: 1}, after=0.0)
    service.end(short, 2.0 + 100)
    (lost,) = service.rhos()
    assert lost == pytest.approx((2 + STEPS + 2 + 100) / (2 + 100), rel=0.02)


def test_runs_of_unknown_length_or_speed_and_those_that_fail_have_no_figure() -> None:
    service = Service()
    unknown, unmeasured, failed = (service.submit(1) for _ in range(3))
    service.progress[unknown] = Progress({"cpu": 1.0})
    del service.progress[unmeasured]
    service.decide({unknown: 1, unmeasured: 1, failed: 1}, after=0.0)
    service.driver.cancel(failed)
    service.driver.stop_all()
    service.end(unknown, 100.0)
    service.end(unmeasured, 1.0)
    assert service.rhos() == []


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    runs_max = 20
    monkeypatch.setattr(fairness, "RUNS_MAX", runs_max)
    service = Service()
    service.look()
    stays = service.submit(1)
    for _ in range(3 * runs_max):
        run = service.submit(1)
        service.look()
        service.driver.cancel(run)
        service.rhos()
    assert len(service.book._jobs) <= 2 * runs_max
    service.driver.cancel(stays)
    service.rhos()
    assert not service.book._jobs
