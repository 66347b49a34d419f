"""Pipelines: who holds which units, from where they come, and what becomes of them with a worker."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from job_driver import SIGNATURE, JobDriver, settings

from elastane_master.decisions import effects, events, pipelines, stage_memory
from elastane_master.decisions.effects import PipelinePlan, UnitSource
from elastane_master.decisions.events import PipelineModel, PipelineUnit, Rejection, Signature, UnitRange
from elastane_planner.profile import Profile, UnitProfile

UNITS = 6


def model(units: int = UNITS, **figures: Any) -> PipelineModel:
    return PipelineModel(tuple(PipelineUnit(f"unit {index}", 100, **figures) for index in range(units)))


def signature(of: PipelineModel | None = None) -> Signature:
    return msgspec.structs.replace(SIGNATURE, pipeline=of or model())


class PipelineDriver(JobDriver):
    """Workers that hold what the plan of the ring that they entered gives them."""

    def __init__(self, *, of: PipelineModel | None = None, **changes: Any) -> None:
        super().__init__(settings(4, **changes), signature(of))
        self.held: dict[str, tuple[UnitRange, ...]] = {}

    @property
    def plan(self) -> PipelinePlan:
        plan = self.state.ring.plan
        assert isinstance(plan, PipelinePlan)
        return plan

    @property
    def sources(self) -> tuple[UnitSource, ...]:
        return self.plan.sources

    def stages(self) -> list[tuple[int, int, list[str]]]:
        names = self.members
        return [
            (stage.first_unit, stage.end_unit, [names[place] for place in stage.replicas])
            for stage in self.plan.stages
        ]

    def entered(self) -> None:
        """All members hold what the plan gives them."""
        for place, worker in enumerate(self.members):
            self.held[worker] = tuple(
                UnitRange(stage.first_unit, stage.end_unit)
                for stage in self.plan.stages
                if place in stage.replicas or place in stage.shadows
            )

    def ready_at(self, worker: str, applied: int, *, units: tuple[UnitRange, ...] | None = None) -> None:
        held = self.held.get(worker, ()) if units is None else units
        event = events.ReadyReported(
            worker, self.session(worker), self.generation, applied, worker in self.held, held
        )
        self.do(event)

    def die(self, worker: str) -> None:
        """A process ends, as its agent reports: it will not return."""
        self.lose(worker)
        self.do(events.ExitReported(worker, "killed by SIGKILL"))

    def train(self, *workers: str, until: int = 3) -> None:
        self.form(*workers)
        self.entered()
        self.steps(0, until)
        self.take()


def three(**changes: Any) -> PipelineDriver:
    """Three workers, a stage on each, after three steps; the last is prepared, and applied by none."""
    job = PipelineDriver(**changes)
    job.train("a", "b", "c")
    return job


# ------------------------------------------------------------------ the first ring


def test_before_anything_is_measured_the_units_are_shared_out_evenly_and_go_says_so() -> None:
    job = PipelineDriver()
    job.join("a")
    job.join("b")
    job.join("c")
    job.gather()
    for worker in "abc":
        job.ready(worker)
    job.loaded("a")
    sent = job.take(effects.Go)
    assert set(sent) == {"a", "b", "c"}
    assert sent["a"].pipeline == sent["b"].pipeline == job.plan
    assert job.stages() == [(0, 2, ["a"]), (2, 4, ["b"]), (4, 6, ["c"])]
    assert job.sources == (UnitSource(0, UNITS),), "the script's initial state"
    [note] = job.noted("stages_planned")
    assert "units 0 to 1 on a; units 2 to 3 on b; units 4 to 5 on c" in note.reason
    assert "nothing is measured yet" in note.reason


@pytest.mark.parametrize(
    ("bounds", "stages"),
    [
        ((1, 0), [["a"], ["b"], ["c"]]),
        ((1, 2), [["a", "c"], ["b"]]),
        ((1, 1), [["a", "b", "c"]]),
        ((9, 0), [["a"], ["b"], ["c"]]),
    ],
)
def test_stages_keep_to_their_bounds_and_other_workers_are_replicas(
    bounds: tuple[int, int], stages: list[list[str]]
) -> None:
    job = PipelineDriver(pipeline_stages_min=bounds[0], pipeline_stages_max=bounds[1])
    job.train("a", "b", "c", until=0)
    assert [workers for _, _, workers in job.stages()] == stages


def test_there_are_no_more_stages_than_units_and_tied_ones_stay_together() -> None:
    job = PipelineDriver(of=model(2))
    job.train("a", "b", "c", until=0)
    assert job.stages() == [(0, 1, ["a", "c"]), (1, 2, ["b"])]
    tied = PipelineModel(tuple(PipelineUnit(str(index), tie=int(index in (0, 3))) for index in range(6)))
    job = PipelineDriver(of=tied)
    job.train("a", "b", "c", until=0)
    assert job.stages() == [(0, 4, ["a"]), (4, 5, ["b"]), (5, 6, ["c"])]
    alone = PipelineDriver(of=model(1))
    alone.train("a", "b", until=0)
    assert alone.stages() == [(0, 1, ["a", "b"])]


def test_a_shadow_holds_the_units_of_the_stage_before() -> None:
    job = three(pipeline_shadows=1)
    assert [stage.shadows for stage in job.plan.stages] == [(1,), (2,), (0,)]
    alone = PipelineDriver(pipeline_shadows=1)
    alone.train("a", until=0)
    assert [stage.shadows for stage in alone.plan.stages] == [()]


# ------------------------------------------------------------------ the commit rule


def test_after_a_death_all_apply_what_is_prepared_before_they_are_ready() -> None:
    job = three(pipeline_shadows=1)
    job.lose("c")
    prepares = job.take(effects.Prepare)
    assert {worker: message.prepared_until for worker, message in prepares.items()} == {"a": 3, "b": 3}
    # A master that is asked again says the same.
    assert job.state.ring.finishing == ("a", "b")
    job.ready_at("a", 3)
    job.ready_at("b", 3)
    go = job.take(effects.Go)["a"]
    assert go.resume_step == 3 and go.receivers == ()
    # Each one's shadow is the next: a's is b, b's was c, c's is a.
    donors = [(one.first_unit, one.end_unit, one.donors) for one in job.sources]
    assert donors == [(0, 2, (0, 1)), (2, 4, (1,)), (4, 6, (0,))]
    assert not job.noted("units_lost")


def test_a_newcomer_and_a_worker_that_came_back_are_told_to_apply_nothing() -> None:
    job = three(pipeline_shadows=1)
    job.join("d", session="d-1")
    job.lose("c")
    job.rejoin("c", job.generation - 1, 2, session="c-2")
    job.lose("b")
    prepares = job.take(effects.Prepare)
    assert prepares["a"].prepared_until == 3
    assert prepares["c"].prepared_until is None and prepares["d"].prepared_until is None


def test_a_step_that_is_not_prepared_is_applied_by_nobody() -> None:
    job = three(pipeline_shadows=1)
    job.report("a", 3)
    job.report("b", 3)
    job.lose("c")
    assert {one.prepared_until for one in job.take(effects.Prepare).values()} == {3}


def test_ordinary_jobs_are_told_nothing_of_it() -> None:
    job = JobDriver(settings(4))
    job.form("a", "b")
    job.steps(0, 3)
    job.take()
    job.lose("b")
    assert job.take(effects.Prepare)["a"].prepared_until is None


def test_survivors_that_wait_for_more_workers_apply_it_too() -> None:
    job = PipelineDriver(workers_min=2, pipeline_shadows=1)
    job.train("a", "b")
    job.lose("b")
    assert job.state.ring.stage == "none"
    assert job.take(effects.Prepare)["a"].prepared_until == 3


def test_a_member_that_could_not_apply_takes_its_units_from_others() -> None:
    job = three(pipeline_shadows=1)
    job.die("c")
    job.ready_at("a", 3)
    job.ready_at("b", 2)  # its units are at c, which is dead, and at a
    lost = job.noted("units_lost")
    assert lost and "units 2 to 3 after 3 steps" in lost[0].reason
    assert job.state.ring.stage == "loading"


# ------------------------------------------------------------------ units that nobody holds


def test_a_lost_unit_sends_all_back_to_the_newest_checkpoint() -> None:
    job = three(checkpoint_url="file:///saved")
    job.die("b")
    assert job.take(effects.Prepare)["a"].prepared_until == 3
    job.ready_at("a", 3)
    job.ready_at("c", 3)
    assert set(job.take(effects.Load)) == {"a"}
    assert "units 2 to 3 after 3 steps" in job.noted("units_lost")[0].reason
    job.loaded("a", 2, "step-2")
    go = job.take(effects.Go)["c"]
    assert go.resume_step == 2 and go.donors == (0,) and go.receivers == (1,)
    assert job.sources == (UnitSource(0, UNITS, (), "step-2"),), "all of them, also those that a and c had"
    # What they said they held belongs to another history: it is no source any more.
    job.lose("c")
    job.held["a"] = ()
    job.ready_at("a", 2)
    assert job.state.ring.stage == "loading"


def test_before_history_is_given_up_those_outside_the_ring_are_asked_what_they_hold() -> None:
    job = PipelineDriver(workers_max=2)
    job.train("a", "b")
    job.join("c")
    job.lose("b")
    job.rejoin("b", job.generation - 1, 3, session="b-2")
    assert job.members == ("a", "c"), "there is no place for b"
    job.ready_at("a", 3)
    job.ready_at("c", 0)
    assert job.state.ring.stage == "preparing", "b claims to hold the state, and has not been asked"
    for worker in ("a", "c", "b"):
        job.ready_at(worker, 3 if worker in job.held else 0)
    assert job.members == ("a", "c", "b") and job.state.ring.leaving == ("b",)
    for worker in ("a", "c", "b"):
        job.ready_at(worker, 3 if worker in job.held else 0)
    assert job.state.ring.stage == "running"
    assert [one.donors for one in job.sources] == [(0,), (2,)]
    assert job.stages() == [(0, 3, ["a"]), (3, 6, ["c"])] and not job.noted("units_lost")


def test_units_that_the_model_does_not_have_are_refused() -> None:
    job = three()
    job.lose("c")
    with pytest.raises(Rejection, match="holds units 5 to 6 of 6"):
        job.ready_at("a", 3, units=(UnitRange(5, 7),))
    with pytest.raises(Rejection, match="of 6"):
        job.ready_at("a", 3, units=(UnitRange(2, 2),))


# ------------------------------------------------------------------ leaving and growing


def drain(job: PipelineDriver, worker: str) -> None:
    job.do(events.LeavingReported(worker, job.session(worker), "SIGTERM"))


def change(job: PipelineDriver, step: int) -> None:
    """The planned change that came with Prepared of `step`."""
    assert job.state.ring.planned and job.state.ring.stage == "preparing"
    for worker in job.members:
        job.ready_at(worker, step + 1)
    job.entered()


def test_who_alone_holds_units_hands_them_over_before_it_leaves() -> None:
    job = three()
    drain(job, "b")
    job.step(3)
    assert job.members == ("a", "b", "c") and job.state.ring.leaving == ("b",)
    change(job, 3)
    assert job.stages() == [(0, 3, ["a"]), (3, 6, ["c"])], "it stays home of its ESTs, without a stage"
    assert {one.donors for one in job.sources} == {(0,), (1,), (2,)}
    assert "b" not in job.take(effects.Drain)
    job.step(4)
    assert job.members == ("a", "c")
    assert {message.then_prepare.members for message in job.take(effects.Prepared).values()} >= {()}
    change(job, 4)
    job.ready_at("b", 5)
    assert "b" in job.take(effects.Drain)
    assert not job.noted("units_lost")


def test_whose_units_have_a_second_holder_leaves_at_once() -> None:
    job = three(pipeline_shadows=1)
    drain(job, "b")
    job.step(3)
    assert job.members == ("a", "c") and job.state.ring.leaving == ()


def test_a_newcomer_waits_where_there_is_no_room_for_who_hands_over() -> None:
    job = PipelineDriver()
    job.train("a", "b", "c", "d")  # as many as ESTs
    job.join("e")
    drain(job, "b")
    job.step(3)
    assert job.members == ("a", "b", "c", "d") and job.state.ring.leaving == ("b",)
    change(job, 3)
    job.step(4)
    assert job.members == ("a", "c", "d", "e")
    change(job, 4)
    assert sum(len(workers) for _, _, workers in job.stages()) == 4


def test_fewer_workers_than_stages_hand_over_too() -> None:
    job = three()
    job.do(events.ScaleRequested("r1", 1, 2))
    job.step(3)
    assert job.members == ("a", "b", "c") and job.state.ring.leaving == ("c",)
    change(job, 3)
    job.step(4)
    assert job.members == ("a", "b")


def test_where_nobody_can_take_over_a_checkpoint_is_saved_first() -> None:
    job = PipelineDriver(checkpoint_url="file:///saved", workers_max=2)
    job.signature = signature()
    job.machine.state.settings = msgspec.structs.replace(job.machine.state.settings, ests=2)
    job.train("a", "b")
    job.join("c")
    job.join("d")
    drain(job, "a")
    drain(job, "b")
    job.step(3)
    flight = job.state.checkpoints.in_flight
    assert flight is not None and flight.closing


def test_newcomers_get_units_from_all_who_hold_them() -> None:
    job = PipelineDriver(pipeline_stages_max=1)
    job.train("a", "b")
    job.join("c")
    job.step(3)
    job.ready_at("a", 4)
    job.ready_at("b", 4)
    job.ready_at("c", 0)
    assert job.stages() == [(0, UNITS, ["a", "b", "c"])]
    assert job.sources == (UnitSource(0, UNITS, (0, 1)),)
    go = job.take(effects.Go)["c"]
    assert go.donors == (0, 1) and go.receivers == (2,)


# ------------------------------------------------------------------ after a death


def test_the_stages_stay_where_a_shadow_takes_the_place_of_the_dead() -> None:
    job = three(pipeline_shadows=1)
    job.lose("b")
    job.ready_at("a", 3)
    job.ready_at("c", 3)
    # b's shadow was c, which has a stage: two stages are left for two workers.
    assert job.stages() == [(0, 3, ["a"]), (3, 6, ["c"])]
    assert [stage.shadows for stage in job.plan.stages] == [(1,), (0,)]


def test_a_replica_that_died_leaves_the_stages_as_they_are() -> None:
    job = PipelineDriver(pipeline_stages_max=2)
    job.train("a", "b", "c", "d")
    before = [stage[:2] for stage in job.stages()]
    assert [len(workers) for _, _, workers in job.stages()] == [2, 2]
    job.lose("d")
    for worker in "abc":
        job.ready_at(worker, 3)
    assert [stage[:2] for stage in job.stages()] == before
    assert [len(workers) for _, _, workers in job.stages()] == [2, 1]


# ------------------------------------------------------------------ the end


@pytest.mark.parametrize("order", ["acb", "abc", "bac"])
@pytest.mark.parametrize("applied", [False, True], ids=["in the last step", "after it"])
def test_a_result_of_which_units_died_at_the_end_is_not_taken(order: str, applied: bool) -> None:
    job = three(checkpoint_url="file:///saved")
    job.steps(3, 20)
    for worker in "abc" if applied else "":
        job.applied(worker, 20)
    for worker in order:
        if worker == "b":
            job.lose(worker)
        else:
            job.bye(worker)
    assert job.state.phase == "waiting", "the next worker goes on from the checkpoint"
    whole = three()
    whole.steps(3, 20)
    for worker in "abc":
        whole.bye(worker)
    assert whole.state.phase == "succeeded"


# ------------------------------------------------------------------ what is refused, and what is off


@pytest.mark.parametrize(
    ("of", "what"),
    [
        (model(5), "number of units differs"),
        (PipelineModel(tuple(PipelineUnit("x", 100) for _ in range(UNITS))), "unit unit 0 name differs"),
        (PipelineModel(model().units, 2), "micro-batches of an EST"),
        (model(buffer_bytes=4), "buffer_bytes differs"),
    ],
)
def test_another_model_is_refused(of: PipelineModel, what: str) -> None:
    job = PipelineDriver()
    job.join("a")
    job.signature = signature(of)
    with pytest.raises(Rejection, match=what):
        job.join("b")


def test_a_pipeline_and_an_uncut_model_do_not_train_together() -> None:
    job = PipelineDriver()
    job.join("a")
    job.signature = SIGNATURE
    with pytest.raises(Rejection, match="the job has one of 6 units, b has none"):
        job.join("b")


def test_what_was_measured_may_differ() -> None:
    job = PipelineDriver()
    job.join("a")
    job.signature = signature(model(forward_seconds=0.5, activation_bytes=9))
    job.join("b")
    assert "b" in job.state.workers


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"pipeline_stages_max": 3}, "--pipeline"),
        ({"pipeline_stages_min": 2, "pipeline_stages_max": 3}, "--pipeline"),
        ({"pipeline_shadows": 1}, "--shadow"),
    ],
)
def test_a_script_without_a_pipeline_is_refused_where_stages_are_asked_for(
    asked: dict[str, int], named: str
) -> None:
    job = JobDriver(settings(4, **asked))
    before = job.machine.snapshot()
    with pytest.raises(Rejection, match=f"a: the script has no pipeline, for which the job has {named}$"):
        job.join("a")
    assert job.machine.snapshot() == before


@pytest.mark.parametrize(
    "figures",
    [{"forward_seconds": float("nan")}, {"backward_seconds": -1.0}, {"parameter_bytes": -5}],
    ids=str,
)
def test_figures_that_cannot_be_true_are_refused(figures: dict[str, Any]) -> None:
    units = (PipelineUnit("u"), msgspec.structs.replace(PipelineUnit("v"), **figures))
    job = PipelineDriver(of=PipelineModel(units))
    with pytest.raises(Rejection, match=next(iter(figures))):
        job.join("a")
    none = PipelineDriver(of=PipelineModel(()))
    with pytest.raises(Rejection, match="units"):
        none.join("a")


# ------------------------------------------------------------------ memory

#: Weights, gradients of four micro-batches, and a piece on its way, of six units: on one device alone.
ALONE = UNITS * 100 * (1 + 4 + 1)


def test_a_job_waits_for_as_many_workers_as_hold_its_model() -> None:
    job = PipelineDriver()
    job.join("a", memory_bytes=ALONE // 2 + 200)
    job.gather()
    assert job.state.ring.stage == "none"
    assert job.state.reason == "1 of at least 2 workers are there; fewer do not have the memory for the model"
    job.join("b", memory_bytes=ALONE // 2 + 200)
    job.gather()
    assert job.members == ("a", "b")


def test_a_model_that_no_number_of_workers_holds_is_refused_with_the_least_that_would_do() -> None:
    job = PipelineDriver(workers_max=2)
    before = job.machine.snapshot()
    with pytest.raises(Rejection) as raised:
        job.join("a", memory_bytes=ALONE // 3 + 200)
    assert "does not fit into 2 workers: stage 0 (units unit 0 to unit 2) needs 1.76 KiB" in str(raised.value)
    assert raised.value.hint.startswith("3 devices with 1.37 KiB each would do"), raised.value.hint
    assert job.machine.snapshot() == before
    with pytest.raises(Rejection) as raised:
        job.join("a", memory_bytes=300)
    assert "unit 0) alone needs" in raised.value.hint
    with pytest.raises(Rejection) as raised:  # a ring has as many workers as ESTs at most
        PipelineDriver().join("a", memory_bytes=ALONE // 6)
    assert raised.value.hint == (
        "6 devices with 600 bytes each would do, or smaller micro-batches; they would need --ests 6, too"
    )
    job.join("b", memory_bytes=ALONE // 2 + 200)  # with whom this one would do
    job.join("a", memory_bytes=300)


def test_a_job_is_not_scaled_to_fewer_workers_than_hold_its_model() -> None:
    job = PipelineDriver()
    for worker in "ab":
        job.join(worker, memory_bytes=ALONE // 2 + 200)
    before = job.machine.snapshot()
    with pytest.raises(Rejection, match="the model needs the memory of 2 workers, and 1 would be allowed"):
        job.do(events.ScaleRequested("r1", 1, 1))
    assert job.machine.snapshot() == before
    job.do(events.ScaleRequested("r2", 1, 2))


def test_who_leaves_takes_the_memory_along() -> None:
    job = PipelineDriver()
    for worker, memory in (("a", ALONE + 200), ("b", ALONE // 2 + 200), ("c", 300)):
        job.join(worker, memory_bytes=memory)
    assert job.state.workers_needed == 1
    job.lose("a")
    assert job.state.workers_needed == 2
    job.lose("b")
    assert job.state.workers_needed == 4, "all that may be: no number of such workers would do"
    job.join("a", memory_bytes=ALONE + 200)
    assert job.state.workers_needed == 1


def test_a_worker_that_may_use_more_memory_now_is_not_made_to_wait() -> None:
    job = PipelineDriver()
    job.join("a", memory_bytes=ALONE // 2 + 200)
    job.gather()
    assert job.state.ring.stage == "none"
    job.do(events.AppliedReported("a", job.session("a"), 0, 0, memory_bytes=ALONE + 200), after=11.0)
    assert job.state.workers_needed == 1 and job.state.ring.stage != "none"


def test_with_more_workers_allowed_as_many_are_waited_for_as_hold_the_model() -> None:
    job = PipelineDriver(workers_max=1)
    job.join("a", memory_bytes=ALONE + 200)
    job.join("b", memory_bytes=ALONE // 2 + 200)
    job.lose("a")
    assert job.state.workers_needed == 1
    job.do(events.ScaleRequested("r1", 1, 3))
    assert job.state.workers_needed == 2


def test_of_a_large_model_only_weights_are_counted_within_a_decision() -> None:
    units = tuple(UnitProfile(f"u{index}", parameter_bytes=100) for index in range(200))
    assert stage_memory.workers_least(Profile(units), 256, 256, 1000) == 20
    assert stage_memory.workers_least(Profile(units), 256, 256, 1) == 256


def test_memory_that_cannot_be_true_is_not_believed() -> None:
    job = PipelineDriver()
    job.join("a", memory_bytes=-1)
    job.join("b", memory_bytes=2**62)
    assert {record.memory_bytes for record in job.state.workers.values()} == {0}
    assert job.state.workers_needed == 1


def test_stages_run_forwards_again_where_activations_do_not_fit() -> None:
    figures = {"activation_bytes": 1000, "boundary_bytes": 10}
    for more in ({}, {"forward_seconds": 0.01, "backward_seconds": 0.02}):
        job = PipelineDriver(of=model(**figures, **more))
        for worker in "ab":
            job.join(worker, memory_bytes=6000)
        job.gather()
        for worker in "ab":
            job.ready(worker)
        job.loaded("a")
        assert [stage.memory for stage in job.plan.stages] == ["checkpoint", "plain"], more


def test_units_of_unlike_size_are_cut_by_size_where_an_even_cut_does_not_fit() -> None:
    sizes = (500, 100, 100, 100, 100, 100)
    large = PipelineModel(tuple(PipelineUnit(f"unit {i}", size) for i, size in enumerate(sizes)))
    job = PipelineDriver(of=large)
    for worker in "ab":
        job.join(worker, memory_bytes=3100)
    job.gather()
    for worker in "ab":
        job.ready(worker)
    job.loaded("a")
    assert job.stages() == [(0, 1, ["a"]), (1, 6, ["b"])]


def test_fewer_workers_than_hold_the_model_wait_after_a_death() -> None:
    job = PipelineDriver(pipeline_shadows=0)
    for worker in "abc":
        job.join(worker, memory_bytes=ALONE // 3 + 300)
    job.gather()
    for worker in "abc":
        job.ready(worker)
    job.loaded("a")
    job.entered()
    job.steps(0, 2)
    job.take()
    job.lose("c")
    assert job.state.ring.stage == "none"
    assert job.state.reason == "2 of at least 3 workers are there; fewer do not have the memory for the model"


def test_what_no_pipeline_has_is_off_and_said() -> None:
    job = PipelineDriver(scaling="efficiency", sentinel_steps=5)
    job.join("a")
    assert job.state.settings.scaling == "" and job.state.settings.sentinel_steps == 0
    assert job.noted("pipeline_without")[0].reason == (
        "the script is a pipeline, which runs without --auto and --sentinel"
    )
    with pytest.raises(Rejection, match="does not scale by itself"):
        job.do(events.ScaleRequested("r1", 0, 0, "efficiency"))
    job.do(events.ScaleRequested("r2", 1, 2))
    assert pipelines.WITHOUT.keys() == {"scaling", "sentinel_steps"}
