"""A job that goes back to an earlier step after its last one: the loop over epochs goes on from there."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from elastane.runtime.elastic import ElasticJob
from elastane_common.errors import StepError

STEPS_PER_EPOCH, EPOCHS = 2, 3


class FakeTrainer:
    """Applies the steps of an epoch at once. goes_back: for each call of `finish`, the step that the ring
    change in it leads to; None: there is no change."""

    def __init__(self, goes_back: list[int | None]) -> None:
        self.goes_back = goes_back
        self.applied_step = self.epoch = self.values_epoch = 0
        self.total_steps = STEPS_PER_EPOCH * EPOCHS
        self.ended_early = self.values_lost = False
        self.is_leader = True

    @property
    def current_epoch(self) -> int:
        return self.applied_step // STEPS_PER_EPOCH

    def join(self, epochs: int, max_steps: int, **options: Any) -> None:
        pass

    def close_epoch(self, epoch: int) -> None:
        pass

    def end_early(self, place: str) -> bool:
        if self.applied_step >= self.total_steps:
            return self.finish()
        self.ended_early = True
        return True

    def finish(self) -> bool:
        step = self.goes_back.pop(0) if self.goes_back else None
        if step is not None:
            self.applied_step, self.ended_early = step, False
        return self.ended_early or self.applied_step >= self.total_steps


def _job(trainer: FakeTrainer) -> ElasticJob:
    job: Any = ElasticJob.__new__(ElasticJob)
    job._trainer, job._trackers = trainer, []
    job._environment = SimpleNamespace(
        job="train", master="127.0.0.1:1", worker_id="w0", master_timeout_seconds=1.0, report_dir=""
    )
    job._epoch_values = SimpleNamespace(begin=lambda *args, **kwargs: None)
    job._shows_progress = lambda progress: False
    job._warn_of_schedules = lambda count: None
    job._order_warning = ""
    return job  # type: ignore[no-any-return]


def _trained(job: ElasticJob, trainer: FakeTrainer) -> Iterator[int]:
    for epoch in job.epochs(EPOCHS):
        yield epoch
        trainer.applied_step = (epoch + 1) * STEPS_PER_EPOCH


def test_without_a_change_each_epoch_runs_once() -> None:
    trainer = FakeTrainer([])
    assert list(_trained(_job(trainer), trainer)) == [0, 1, 2]


@pytest.mark.parametrize("step, again", [(3, [1, 2]), (4, [2]), (0, [0, 1, 2])])
def test_the_epochs_after_the_earlier_step_run_again(step: int, again: list[int]) -> None:
    trainer = FakeTrainer([step])
    assert list(_trained(_job(trainer), trainer)) == [0, 1, 2, *again]
    assert trainer.applied_step == trainer.total_steps


def test_a_job_may_go_back_more_than_once() -> None:
    trainer = FakeTrainer([5, 3])
    assert list(_trained(_job(trainer), trainer)) == [0, 1, 2, 2, 1, 2]


def test_a_loop_that_was_left_cannot_go_on() -> None:
    """Only a new process can: it is told so, and does not end well with an earlier step's weights."""
    trainer = FakeTrainer([1])

    def script() -> None:
        for epoch in _job(trainer).epochs(EPOCHS):
            trainer.applied_step = (epoch + 1) * STEPS_PER_EPOCH
            if epoch == EPOCHS - 1:
                break

    with pytest.raises(StepError, match="went back to step 1 after the loop over epochs was left"):
        script()


def test_a_loop_that_all_left_early_is_over_whatever_ring_change_comes_then() -> None:
    """The script's code after it runs; a change would end the process, or wait for a ring that never is."""
    trainer = FakeTrainer([1])
    for epoch in _job(trainer).epochs(EPOCHS):
        trainer.applied_step = (epoch + 1) * STEPS_PER_EPOCH
        if epoch == 1:
            break
    assert trainer.applied_step == 2 * STEPS_PER_EPOCH and trainer.goes_back == [1]
