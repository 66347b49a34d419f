"""The save protocol."""

from __future__ import annotations

import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.views import checkpoints_view

URL = "file:///checkpoints"


def running(*workers: str, ests: int = 4, **changes: object) -> JobDriver:
    job = JobDriver(settings(ests, **{"checkpoint_url": URL, **changes}))
    job.form(*workers)
    return job


def begun(job: JobDriver, step: int) -> dict[str, effects.Checkpoint]:
    """Does a step; the Checkpoints that ride on its Prepared, by worker."""
    job.step(step)
    found = {worker: message.then_checkpoint for worker, message in job.take(effects.Prepared).items()}
    return {worker: message for worker, message in found.items() if message is not None}


def write(job: JobDriver, messages: dict[str, effects.Checkpoint]) -> None:
    """All shards and the manifest."""
    for worker, message in messages.items():
        job.saved(worker, message)
    leader, manifest = next(iter(job.take(effects.Checkpoint).items()))
    job.saved(leader, manifest, complete=True)


def test_every_interval() -> None:
    job = running("a", "b", checkpoint_interval_steps=3)
    assert begun(job, 0) == {} and begun(job, 1) == {}
    messages = begun(job, 2)
    assert [(m.step, m.shard, m.shards) for m in messages.values()] == [(3, 0, 2), (3, 1, 2)]
    job.saved("b", messages["b"])
    assert job.take(effects.Checkpoint) == {}
    job.saved("a", messages["a"])
    manifest = job.take(effects.Checkpoint)
    assert list(manifest) == ["a"] and [entry.shard for entry in manifest["a"].manifest] == [0, 1]
    assert job.state.checkpoints.saved_step == -1
    job.saved("a", manifest["a"], complete=True)
    assert job.state.checkpoints.saved_step == 3


def test_the_last_boundary_too_but_nothing_else_changes_there() -> None:
    job = running("a", checkpoint_interval_steps=20)
    job.steps(0, 19)
    job.do(events.LeavingReported("a", "a-1", "spot notice"))
    job.take()
    messages = begun(job, 19)
    assert messages["a"].step == 20 and not job.state.steps.hold
    write(job, messages)
    job.bye("a")
    assert job.state.phase == "succeeded" and job.generation == 1


def test_on_demand_the_request_finds_its_checkpoint() -> None:
    job = running("a")
    job.do(events.CheckpointRequested("r1"))
    assert not job.do(events.CheckpointRequested("r1")).durable
    assert checkpoints_view(job.machine).pending == ("r1",)
    write(job, begun(job, 0))
    view = checkpoints_view(job.machine)
    assert view.pending == () and view.saved[-1].requests == ("r1",) and view.saved_step == 1


def test_an_error_gives_the_checkpoint_up_and_training_goes_on() -> None:
    job = running("a", "b")
    job.do(events.CheckpointRequested("r1"))
    messages = begun(job, 0)
    job.saved("a", messages["a"], error="disk full")
    view = checkpoints_view(job.machine)
    assert view.failed[-1].requests == ("r1",) and "disk full" in view.failed[-1].error
    assert not job.do(
        events.SavedReported("b", "b-1", messages["b"].checkpoint, 1, 1, "f", "s", 8)
    ).durable, "late, of a checkpoint that was given up"
    job.step(1)
    assert set(job.take(effects.Prepared)) == {"a", "b"}


def test_a_change_of_the_ring_gives_it_up_and_asks_again() -> None:
    job = running("a", "b")
    job.do(events.CheckpointRequested("r1"))
    begun(job, 0)
    job.lose("b")
    assert checkpoints_view(job.machine).pending == ("r1",)
    job.ready("a", 1, holds=True)
    job.take()
    write(job, begun(job, 1))
    assert checkpoints_view(job.machine).saved[-1].requests == ("r1",)


def test_only_as_many_as_are_kept_are_listed() -> None:
    job = running("a", checkpoint_interval_steps=1, checkpoint_keep=2)
    for step in range(4):
        write(job, begun(job, step))
    assert [saved.step for saved in checkpoints_view(job.machine).saved] == [3, 4]


def test_a_shard_of_somebody_else_is_refused() -> None:
    job = running("a", "b", checkpoint_interval_steps=1)
    messages = begun(job, 0)
    with pytest.raises(Rejection):
        job.saved("a", messages["a"], shard=1)
    with pytest.raises(Rejection):
        job.saved("a", messages["a"], complete=True)


def test_a_written_shard_proves_that_its_step_was_applied() -> None:
    job = running("a", checkpoint_interval_steps=1)
    job.saved("a", begun(job, 0)["a"])
    assert [commit.step for commit in job.commits] == [0]


def test_one_that_is_never_written_is_given_up() -> None:
    job = running("a", checkpoint_interval_steps=1, idle_max_seconds=60.0)
    begun(job, 0)
    job.applied("a", 1, between=True)
    while job.state.checkpoints.in_flight is not None:
        job.tick_due()
    assert job.noted("checkpoint_failed")


def test_the_last_worker_drains_after_a_checkpoint_and_loses_no_step() -> None:
    job = running("a")
    job.do(events.LeavingReported("a", "a-1", "spot notice"))
    messages = begun(job, 0)
    assert messages["a"].step == 1
    job.report("a", 1)
    assert job.take(effects.Prepared) == {}, "step 1 would not be in the checkpoint"
    write(job, messages)
    assert [type(message) for worker, message in job.sent] == [effects.Prepare]
    job.ready("a", 1, holds=True)
    assert set(job.take(effects.Drain)) == {"a"}
    job.bye("a", "drained", 1)
    assert job.state.phase == "waiting" and [commit.step for commit in job.commits] == [0]


def test_a_closing_checkpoint_that_fails_lets_training_go_on_and_is_tried_again() -> None:
    job = running("a")
    job.do(events.LeavingReported("a", "a-1", "spot notice"))
    messages = begun(job, 0)
    job.report("a", 1)
    job.take()
    job.saved("a", messages["a"], error="disk full")
    assert job.take(effects.Prepared)["a"].step == 1
    assert begun(job, 2) == {}
    job.now += 5.0
    assert set(begun(job, 3)) == {"a"}


def test_a_newcomer_takes_the_place_of_a_draining_holder_during_its_checkpoint() -> None:
    job = running("a")
    job.do(events.LeavingReported("a", "a-1", "spot notice"))
    messages = begun(job, 0)
    job.join("b")
    job.report("a", 1)
    job.take()
    write(job, messages)
    assert job.members == ("a", "b"), "there is somebody to hand over to: nothing ends"
    assert job.take(effects.Prepared)["a"].then_prepare is not None


def test_with_one_est_the_state_moves_by_a_checkpoint() -> None:
    job = running("a", ests=1)
    job.do(events.LeavingReported("a", "a-1", "spot notice"))
    job.join("b")
    messages = begun(job, 0)
    write(job, messages)
    job.ready("a", 1, holds=True)
    job.ready("b")
    assert set(job.take(effects.Load)) == {"b"}
    job.loaded("b", 1, messages["a"].checkpoint)
    assert job.take(effects.Go)["b"].resume_step == 1
    assert not job.noted("history_rewound")


def test_without_a_url_there_is_nothing_to_ask_for() -> None:
    job = running("a", checkpoint_url="")
    with pytest.raises(Rejection) as refused:
        job.do(events.CheckpointRequested("r"))
    assert refused.value.hint
