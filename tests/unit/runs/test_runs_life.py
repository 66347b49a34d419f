"""Runs from submission to their end, on runners that behave."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from runs_driver import ELASTIC, RunsDriver

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs import effects, events
from elastane_master.decisions.runs.run import OVER, TRANSITIONS, IllegalTransitionError, Run
from elastane_master.decisions.runs.spec import resolved
from elastane_master.decisions.runs.state import ServiceSettings


def elastic(driver: RunsDriver, **changes: object) -> int:
    result = driver.do(events.RunSubmitted(msgspec.structs.replace(ELASTIC, **changes), "ann"))
    return int(result.run_id)


def test_a_gang_is_prepared_by_all_then_started_and_succeeds() -> None:
    driver = RunsDriver()
    driver.join("a", 2)
    driver.join("b", 2)
    run_id = driver.submit(instances=3)
    assert driver.state(run_id) == "launching"
    (first, first_ranks), (second, second_ranks) = (
        (runner, message) for runner, message in driver.take_with_runner(effects.Prepare)
    )
    assert {*first_ranks.ranks, *second_ranks.ranks} == {0, 1, 2}
    driver.prepared(first, first_ranks)
    assert not driver.take(effects.Start)
    driver.prepared(second, second_ranks)
    starts = driver.take_with_runner(effects.Start)
    assert [runner for runner, _ in starts] == ["a", "b"]
    assert all([one.rank for one in start.endpoints] == [0, 1, 2] for _, start in starts)
    key = driver.key(run_id)
    driver.rank("a", key, 0, "running")
    driver.rank("a", key, 1, "running")
    assert driver.state(run_id) == "launching"
    driver.rank("b", key, 2, "running")
    assert driver.state(run_id) == "running"
    driver.finish(run_id)
    assert driver.state(run_id) == "succeeded" and driver.ended == [run_id]
    assert [one.attempt for one in driver.take(effects.Forget)] == [key, key]
    assert driver.runner("a").slots_used == driver.runner("b").slots_used == 0


def test_a_gang_takes_all_its_slots_or_none() -> None:
    driver = RunsDriver()
    driver.join("a", 3)
    run_id = driver.submit(instances=4)
    assert driver.state(run_id) == "queued" and not driver.sent and driver.runner("a").slots_used == 0
    driver.join("b", 1)
    assert driver.state(run_id) == "launching"


def test_a_run_that_does_not_fit_does_not_block_others() -> None:
    driver = RunsDriver()
    driver.join("a", 2)
    large, small = driver.submit(instances=4), driver.submit(instances=1)
    assert (driver.state(large), driver.state(small)) == ("queued", "launching")


@pytest.mark.parametrize(
    ("exit_code", "state"),
    [(1, "failed"), (127, "failed"), (128, "queued"), (137, "queued"), (255, "queued")],
)
def test_exit_codes_say_whether_a_failure_may_pass(exit_code: int, state: str) -> None:
    driver = RunsDriver()
    driver.join("a", 2)
    run_id = driver.submit(instances=2)
    driver.start_all()
    driver.rank("a", driver.key(run_id), 1, "exited", exit_code)
    assert driver.state(run_id) == "running"  # the others are being stopped
    driver.stop_all()
    assert driver.state(run_id) == state
    assert f"rank 1 ended with {exit_code}" in driver.run(run_id).reason


@pytest.mark.parametrize(
    ("last_line", "state"),
    [
        ("OSError: [Errno 98] Address already in use", "queued"),
        ("port: 29500, code: -98, name: EADDRINUSE, message: address already in use", "queued"),
        ("RuntimeError: no address", "failed"),
    ],
)
def test_a_port_that_was_taken_is_a_failure_that_may_pass(last_line: str, state: str) -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    run_id = driver.submit(retries_max=1)
    driver.start_all()
    driver.rank("a", driver.key(run_id), 0, "exited", 1, last_line)
    driver.stop_all()
    assert driver.state(run_id) == state
    if state == "queued":
        driver.tick_due()
        driver.start_all()
        driver.rank("a", driver.key(run_id), 0, "exited", 1, last_line)
        assert driver.state(run_id) == "failed", "a port of the script's own is taken each time"


def test_parameter_servers_are_stopped_when_all_others_have_ended() -> None:
    driver = RunsDriver()
    driver.join("a", 4)
    run_id = driver.submit(framework="tensorflow", instances=4, chief=True, parameter_servers=2)
    driver.start_all()
    key = driver.key(run_id)
    driver.rank("a", key, 3, "exited")
    driver.rank("a", key, 1, "exited")
    assert driver.state(run_id) == "running" and not driver.take(effects.Stop)
    driver.rank("a", key, 0, "exited")
    driver.stop_all()
    assert driver.state(run_id) == "succeeded"
    assert driver.run(run_id).reason == "all instances but parameter servers ended with 0"


def test_a_parameter_server_that_fails_fails_the_run() -> None:
    driver = RunsDriver()
    driver.join("a", 2)
    run_id = driver.submit(framework="tensorflow", instances=2, parameter_servers=1)
    driver.start_all()
    driver.rank("a", driver.key(run_id), 1, "exited", 1)
    driver.stop_all()
    assert driver.state(run_id) == "failed"


def test_retries_wait_longer_each_time_and_end_with_the_budget() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    run_id = driver.submit(retries_max=2)
    waits = []
    for _ in range(2):
        driver.start_all()
        driver.finish(run_id, 137)
        next_attempt_at = driver.run(run_id).next_attempt_at
        assert next_attempt_at is not None
        waits.append(round(next_attempt_at - driver.now, 6))
        driver.tick_due()
    assert waits == [10.0, 20.0]
    driver.start_all()
    driver.finish(run_id, 137)
    assert driver.state(run_id) == "failed" and driver.run(run_id).attempt == 3
    assert "all 2 retries are used" in driver.run(run_id).reason


def test_a_lost_runner_is_no_attempt_and_its_run_goes_on_when_all_has_stopped() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    driver.join("b", 1)
    run_id = driver.submit(instances=2, retries_max=0)
    driver.start_all()
    driver.lose("b")
    assert driver.state(run_id) == "suspended" and driver.run(run_id).launch is not None
    driver.join("c", 2)
    assert not driver.take(effects.Prepare)  # what runs on a has not stopped yet
    driver.stop_all()
    assert driver.state(run_id) == "launching"
    assert driver.run(run_id).attempt == 1 and driver.run(run_id).failures == 0
    driver.start_all()
    driver.finish(run_id)
    assert driver.state(run_id) == "succeeded"


def test_a_failure_that_follows_a_lost_runner_is_the_runners() -> None:
    """Peers of a lost host fail at once, long before its lease ends."""
    driver = RunsDriver()
    driver.join("a", 1)
    driver.join("b", 1)
    run_id = driver.submit(instances=2, retries_max=0)
    driver.start_all()
    driver.rank("a", driver.key(run_id), 0, "exited", 1)
    driver.lose("b")
    assert driver.state(run_id) == "suspended"


def test_a_runner_that_returns_within_its_lease_keeps_its_instances() -> None:
    driver = RunsDriver()
    driver.join("a", 2)
    run_id = driver.submit(instances=2)
    driver.start_all()
    driver.lose_stream("a")
    driver.tick(after=59.0)
    driver.join("a", 2, *driver.reports(run_id, "a"))
    driver.tick(after=60.0)
    assert driver.state(run_id) == "running" and not driver.sent
    assert driver.runner("a").slots_used == 2


def test_a_runner_that_returns_after_its_lease_is_told_to_stop() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    run_id = driver.submit()
    driver.start_all()
    old = driver.reports(run_id, "a")
    driver.lose("a")
    assert driver.state(run_id) == "suspended"
    driver.join("a", 1, *old)
    (stop,) = driver.take(effects.Stop)
    assert stop.attempt == old[0].attempt
    assert driver.state(run_id) == "suspended"  # its slot is still taken
    driver.stopped("a", stop.attempt)
    assert driver.state(run_id) == "launching" and driver.key(run_id).fence > stop.attempt.fence


def test_a_message_with_an_old_fence_is_answered_with_stop_and_changes_nothing() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    run_id = driver.submit()
    driver.start_all()
    old = driver.key(run_id)
    driver.finish(run_id, 137)
    driver.tick_due()
    driver.start_all()
    driver.take(effects.Forget)
    before = driver.machine.snapshot()
    driver.rank("a", old, 0, "running")
    driver.do(events.LaunchPrepared("a", driver.sessions["a"], old, ()))
    assert driver.machine.snapshot() == before
    assert [stop.attempt for stop in driver.take(effects.Stop)] == [old, old]


def test_a_launch_that_gets_on_is_waited_for_and_one_that_does_not_is_taken_back() -> None:
    driver = RunsDriver()
    seconds = driver.machine.state.settings.prepare_seconds
    driver.join("a", 1)
    driver.join("b", 1)
    run_id = driver.submit(instances=2)
    key = driver.key(run_id)
    (first, second) = driver.take_with_runner(effects.Prepare)
    driver.prepared(*first)
    for _ in range(5):
        driver.tick(after=0.9 * seconds)
        driver.rank(second[0], key, second[1].ranks[0], "pending", reason="downloads the code")
    assert driver.state(run_id) == "launching"
    assert driver.run(run_id).reason == f"{second[0]}: downloads the code"
    driver.prepared(*second)
    driver.tick(after=0.9 * seconds)
    for runner in "ab":
        rank = next(one.rank for one in driver.run(run_id).ranks if one.runner_id == runner)
        driver.rank(runner, key, rank, "pending")
    driver.tick(after=0.9 * seconds)
    assert driver.state(run_id) == "launching"
    driver.tick(after=0.2 * seconds)
    assert "had not started it after 120 s without progress" in driver.run(run_id).reason
    driver.rank("a", key, 0, "pending", reason="late")
    assert "late" not in driver.run(run_id).reason
    driver.stopped("a", key)
    driver.stopped("b", key)
    assert driver.state(run_id) == "queued" and driver.run(run_id).failures == 0


def test_a_rank_that_was_given_up_is_stopped_though_its_runner_gets_on() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    run_id = driver.submit()
    key = driver.key(run_id)
    driver.do(events.LaunchFailed("a", driver.sessions["a"], key, "disk full"))
    driver.take(effects.Stop)
    driver.rank("a", key, 0, "pending", reason="downloads the code")
    assert [stop.attempt for stop in driver.take(effects.Stop)] == [key]


def test_a_launch_that_one_runner_cannot_make_is_taken_back_whole() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    driver.join("b", 1)
    run_id = driver.submit(instances=2)
    key = driver.key(run_id)
    driver.do(events.LaunchFailed("b", driver.sessions["b"], key, "disk full"))
    assert [runner for runner, _ in driver.take_with_runner(effects.Stop)] == ["a"]
    assert driver.state(run_id) == "launching"
    driver.stopped("a", key)
    assert driver.state(run_id) == "queued" and "disk full" in driver.run(run_id).reason
    assert driver.run(run_id).failures == 0
    driver.tick_due()
    assert driver.state(run_id) == "launching" and driver.run(run_id).attempt == 1


def test_a_launch_that_can_never_be_made_fails_the_run() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    run_id = driver.submit()
    driver.do(
        events.LaunchFailed("a", driver.sessions["a"], driver.key(run_id), "no such image", permanent=True)
    )
    assert driver.state(run_id) == "failed" and "no such image" in driver.run(run_id).reason


def test_a_runner_that_never_starts_is_paused_for_a_growing_time() -> None:
    driver = RunsDriver()
    driver.join("liar", 1)
    driver.submit()
    pauses = []
    while len(pauses) < 3:
        driver.tick_due()
        driver.stop_all()
        until = driver.runner("liar").paused_until
        if until is not None:
            pauses.append(round(until - driver.now))
            assert "launches in a row failed" in driver.runner("liar").pause_reason
            driver.tick(after=until - driver.now)
    assert pauses == [60, 120, 240]


def test_a_run_that_no_runner_can_launch_ends() -> None:
    driver = RunsDriver()
    for name in "abcdefgh":
        driver.join(name, 1)
    run_id = driver.submit(retries_max=0)
    for _ in range(100):
        if driver.state(run_id) in OVER:
            break
        for runner, prepare in driver.take_with_runner(effects.Prepare):
            driver.do(events.LaunchFailed(runner, driver.sessions[runner], prepare.attempt, "disk full"))
        if driver.state(run_id) not in OVER:
            driver.tick_due()
    assert driver.state(run_id) == "failed" and "10 launches in a row failed" in driver.run(run_id).reason


def test_a_run_that_runs_too_long_is_stopped_and_fails() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    run_id = driver.submit(run_time_max_seconds=100.0)
    driver.start_all()
    driver.tick(after=99.0)
    assert not driver.take(effects.Stop)
    driver.tick_due()
    driver.stop_all()
    assert driver.state(run_id) == "failed" and "run_time_max" in driver.run(run_id).reason


def test_a_runner_that_does_not_confirm_a_stop_is_given_up() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    driver.join("b", 1)
    run_id = driver.submit()
    driver.start_all()
    driver.cancel(run_id)
    assert driver.run(run_id).cancelling and driver.state(run_id) == "running"
    driver.tick_due()
    assert driver.state(run_id) == "cancelled"
    assert driver.runner("a").slots_used == 1  # it may still be there


def test_elastic_starts_with_its_least_and_grows() -> None:
    driver = RunsDriver()
    driver.join("a", 2)
    run_id = elastic(driver)
    assert isinstance(driver.effects[0], effects.CreateElasticJob)
    assert sum(record.placed for record in driver.run(run_id).ranks) == 2
    driver.start_all()
    assert driver.state(run_id) == "running"
    driver.join("b", 8)
    assert sum(record.placed for record in driver.run(run_id).ranks) == 4
    driver.start_all()
    driver.do(events.ElasticJobEnded(run_id, driver.run(run_id).job, "succeeded"))
    driver.stop_all()
    assert driver.state(run_id) == "succeeded"


def test_elastic_goes_on_when_a_runner_is_lost() -> None:
    driver = RunsDriver()
    driver.join("a", 2)
    driver.join("b", 2)
    run_id = elastic(driver)
    driver.start_all()
    key = driver.key(run_id)
    old = driver.reports(run_id, "b")
    driver.lose("b")
    assert driver.state(run_id) == "running" and not driver.take(effects.Stop)
    driver.join("c", 2)
    assert driver.runner("c").slots_used == 2
    driver.start_all()
    driver.join("b", 2, *old)
    stops = driver.take(effects.Stop)
    assert sorted(stop.rank or 0 for stop in stops) == sorted(one.status.rank for one in old)
    for stop in stops:
        assert stop.rank is not None
        driver.rank("b", key, stop.rank, "exited", 143)
    assert driver.runner("b").slots_used == 0
    assert sum(record.state == "running" for record in driver.run(run_id).ranks) == 4


def test_elastic_with_too_few_left_gives_all_back() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    driver.join("b", 1)
    run_id = elastic(driver, instances_min=2)
    driver.start_all()
    driver.lose("b")
    assert driver.state(run_id) == "suspended"
    driver.stop_all()
    assert driver.runner("a").slots_used == 0


def test_cancel_at_any_stage_ends_cancelled_and_twice_is_once() -> None:
    for stage, twice in product(range(5), (False, True)):
        driver = RunsDriver()
        if stage:
            driver.join("a", 2)
        run_id = driver.submit(instances=2)
        if stage >= 2:
            driver.prepare_all()
        if stage >= 3:
            driver.start_all()
        if stage >= 4:
            driver.rank("a", driver.key(run_id), 0, "exited", 137)
        driver.cancel(run_id)
        if twice:
            driver.cancel(run_id)
        driver.stop_all()
        assert driver.state(run_id) == "cancelled", stage
        driver.cancel(run_id)
        assert driver.ended == [run_id]


def test_what_a_silent_runner_may_have_started_is_placed_elsewhere_only_after_its_lease() -> None:
    driver = RunsDriver(ServiceSettings(prepare_seconds=5.0, lease_seconds=20.0))
    driver.join("a", 1)
    driver.join("b", 1)
    run_id = driver.submit(framework="elastane", instances=2, instances_min=1)
    driver.prepare_all()
    driver.take(effects.Start)
    key, first = driver.key(run_id), driver.run(run_id).ranks[0]
    silent, other = first.runner_id, "b" if first.runner_id == "a" else "a"
    driver.rank(other, key, 1, "running")
    driver.join("c", 1)
    driver.lose_stream(silent)
    driver.tick(after=15.0)
    assert first.state == "starting" and not driver.take(effects.Prepare)
    # It returns, and the instance runs: it is one of the run.
    started = events.RankReport(key, events.RankStatus(0, "running"))
    driver.join(silent, 1, started)
    assert driver.run(run_id).ranks[0].state == "running"
    driver.lose(silent)
    [prepare] = driver.take(effects.Prepare)
    assert prepare.ranks == (0,)


def test_cancel_waits_for_a_runner_that_cannot_be_reached_and_is_kept() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    run_id = driver.submit()
    driver.start_all()
    driver.lose_stream("a")
    driver.cancel(run_id)
    driver.restart()
    assert driver.state(run_id) == "running" and driver.run(run_id).cancelling
    driver.join("a", 1, *driver.reports(run_id, "a"))
    driver.stop_all()
    assert driver.state(run_id) == "cancelled"


def test_retry_keeps_the_id_and_has_a_full_budget() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    run_id = driver.submit()
    with pytest.raises(Rejection, match="launching"):
        driver.do(events.RunRetryRequested(run_id, "r0"))
    driver.start_all()
    driver.finish(run_id, 1)
    driver.do(events.RunRetryRequested(run_id, "r1"))
    assert driver.state(run_id) == "launching" and driver.run(run_id).attempt == 2
    driver.do(events.RunRetryRequested(run_id, "r1"))  # repeated: it has taken effect
    driver.start_all()
    driver.finish(run_id)
    with pytest.raises(Rejection):
        driver.do(events.RunRetryRequested(run_id, "r2"))


def test_only_listed_changes_of_state_are_possible() -> None:
    driver = RunsDriver()
    run: Run = driver.run(driver.submit())
    for old, new in product(TRANSITIONS, TRANSITIONS):
        run.state = old
        if new != old and new not in TRANSITIONS[old]:
            with pytest.raises(IllegalTransitionError):
                run.enter(new, "", 0.0)
        else:
            run.enter(new, "", 0.0)
            assert run.state == new
    assert len(run.history) <= 100 and resolved(run.spec).instances == 1


def test_master_restart_between_every_decision_and_its_effect() -> None:
    """Whatever message is lost with the master, the launch goes on with what runners say when they return."""
    states = ((False, None), (False, "pending"), (False, "prepared"), (True, "prepared"), (True, "running"))
    for stage, (prepared, reported) in enumerate(states):
        driver = RunsDriver()
        driver.join("a", 2)
        run_id = driver.submit(instances=2)
        if prepared:
            driver.prepare_all()
        driver.sent.clear()
        driver.restart()
        reports = driver.reports(run_id, "a", reported) if reported else ()
        driver.join("a", 2, *reports)
        driver.start_all()
        assert driver.state(run_id) == "running", stage
        assert driver.run(run_id).launch_failures == 0


def test_a_failed_launch_of_an_elastic_run_frees_slots_only_when_that_is_confirmed() -> None:
    """A further Prepare of the same launch may have been on its way when the first one failed."""
    driver = RunsDriver()
    driver.join("a", 2)
    run_id = elastic(driver, instances=2)
    key = driver.key(run_id)
    driver.do(events.LaunchFailed("a", driver.sessions["a"], key, "no such image", permanent=True))
    assert driver.state(run_id) == "launching" and driver.runner("a").slots_used == 2
    driver.stop_all()
    assert driver.state(run_id) == "failed" and driver.runner("a").slots_used == 0


def test_an_elastic_run_that_has_failed_is_not_excused_by_a_lost_runner() -> None:
    """Its job is cancelled with it: a further launch would wait for that job for ever."""
    driver = RunsDriver()
    driver.join("a", 1)
    driver.join("b", 1)
    run_id = elastic(driver, instances=2)
    driver.start_all()
    driver.rank("a", driver.key(run_id), 0, "exited", 1)
    assert any(isinstance(effect, effects.CancelElasticJob) for effect in driver.effects)
    driver.lose("b")
    assert driver.state(run_id) == "failed"


def test_a_confirmed_stop_is_stored_although_no_slot_was_held_any_more() -> None:
    """Otherwise a replay would wait for that runner again."""
    driver = RunsDriver()
    driver.join("a", 1)
    driver.join("b", 1)
    run_id = elastic(driver, instances=2)
    key = driver.key(run_id)
    driver.do(events.LaunchFailed("a", driver.sessions["a"], key, "disk full"))
    driver.cancel(run_id)
    rank = next(one.rank for one in driver.run(run_id).ranks if one.runner_id == "a")
    driver.rank("a", key, rank, "exited", 143)
    driver.stopped("a", key)  # `do` compares what is stored with what has changed
    launch = driver.run(run_id).launch
    assert launch is not None and list(launch.awaited) == ["b"]
    driver.stopped("b", key)
    assert driver.state(run_id) == "cancelled"


def test_a_late_word_on_an_instance_leaves_its_successor_no_slot_that_it_has_not_given_back() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    driver.join("b", 1)
    run_id = driver.submit(framework="elastane", instances=2, instances_min=1)
    key = driver.key(run_id)
    prepare = dict(driver.take_with_runner(effects.Prepare))["b"]
    (rank,) = prepare.ranks
    driver.prepared("b", prepare)
    driver.rank("b", key, rank, "lost")
    assert driver.run(run_id).ranks[rank].runner_id == "b"  # it prepares the rank again
    driver.join("c", 3)
    driver.rank("b", key, rank, "lost")  # its answer to Start, which crossed the first word
    ((runner, stop),) = driver.take_with_runner(effects.Stop)
    assert (runner, stop.rank, stop.attempt) == ("b", rank, key)
    assert driver.run(run_id).ranks[rank].runner_id == "c" and driver.runner("b").slots_used == 1
    driver.prepared("b", prepare)
    assert driver.runner("b").slots_used == 1
    driver.rank("b", key, rank, "exited", 143)
    assert driver.run(run_id).ranks[rank].runner_id == "c" and driver.runner("b").slots_used == 0


# ---------------------------------------------------------------- two runners of one name


def test_a_second_runner_of_a_name_is_refused_while_the_first_one_attends() -> None:
    driver = RunsDriver()
    driver.join("a", 1, folder_id="one")
    run_id = driver.submit()
    driver.start_all()
    session = driver.sessions["a"]
    with pytest.raises(Rejection, match="another runner attends as a, from host-a") as refused:
        driver.join("a", 1, folder_id="two")
    assert refused.value.reason == "already_exists" and driver.runner("a").session == session
    assert driver.state(run_id) == "running" and driver.runner("a").slots_used == 1


def test_a_runner_of_the_same_folder_replaces_its_own_stream_and_another_one_follows_a_lost_one() -> None:
    driver = RunsDriver()
    driver.join("a", 1, folder_id="one")
    driver.join("a", 1, folder_id="one")
    driver.lose_stream("a")
    driver.join("a", 1, folder_id="two")
    assert driver.runner("a").folder_id == "two"
    driver.join("a", 1)
    assert driver.runner("a").session == driver.sessions["a"], "of a release that sends no id"


# ---------------------------------------------------------------- records


def test_the_master_writes_the_record_of_a_run_that_is_cancelled_in_the_queue() -> None:
    driver = RunsDriver()
    run_id = driver.submit()
    driver.cancel(run_id)
    assert effects.WriteRecord(run_id) in driver.effects
    driver.restart()
    assert effects.WriteRecord(run_id) in driver.effects  # the one before may have been lost with its master
    driver.do(events.RecordWritten(run_id))
    driver.do(events.RecordWritten(run_id))
    driver.restart()
    assert effects.WriteRecord(run_id) not in driver.effects


def test_the_master_writes_the_record_of_a_run_that_is_cancelled_between_two_attempts() -> None:
    driver = RunsDriver()
    driver.join("a")
    run_id = driver.submit()
    driver.start_all()
    driver.finish(run_id, 137)
    driver.stop_all()
    assert driver.state(run_id) == "queued"
    driver.cancel(run_id)
    assert driver.state(run_id) == "cancelled" and effects.WriteRecord(run_id) in driver.effects


def test_the_runner_of_rank_0_writes_the_record_and_the_master_if_that_runner_is_lost() -> None:
    driver = RunsDriver()
    driver.join("a")
    first, second = driver.submit(), driver.submit()
    driver.start_all()
    driver.finish(first)
    driver.stop_all()
    assert driver.state(first) == "succeeded" and not driver.machine.state.records_due
    driver.cancel(second)
    driver.lose("a")
    driver.tick_due()
    assert driver.state(second) == "cancelled" and driver.machine.state.records_due == [second]


def test_the_master_writes_the_record_of_a_run_that_no_runner_could_prepare() -> None:
    driver = RunsDriver()
    driver.join("a")
    run_id = driver.submit()
    driver.do(
        events.LaunchFailed("a", driver.sessions["a"], driver.key(run_id), "no such archive", permanent=True)
    )
    assert driver.state(run_id) == "failed" and driver.machine.state.records_due == [run_id]


def test_no_record_is_due_of_a_run_that_is_queued_again_or_deleted() -> None:
    driver = RunsDriver()
    first, second = driver.submit(), driver.submit()
    driver.cancel(first)
    driver.cancel(second)
    assert driver.machine.state.records_due == [first, second]
    driver.do(events.RunRetryRequested(first))
    driver.do(events.RunDeleted(second))
    assert not driver.machine.state.records_due
