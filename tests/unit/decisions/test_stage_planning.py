"""The planner beside the event loop: when it is asked, what becomes of its answers. Servers are stand-ins."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest
from test_replanning import PipelineDriver, measure, three

from elastane_master.decisions import replanning
from elastane_master.decisions.events import PipelinePlanned, Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.stage_planning import StagePlanning


class Served:
    """A job of the driver, as its server shows it."""

    name = "job"
    stopping = False
    paused: Rejection | None = None

    def __init__(self, job: PipelineDriver) -> None:
        self.job = job
        self.submitted: list[PipelinePlanned] = []
        self.refuses = False

    @property
    def machine(self) -> JobMachine:
        return self.job.machine

    def clock(self) -> float:
        return self.job.now

    async def submit(self, event: PipelinePlanned) -> None:
        if self.refuses:
            raise Rejection("wrong_phase", "no")
        self.submitted.append(event)
        self.job.do(event)


def slowed() -> Served:
    """b is five times as slow as the others, and has as many units."""
    job = three()
    measure(job, "a", 0, 0.1, 0.1)
    measure(job, "b", 2, 0.1, 0.1)
    measure(job, "c", 4, 0.1, 0.1)
    measure(job, "b", 2, 0.5, 0.5)
    return Served(job)


def looks(served: Served, planning: StagePlanning, times: int = 1) -> None:
    async def look() -> None:
        for _ in range(times):
            await planning.look(cast("JobServer", served))

    asyncio.run(look())


def test_a_worker_that_has_become_slow_gets_less_to_do() -> None:
    served, planning = slowed(), StagePlanning(list, budget_seconds=0.5)
    looks(served, planning, times=3)
    assert planning.planned == 1, "asked once for what is known"
    [event] = served.submitted
    before = {"a": 2, "b": 2, "c": 2}
    held = {
        worker: stage.end_unit - stage.first_unit for stage in event.plan.stages for worker in stage.replicas
    }
    assert held.get("b", 0) < before["b"] or len(event.plan.stages) == 1
    assert event.plan.step_seconds < event.step_seconds_now
    assert served.job.state.pipeline.proposed is not None
    measure(served.job, "a", 0, 0.3, 0.3)
    served.job.state.pipeline.proposed = None
    looks(served, planning)
    assert planning.planned == 2, "what is measured has changed"


@pytest.mark.parametrize("fault", ["refused", "raises", "late"])
def test_a_job_goes_on_whatever_becomes_of_the_planner(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served = slowed()
    planning = StagePlanning(list, budget_seconds=0.1, seconds_max=0.05 if fault == "late" else 10.0)
    ended = asyncio.Event()

    def answer(*_: Any) -> PipelinePlanned | None:
        if fault == "raises":
            raise RuntimeError("a bug")
        time.sleep(0.5)
        ended.set()
        return None

    if fault == "refused":
        served.refuses = True
    else:
        monkeypatch.setattr(replanning, "answer", answer)
    looks(served, planning, times=2)
    assert not served.submitted and served.job.state.ring.stage == "running"
    assert planning.failed == (fault != "refused")


def test_a_job_that_stops_is_left_alone() -> None:
    served, planning = slowed(), StagePlanning(list)
    served.stopping = True
    looks(served, planning)
    served.stopping, served.paused = False, Rejection("store_unavailable", "")
    looks(served, planning)
    assert planning.planned == planning.failed == 0 and not served.submitted


def test_it_looks_after_all_jobs_that_are_pipelines() -> None:
    served, other = slowed(), Served(three())
    other.job.state.signature = None
    planning = StagePlanning(
        lambda: [cast("JobServer", served), cast("JobServer", other)], budget_seconds=0.1
    )

    async def run() -> None:
        task = asyncio.create_task(planning.run())
        async with asyncio.timeout(20):
            while not served.submitted:
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(run())
    assert not other.submitted
