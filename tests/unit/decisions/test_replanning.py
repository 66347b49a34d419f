"""What workers of a pipeline measure, and when their stages are planned anew."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from test_pipelines import UNITS, PipelineDriver, drain, model

from elastane_master.decisions import effects, events, replanning, stage_plans
from elastane_master.decisions.stages import StageOnWorkers, StagePlan
from elastane_planner.planner import Answer


def measure(
    job: PipelineDriver,
    worker: str,
    first: int,
    *seconds: float,
    memory: int = 0,
    overhead: tuple[float, float] = (0.0, 0.0),
    after: float = 11.0,
) -> None:
    """A heartbeat with times of units: backward takes twice as long as forward."""
    event = events.AppliedReported(
        worker,
        job.session(worker),
        job.generation,
        job.state.workers[worker].applied_step,
        first_unit=first,
        unit_forward_seconds=tuple(each / 3 for each in seconds),
        unit_backward_seconds=tuple(each * 2 / 3 for each in seconds),
        memory_bytes=memory,
        forward_overhead_seconds=overhead[0],
        backward_overhead_seconds=overhead[1],
    )
    job.do(event, after=after)


def total(job: PipelineDriver) -> list[float]:
    return [round(unit.forward + unit.backward, 6) for unit in job.state.pipeline.measured]


def speeds(job: PipelineDriver) -> dict[str, float]:
    return {worker: round(record.speed, 3) for worker, record in job.state.workers.items()}


def plan(*stages: tuple[int, int, str], seconds: float = 0.1) -> StagePlan:
    on = tuple(StageOnWorkers(first, end, tuple(workers.split())) for first, end, workers in stages)
    return StagePlan(on, ("a", "b", "c"), seconds, reason="by what was measured")


BETTER = plan((0, 1, "a"), (1, 3, "b"), (3, UNITS, "c"))


def three(**changes: Any) -> PipelineDriver:
    job = PipelineDriver(**changes)
    job.signature = msgspec.structs.replace(job.signature, epochs=1000)
    job.train("a", "b", "c")
    job.state.balance.change_seconds = 0.5
    return job


def propose(job: PipelineDriver, found: StagePlan = BETTER, now: float = 0.2, **changes: Any) -> None:
    job.do(msgspec.structs.replace(events.PipelinePlanned(job.generation, found, now), **changes))


# ------------------------------------------------------------------ what is measured


def test_times_are_kept_of_each_unit_and_a_worker_that_slows_down_has_a_lower_speed() -> None:
    job = three()
    measure(job, "a", 0, 0.1, 0.2)
    measure(job, "b", 2, 0.3, 0.3)
    assert total(job) == [0.1, 0.2, 0.3, 0.3, 0.0, 0.0] and speeds(job) == {"a": 1.0, "b": 1.0, "c": 0.0}
    before = job.state.pipeline.measurements
    measure(job, "b", 2, 0.31, 0.31)
    assert job.state.pipeline.measurements == before, "within what measuring is off"
    measure(job, "b", 2, 0.9, 0.9)
    assert speeds(job)["b"] == 0.333 and total(job)[2] == 0.3, "the device is slower, not the unit"
    assert job.state.pipeline.measurements == before + 1


def test_a_device_is_compared_by_the_units_that_another_has_run() -> None:
    job = three()
    measure(job, "a", 0, 0.1, 0.2)
    measure(job, "c", 1, 0.4, 0.5)  # twice as slow in unit 1, and so in unit 2
    assert speeds(job)["c"] == 0.5 and total(job)[2] == 0.25


def test_a_profile_that_the_script_gives_is_what_others_are_compared_with() -> None:
    job = PipelineDriver(of=model(forward_seconds=0.1, backward_seconds=0.1))
    job.train("a", "b")
    measure(job, "a", 0, 0.1, 0.1, 0.1)
    assert speeds(job)["a"] == 2.0 and job.state.pipeline.measured == ()


def profile(job: PipelineDriver) -> tuple[float, float]:
    found = stage_plans.question(job.state).profile
    return found.forward_overhead_seconds, found.backward_overhead_seconds


def test_the_overhead_of_blocks_is_the_first_that_is_told_and_true() -> None:
    job = three()
    for untrue in ((float("nan"), 0.1), (-0.1, 0.2), (0.1, float("inf")), (0.0, 0.0)):
        measure(job, "a", 0, 0.1, 0.2, overhead=untrue)
        assert profile(job) == (0.0, 0.0)
    measure(job, "b", 0, 0.2, 0.4, overhead=(0.5, 0.25))  # of a device of half the speed
    assert profile(job) == (0.25, 0.125)
    measure(job, "c", 2, 0.1, overhead=(7.0, 7.0))
    assert profile(job) == (0.25, 0.125)


def test_the_overhead_of_a_profile_is_believed() -> None:
    of = model(forward_seconds=0.1, backward_seconds=0.1)
    job = PipelineDriver(of=msgspec.structs.replace(of, forward_overhead_seconds=0.5))
    job.train("a", "b")
    measure(job, "a", 0, 0.1, overhead=(7.0, 7.0))
    assert profile(job) == (0.5, 0.0)


@pytest.mark.parametrize(
    "seconds", [(float("nan"), 1.0), (-1.0, 1.0), (float("inf"), 1.0), (1e9, 1.0), (1.0,) * (UNITS + 1)]
)
def test_times_that_cannot_be_true_are_ignored(seconds: tuple[float, ...]) -> None:
    job = three()
    measure(job, "a", 0, *seconds)
    assert job.state.pipeline.measured == () and speeds(job)["a"] == 0.0


def test_changes_are_stored_at_most_every_ten_seconds() -> None:
    job = three()
    measure(job, "a", 0, 0.1, 0.1, memory=2**30)
    measure(job, "a", 0, 0.2, 0.2, after=1.0)
    assert speeds(job)["a"] == 1.0
    measure(job, "a", 0, 0.2, 0.2)
    assert speeds(job)["a"] == 0.5 and job.state.workers["a"].memory_bytes == 2**30


def test_a_job_without_a_pipeline_measures_no_units() -> None:
    job = three()
    job.state.signature = msgspec.structs.replace(job.state.signature, pipeline=None)
    measure(job, "a", 0, 0.1)
    assert job.state.pipeline.measured == ()


# ------------------------------------------------------------------ another plan


def test_a_better_plan_is_taken_at_the_next_boundary_and_units_move() -> None:
    job = three()
    propose(job)
    assert job.state.ring.stage == "running" and job.generation == 1, "no step is dropped for it"
    job.step(3)
    assert job.state.ring.planned and job.members == ("a", "b", "c")
    sent = job.take(effects.Prepared)["a"]
    assert sent.then_prepare is not None and "becomes one of 0.1 s" in sent.then_prepare.reason
    for worker in job.members:
        job.ready_at(worker, 4)
    assert [stage[:2] for stage in job.stages()] == [(0, 1), (1, 3), (3, 6)]
    assert [(one.first_unit, one.end_unit, one.donors) for one in job.sources] == [
        (0, 2, (0,)),
        (2, 4, (1,)),
        (4, 6, (2,)),
    ]
    note = job.noted("stages_planned")[-1]
    assert "planned anew" in note.reason and "0.1 s a step are predicted, 0.2 s before" in note.reason
    assert job.state.pipeline.proposed is None and job.state.pipeline.changes == 1


@pytest.mark.parametrize(
    ("why", "now", "changes"),
    [
        ("a gain within what measuring is off", 0.104, {}),
        ("of a ring that is over", 0.2, {"generation": 0}),
        ("the stages that it has", 0.2, {"plan": plan((0, 2, "a"), (2, 4, "b"), (4, 6, "c"))}),
        ("a unit without a stage", 0.2, {"plan": plan((0, 1, "a"), (1, 5, "b c"))}),
        ("a worker that is not there", 0.2, {"plan": plan((0, 1, "a"), (1, 6, "x"))}),
        ("a worker twice", 0.2, {"plan": plan((0, 1, "a"), (1, 6, "a"))}),
    ],
)
def test_a_plan_that_does_not_pay_or_does_not_fit_changes_nothing(
    why: str, now: float, changes: dict[str, Any]
) -> None:
    job = three()
    before = job.machine.snapshot()
    propose(job, now=now, **changes)
    assert job.machine.snapshot() == before, why


def test_a_plan_must_pay_in_the_steps_that_are_left() -> None:
    job = three()
    job.state.balance.change_seconds = 1e6
    propose(job)
    assert job.state.pipeline.proposed is None


def test_after_a_change_there_is_a_pause_that_doubles() -> None:
    job = three(lease_min_seconds=1e3)
    back = plan((0, 2, "a"), (2, 4, "b"), (4, 6, "c"))
    propose(job)
    for pause, other in ((30.0, back), (60.0, BETTER)):
        job.step(job.state.steps.current)
        for worker in job.members:
            job.ready_at(worker, job.state.steps.current)
        job.entered()
        job.step(job.state.steps.current)
        job.tick(after=pause - 1.0)
        propose(job, other)
        assert job.state.pipeline.proposed is None
        assert replanning.question(job.state, job.now) is None
        job.tick(after=2.0)
        propose(job, other)
        assert job.state.pipeline.proposed is not None


def test_a_proposal_for_workers_that_are_gone_is_dropped() -> None:
    job = three(pipeline_shadows=1)
    propose(job)
    job.lose("c")
    job.ready_at("a", 3)
    job.ready_at("b", 3)
    assert job.stages() == [(0, 3, ["a"]), (3, 6, ["b"])] and job.state.pipeline.proposed is None


def test_it_waits_for_a_checkpoint_that_is_being_written() -> None:
    job = three(checkpoint_url="file:///saved")
    job.do(events.CheckpointRequested("r"))
    job.step(3)
    assert job.state.checkpoints.in_flight is not None
    propose(job)
    job.step(4)
    assert job.state.ring.stage == "running" and job.state.checkpoints.in_flight is not None


def test_who_leaves_gets_no_stage_by_a_plan_made_before() -> None:
    job = three()
    propose(job)
    drain(job, "b")
    job.step(3)
    for worker in job.members:
        job.ready_at(worker, 4)
    assert all("b" not in workers for _, _, workers in job.stages())


# ------------------------------------------------------------------ the planner is asked


def test_nothing_is_asked_before_units_are_measured_or_while_the_ring_changes() -> None:
    job = three()
    assert replanning.question(job.state, job.now) is None
    measure(job, "a", 0, 0.1, 0.2)
    asked = replanning.question(job.state, job.now)
    assert asked is not None and asked.workers == ("a", "b", "c") and asked.micro_batches == 4
    assert asked.held == {"a": {0, 1}, "b": {2, 3}, "c": {4, 5}} and asked.keep == job.state.pipeline.plan
    job.lose("c")
    assert replanning.question(job.state, job.now) is None


def test_the_planner_is_told_speeds_memory_and_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    job = three(pipeline_stages_min=2, pipeline_stages_max=3, pipeline_shadows=1)
    measure(job, "a", 0, 0.1, 0.2, memory=2**30)
    measure(job, "a", 0, 0.2, 0.4, memory=2**30)
    asked = replanning.question(job.state, job.now)
    assert asked is not None
    said: dict[str, Any] = {}

    def make(profile: Any, cluster: Any, micro_batches: int, **options: Any) -> Answer:
        said.update(options, cluster=cluster)
        return Answer(options["keep"], 0.5, *([None] * 2 if "timeline" in Answer.__struct_fields__ else ()))

    monkeypatch.setattr(stage_plans, "make_plan", make)
    assert replanning.answer(asked, 1, lambda: 0.0, 5.0) is None, "it keeps the plan"
    device = said["cluster"].devices[0]
    assert (device.name, device.speed, device.memory_bytes) == ("a", 0.5, 2**30)
    assert said["stages"] == (2, 3) and said["shadows"] == 1 and said["held"][1] == {0, 1, 2, 3}
    assert said["keep"].shadows == ((1,), (2,), (0,))


def test_a_planner_that_raises_leaves_an_even_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> Answer:
        raise RuntimeError("a bug")

    monkeypatch.setattr(stage_plans, "make_plan", fails)
    job = PipelineDriver(of=model(forward_seconds=0.1))
    job.train("a", "b", until=0)
    assert job.stages() == [(0, 3, ["a"]), (3, 6, ["b"])]
    assert job.state.pipeline.plan.reason == "an even cut; the planner has none: a bug"


def test_what_is_predicted_of_a_plan_is_kept_with_it() -> None:
    job = PipelineDriver(of=model(forward_seconds=0.1, backward_seconds=0.2), pipeline_stages_min=2)
    job.state.settings = msgspec.structs.replace(job.state.settings, pipeline_stages_max=2)
    job.train("a", "b", until=0)
    plan_made = job.state.pipeline.plan
    assert plan_made.stage_seconds == pytest.approx((3.6, 3.6)) and plan_made.step_seconds > 3.6
    assert plan_made.bubble == pytest.approx(0.2, abs=0.01), "(S - 1) / (S - 1 + M)"
    assert job.plan.step_seconds == plan_made.step_seconds


def test_what_the_planner_has_simulated_is_not_simulated_within_the_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor a step of very many blocks, for which the whole master would wait."""
    simulated: list[int] = []
    real = stage_plans.timeline
    monkeypatch.setattr(
        stage_plans, "timeline", lambda *given: simulated.append(len(given[2].stages)) or real(*given)
    )
    job = PipelineDriver(of=model(forward_seconds=0.1, backward_seconds=0.2))
    job.signature = msgspec.structs.replace(job.signature, epochs=1000)
    job.train("a", "b", "c")
    assert len(simulated) == 1
    propose(job, plan((0, 1, "a"), (1, 3, "b"), (3, UNITS, "c"), seconds=0.1))
    job.step(3)
    for worker in job.members:
        job.ready_at(worker, 4)
    assert job.noted("stages_planned")[-1].reason.count("0.1 s a step are predicted, 0.2 s before") == 1
    assert len(simulated) == 1
    monkeypatch.setattr(stage_plans, "BLOCKS_AT_ONCE_MAX", 15)
    PipelineDriver(of=model(forward_seconds=0.1, backward_seconds=0.2)).train("a", "b", "c", until=0)
    assert len(simulated) == 1
