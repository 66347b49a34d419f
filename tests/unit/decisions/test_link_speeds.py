"""Bandwidth between hosts, as workers tell it: what is believed, kept, and planned with."""

from __future__ import annotations

import math

import msgspec
import pytest
from test_pipelines import PipelineDriver

from elastane_master.decisions import events, link_speeds, stage_plans, views
from elastane_planner.links import UNKNOWN_BYTES_PER_SECOND


def on_hosts(**hosts: str) -> PipelineDriver:
    """Workers a, b, c on hosts of these names, a stage on each."""
    job = PipelineDriver()
    job.train("a", "b", "c")
    for worker, host in hosts.items():
        job.state.workers[worker].host = host
    return job


def tell(job: PipelineDriver, worker: str, after: float = 11.0, **links: float) -> None:
    event = events.AppliedReported(
        worker,
        job.session(worker),
        job.generation,
        job.state.workers[worker].applied_step,
        link_workers=tuple(links),
        link_bytes_per_second=tuple(links.values()),
    )
    job.do(event, after=after)


def test_the_median_of_what_was_told_of_two_hosts_is_planned_with() -> None:
    job = on_hosts(a="h1", b="h2", c="h2")
    before = job.state.pipeline.measurements
    tell(job, "b", a=1e9)
    tell(job, "c", a=3e9, b=8e9)
    tell(job, "b", a=2e9)
    assert link_speeds.between(job.state, ("h1", "h2")) == {("h1", "h2"): 2e9, ("h2", "h2"): 8e9}
    assert job.state.pipeline.measurements == before + 3, "another plan may be better now"
    matrix = stage_plans.question(job.state).cluster.bandwidth
    assert matrix[0][1] == matrix[2][0] == pytest.approx(2e9, rel=0.13)
    assert matrix[1][2] == pytest.approx(8e9, rel=0.13)


def test_before_anything_is_told_links_are_taken_to_have_ten_gigabit() -> None:
    matrix = stage_plans.question(on_hosts().state).cluster.bandwidth
    assert {value for row in matrix for value in row} == {UNKNOWN_BYTES_PER_SECOND}


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e300])
def test_bandwidth_that_cannot_be_true_is_not_kept(value: float) -> None:
    job = on_hosts()
    before = job.machine.snapshot()
    tell(job, "b", a=value)
    assert job.machine.snapshot() == before


def test_of_unknown_workers_and_of_itself_nothing_is_kept() -> None:
    job = on_hosts()
    before = job.machine.snapshot()
    tell(job, "b", x=1e9, b=1e9)
    assert job.machine.snapshot() == before
    event = events.AppliedReported(
        "b", job.session("b"), 1, 3, link_workers=("a", "c"), link_bytes_per_second=(2e9,)
    )
    job.do(event, after=11.0)
    assert job.state.workers["b"].links == {"a": 2e9}, "one has no value"


def test_what_has_hardly_changed_is_not_stored_again_nor_anything_too_often() -> None:
    job = on_hosts()
    tell(job, "b", a=1e9)
    before = job.machine.snapshot()
    tell(job, "b", a=1.05e9)
    assert job.machine.snapshot() == before
    tell(job, "b", a=2e9)
    before = job.machine.snapshot()
    tell(job, "b", after=1.0, a=4e9)
    assert job.machine.snapshot() == before


def test_a_worker_that_does_not_say_its_host_is_a_host_of_its_own() -> None:
    job = on_hosts(a="", b="")
    tell(job, "b", a=1e9)
    assert link_speeds.between(job.state, "ab") == {("a", "b"): 1e9}


def test_pairs_of_hosts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_speeds, "PAIRS_MAX", 1)
    job = on_hosts(a="a", b="b", c="c")
    tell(job, "b", a=1e9, c=1e9)
    assert sum(map(len, job.state.pipeline.links.values())) == 1
    for value in (2e9, 4e9, 8e9, 16e9, 32e9, 64e9):
        tell(job, "b", a=value)
    assert len(job.state.pipeline.links["a"]["b"]) == link_speeds.TOLD_KEPT


def test_links_of_hosts_that_are_gone_give_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_speeds, "PAIRS_MAX", 3)  # of which one is new
    job = on_hosts(a="h1", b="h2", c="h3")
    job.state.pipeline.links = {"h1": {"h2": (1e9,), "gone": (2e9,)}, "gone": {"h1": (2e9,)}}
    tell(job, "b", a=1e9)
    assert len(job.state.pipeline.links) == 2, "there is room"
    tell(job, "c", b=4e9)
    assert job.state.pipeline.links == {"h1": {"h2": (1e9,)}, "h2": {"h3": (4e9,)}}


def test_no_other_plan_is_looked_for_if_it_would_be_planned_with_the_same() -> None:
    job = on_hosts(a="h1", b="h2", c="h2")
    tell(job, "b", a=1e9)
    before, matrix = job.state.pipeline.measurements, stage_plans.question(job.state).cluster.bandwidth
    tell(job, "b", a=1.12e9)
    assert job.state.workers["b"].links == {"a": 1.12e9}
    assert stage_plans.question(job.state).cluster.bandwidth == matrix
    assert job.state.pipeline.measurements == before
    tell(job, "b", a=9e9)
    tell(job, "b", a=9e9)
    assert stage_plans.question(job.state).cluster.bandwidth != matrix
    assert job.state.pipeline.measurements == before + 1


def test_a_link_that_stays_slower_is_planned_with_within_half_a_minute() -> None:
    """Also if its figures, once slow, hardly change any more."""
    job = on_hosts(a="h1", b="h2", c="h2")
    for value in (1e9, 1.2e9, 1e9, 1.2e9, 1e9, 1e8):
        tell(job, "b", a=value)
    assert link_speeds.between(job.state, ("h1", "h2"))["h1", "h2"] > 9e8, "once may be chance"
    for _ in range(2):
        tell(job, "b", a=1e8)
    assert link_speeds.between(job.state, ("h1", "h2"))["h1", "h2"] == 1e8
    before = job.machine.snapshot()
    tell(job, "b", a=1e8)
    assert job.machine.snapshot() == before


def test_workers_of_a_host_that_differ_for_ever_are_not_stored_for_ever() -> None:
    job = on_hosts(a="h1", b="h2", c="h2")
    for _ in range(6):
        tell(job, "b", a=1e9)
        tell(job, "c", a=3e9)
    before = job.machine.snapshot()
    tell(job, "b", a=1e9)
    tell(job, "c", a=3e9)
    assert job.machine.snapshot() == before
    assert link_speeds.between(job.state, ("h1", "h2")) == {("h1", "h2"): 2e9}


def test_links_and_devices_are_shown() -> None:
    job = on_hosts(a="h1", b="h2", c="h3")
    tell(job, "b", a=1e9)
    told = views.job_view(job.machine).pipeline
    assert told is not None
    assert [(one.worker, one.host) for one in told.devices] == [("a", "h1"), ("b", "h2"), ("c", "h3")]
    assert [(one.source, one.target, one.bytes_per_second) for one in told.links] == [("h1", "h2", 1e9)]


def test_other_jobs_keep_none() -> None:
    job = on_hosts()
    job.state.signature = msgspec.structs.replace(job.state.signature, pipeline=None)
    tell(job, "b", a=1e9)
    assert job.state.pipeline.links == {}
