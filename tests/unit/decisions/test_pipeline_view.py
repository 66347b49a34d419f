"""What is shown of a pipeline: its stages, the slowest one and why, and what a death would cost."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console
from test_pipelines import PipelineDriver, model, three
from test_replanning import measure

from elastane_cli.views.plans import plan_parts
from elastane_cli.views.stages import stage_parts, stages_to_plain
from elastane_master.decisions import stage_plans, views
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.pipeline_view import PipelineState
from elastane_master.decisions.stages import StageOnWorkers, StagePlan
from elastane_master.metrics import catalogue
from elastane_master.metrics.counters import JobCounters
from elastane_master.metrics.figures import JobFacts, Samples, add_job
from elastane_master.servers.translate_job import job_message
from elastane_scheduler.job_plan import job_plan


def seen(job: PipelineDriver) -> PipelineState:
    found = views.job_view(job.machine).pipeline
    assert found is not None
    return found


def printed(job: PipelineDriver) -> str:
    out = Console(file=io.StringIO(), width=200)
    for part in stage_parts(job_message(views.job_view(job.machine), Liveness())):
        out.print(part)
    text = out.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def measured() -> PipelineDriver:
    job = PipelineDriver(of=model(forward_seconds=0.1, backward_seconds=0.2), pipeline_stages_min=3)
    job.train("a", "b", "c")
    return job


def test_stages_are_shown_with_what_is_predicted_of_them() -> None:
    job = measured()
    told = seen(job)
    assert [(stage.first_unit, stage.end_unit) for stage in told.stages] == [(0, 2), (2, 4), (4, 6)]
    assert told.step_seconds > 2.4 and 0.2 < told.bubble < 0.5 and told.units == 6
    assert told.stages[0].load_seconds == pytest.approx(4 * 2 * 0.3)
    text = printed(job)
    assert "a pipeline of 3 stages, 6 units" in text and "per step predicted" in text and "kept" in text
    assert "planned by what was measured" in text


def test_the_risk_of_a_death_is_told_before_it_happens() -> None:
    job = three()
    assert seen(job).risk == (
        "units 0 to 5 have one holder each: if a or b or c dies, the job goes back to the initial state: no "
        "checkpoint is saved (--shadow 1)"
    )
    job.state.checkpoints.saved_step = 2
    assert "the checkpoint of step 2" in seen(job).risk
    assert "a death costs the step in flight" in seen(three(pipeline_shadows=1)).risk


def test_the_slowest_stage_has_its_reason() -> None:
    job = measured()
    measure(job, "b", 2, 0.3, 0.3)
    measure(job, "b", 2, 0.9, 0.9)
    even = tuple(StageOnWorkers(2 * place, 2 * place + 2, (worker,)) for place, worker in enumerate("abc"))
    plan = StagePlan(even, ("a", "b", "c"))
    job.state.pipeline.plan = stage_plans.with_figures(plan, stage_plans.question(job.state))
    told = seen(job)
    assert told.slowest_stage == 1
    assert told.slowest_reason == (
        "b computes at 0.33 of the speed of the fastest worker; units 2 to 3 take 7.2 s of a step on b"
    )


def test_a_single_unit_cannot_be_cut() -> None:
    job = PipelineDriver(of=model(2, forward_seconds=0.1), pipeline_stages_min=2)
    job.train("a", "b")
    assert "a unit is never cut" in seen(job).slowest_reason


def test_nothing_is_shown_of_other_jobs_and_of_those_that_are_over() -> None:
    job = three()
    job.steps(3, 20)
    for worker in "abc":
        job.bye(worker)
    assert views.job_view(job.machine).pipeline is None
    assert stage_parts(job_message(views.job_view(job.machine), Liveness())) == []
    other = three()
    other.state.signature = msgspec.structs.replace(other.state.signature, pipeline=None)
    assert views.job_view(other.machine).pipeline is None


def test_elastane_plan_shows_the_stages_in_place_of_rungs() -> None:
    job = measured()
    message = job_message(views.job_view(job.machine), Liveness())
    parts = plan_parts(message, job_plan(4, [], workers_min=1, workers_max=0), every=False)
    assert "job" in str(parts[0]) and "a pipeline of 3 stages" in str(parts[1])
    plain = stages_to_plain(message)
    assert plain is not None and len(plain["stages"]) == 3 and plain["units"] == 6


def test_stages_are_measured() -> None:
    job, samples = measured(), Samples()
    add_job(samples, job.machine, JobFacts(sessions=3), JobCounters(job.machine.state), job.now)
    told, name = seen(job), ("job",)
    assert samples.by_metric[catalogue.STAGES] == [(name, 3)]
    assert samples.by_metric[catalogue.UNITS_ALONE] == [(name, 6)]
    assert samples.by_metric[catalogue.STAGE_STEP_SECONDS] == [(name, told.step_seconds)]
    assert samples.by_metric[catalogue.STAGE_BUBBLE] == [(name, told.bubble)]
