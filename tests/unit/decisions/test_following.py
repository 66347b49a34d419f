"""A newcomer follows the ring before it joins: when, when it is believed, and what happens when it fails."""

from __future__ import annotations

import msgspec
import pytest

from elastane_master.decisions import effects, events, following
from unit.decisions.job_driver import SIGNATURE, JobDriver, settings

LONG = msgspec.structs.replace(SIGNATURE, steps_per_epoch=100, epochs=1, dataset_size=800)


@pytest.fixture
def job() -> JobDriver:
    """A ring of a and b at step 2, and c, which is worth following for."""
    return with_newcomer(follows=True)


def with_newcomer(*, follows: bool) -> JobDriver:
    driver = JobDriver(settings(4), LONG)
    for worker in ("a", "b"):
        driver.join(worker, follows=True)
    driver.tick_due()
    for worker in ("a", "b"):
        driver.ready(worker)
    driver.loaded("a")
    driver.steps(0, 2)
    driver.take()
    driver.join("c", follows=follows)
    return driver


def reported(driver: JobDriver, worker: str, step: int, digest: int, error: str = "") -> None:
    session = driver.session(worker)
    driver.do(events.FollowReported(worker, session, driver.generation, step, digest, error))


def is_postponed(driver: JobDriver, step: int) -> bool:
    """Do a step; True if the ring goes on without the newcomer."""
    driver.step(step)
    return bool(driver.state.ring.stage == "running")


def joined(driver: JobDriver, applied: int, *, newcomer_at: int | None) -> effects.Go:
    """All answer; the newcomer says that it holds the state after so many steps, or that it has none."""
    driver.ready("a", applied, holds=True)
    driver.ready("b", applied, holds=True)
    driver.ready("c", newcomer_at or 0, holds=newcomer_at is not None)
    return driver.take(effects.Go)["a"]


def test_a_newcomer_that_is_level_joins_with_the_state_in_place(job: JobDriver) -> None:
    assert is_postponed(job, 2)
    told = {worker: message for worker, message in job.sent if isinstance(message, effects.Follow)}
    prepared = {worker: message for worker, message in job.sent if isinstance(message, effects.Prepared)}
    assert list(told) == ["c"]
    follow = told["c"]
    assert (follow.step, follow.source, follow.store_address) == (3, "b", "c:1")
    assert prepared["b"].follow == follow and prepared["a"].follow is None
    job.take()
    assert is_postponed(job, 3)
    reported(job, "b", 4, 77)
    assert is_postponed(job, 4)
    reported(job, "c", 4, 77)
    job.take()
    assert not is_postponed(job, 5)
    prepares = {worker: message for worker, message in job.sent if isinstance(message, effects.Prepare)}
    assert prepares["c"].followed
    go = joined(job, 6, newcomer_at=6)
    assert go.receivers == () and set(go.donors) == {0, 1, 2}
    assert job.state.following is None


def test_a_newcomer_whose_copy_is_another_receives_the_state(job: JobDriver) -> None:
    is_postponed(job, 2)
    reported(job, "b", 3, 77)
    reported(job, "c", 3, 78)
    job.take()
    assert not is_postponed(job, 3)
    prepares = {worker: message for worker, message in job.sent if isinstance(message, effects.Prepare)}
    assert not prepares["c"].followed
    go = joined(job, 4, newcomer_at=4)
    assert go.receivers == (go.members.index(next(one for one in go.members if one.worker == "c")),)
    assert job.state.following is not None, (
        "what it says of its state is not believed in the next change either"
    )


def test_digests_of_different_steps_say_nothing(job: JobDriver) -> None:
    is_postponed(job, 2)
    reported(job, "b", 3, 77)
    reported(job, "c", 4, 77)
    assert not is_postponed(job, 3)
    assert joined(job, 4, newcomer_at=4).receivers


def test_a_newcomer_that_lies_about_its_step_receives_the_state(job: JobDriver) -> None:
    is_postponed(job, 2)
    reported(job, "b", 3, 77)
    reported(job, "c", 3, 77)
    assert not is_postponed(job, 3)
    assert joined(job, 4, newcomer_at=3).receivers


@pytest.mark.parametrize("worker", ["b", "c"])
def test_who_gives_up_lets_the_newcomer_join_at_the_next_boundary(job: JobDriver, worker: str) -> None:
    is_postponed(job, 2)
    reported(job, worker, 0, 0, "no room")
    assert "no room" in job.state.workers["c"].reason
    assert not is_postponed(job, 3)


def test_a_newcomer_that_is_never_level_joins_all_the_same(job: JobDriver) -> None:
    is_postponed(job, 2)
    job.now += following.FOLLOW_SECONDS_MAX + 1
    assert not is_postponed(job, 3)


def test_a_newcomer_of_an_older_release_joins_at_once() -> None:
    assert not is_postponed(with_newcomer(follows=False), 2)


def test_others_reports_are_not_taken(job: JobDriver) -> None:
    is_postponed(job, 2)
    reported(job, "a", 3, 77)
    reported(job, "b", 3, 77)
    assert not job.state.following.proven
    reported(job, "c", 3, 77)
    assert job.state.following.proven


def test_a_newcomer_that_came_again_follows_anew(job: JobDriver) -> None:
    is_postponed(job, 2)
    job.join("c", follows=True, session="c-2")
    job.take()
    assert is_postponed(job, 3)
    assert [message.step for _, message in job.sent if isinstance(message, effects.Follow)] == [4]


def test_a_lost_source_ends_the_following(job: JobDriver) -> None:
    is_postponed(job, 2)
    job.lose("b")
    assert job.state.ring.stage == "preparing"
    assert following.message(job.state) is None


def test_prepared_that_was_lost_brings_the_follow_again(job: JobDriver) -> None:
    is_postponed(job, 2)
    job.take()
    job.report("b", 2)
    assert job.take(effects.Prepared)["b"].follow is not None
