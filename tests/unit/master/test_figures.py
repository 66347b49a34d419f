"""Which jobs a scrape tells of, and that it changes nothing."""

from __future__ import annotations

import pytest

from elastane_master.decisions.events import CancelRequested
from elastane_master.decisions.machine import JobMachine
from elastane_master.metrics import catalogue
from elastane_master.metrics.counters import JobCounters
from elastane_master.metrics.figures import (
    OVER_SECONDS,
    PHASES,
    JobFacts,
    MasterFacts,
    Samples,
    add_job,
    add_master,
    is_shown,
)
from elastane_master.metrics.measures import MasterMeasures
from elastane_proto.job_settings import JobSettings


def job() -> JobMachine:
    return JobMachine.create("j", JobSettings(ests=2), 100.0)


def test_a_job_that_is_over_is_told_of_for_a_while() -> None:
    machine = job()
    assert is_shown(machine, 1e9)  # it may wait for workers as long as it likes
    machine.handle(CancelRequested("r"), 200.0)
    assert is_shown(machine, 200.0 + OVER_SECONDS - 1)
    assert not is_shown(machine, 200.0 + OVER_SECONDS)


def test_a_scrape_changes_nothing_and_says_the_same_again() -> None:
    machine = job()
    counters, before = JobCounters(machine.state), machine.snapshot()
    first, second = Samples(), Samples()
    for samples in (first, second):
        add_job(samples, machine, JobFacts(sessions=3), counters, 500.0)
    assert machine.snapshot() == before
    assert first.by_metric == second.by_metric
    assert first.by_metric[catalogue.SESSIONS] == [(("j",), 3)]
    phases = dict(first.by_metric[catalogue.PHASE])
    assert sum(phases.values()) == 1 and phases["j", "waiting"] == 1
    assert catalogue.SAVED_STEP not in first.by_metric and catalogue.ETA not in first.by_metric


def test_jobs_by_phase_and_refusals_of_both_places() -> None:
    samples, measures = Samples(), MasterMeasures()
    measures.rpcs.method("JobService.Get", streaming=False).refused("not_found")
    facts = MasterFacts("1", "2", "3", True, True, 7, ("running", "running", "failed", "damaged"))
    facts.gate_refusals["not_found"] += 2
    add_master(samples, facts, measures)
    jobs = dict(samples.by_metric[catalogue.JOBS])
    counted = {"running": 2, "failed": 1, "damaged": 1}
    assert jobs == {(phase,): counted.get(phase, 0) for phase in (*PHASES, "damaged", "too_new")}
    assert samples.by_metric[catalogue.REFUSALS] == [(("not_found",), 3)]
    assert samples.by_metric[catalogue.FENCING_TOKEN] == [((), 7)]


def test_a_metric_has_all_its_labels() -> None:
    with pytest.raises(AssertionError, match="elastane_job_phase"):
        Samples().add(catalogue.PHASE, 1, "j")
