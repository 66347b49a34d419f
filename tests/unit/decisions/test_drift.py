"""What the master does when workers hold different state, and when scripts end early."""

from __future__ import annotations

import msgspec
import pytest
from job_driver import SIGNATURE, JobDriver, settings

from elastane_master.decisions import effects, events
from elastane_master.decisions.fingerprints import EXPLAIN_SECONDS
from elastane_master.decisions.machine import JobMachine


def running(*workers: str, ests: int = 6) -> JobDriver:
    driver = JobDriver(settings(ests))
    driver.form(*workers)
    return driver


def report(driver: JobDriver, step: int, digests: dict[str, tuple[int | None, int | None]]) -> None:
    for worker, (of_settings, of_state) in digests.items():
        driver.report(worker, step, settings_digest=of_settings, state_digest=of_state)


def explain(driver: JobDriver, worker: str, step: int, **values: str) -> None:
    details = (
        events.StateDetail("weights 0.bias", 7),
        *(events.StateDetail(name, hash(value) & 0xFFFF, value) for name, value in values.items()),
    )
    event = events.StateDetailed(worker, driver.session(worker), driver.generation, step, details)
    driver.do(event)


def end_early(driver: JobDriver, worker: str, step: int, digest: int | None = 5) -> None:
    driver.do(
        events.EndEarlyReported(
            worker, driver.session(worker), driver.generation, step, step // 10, "train.py:9", digest
        )
    )


def test_like_digests_are_prepared_and_absent_ones_are_not_compared() -> None:
    driver = running("a", "b", "c")
    report(driver, 0, {"a": (1, 2**64 - 1), "b": (1, 2**64 - 1), "c": (None, None)})
    assert set(driver.take(effects.Prepared)) == {"a", "b", "c"}
    assert driver.take(effects.Explain) == {}


def test_the_one_of_three_that_differs_is_named_with_key_and_values() -> None:
    driver = running("a", "b", "c")
    report(driver, 0, {"a": (1, 4), "b": (1, 4), "c": (2, 4)})
    assert driver.take() == dict.fromkeys("abc", effects.Explain(driver.generation, 0))
    for worker, rate in (("a", "0.1"), ("c", "0.025"), ("b", "0.1")):
        assert driver.state.phase == "running"
        explain(driver, worker, 0, lr=rate)
    assert driver.state.phase == "failed"
    assert driver.state.reason.startswith(
        "c holds other state than a, b at the start of step 0: lr (0.1 in a, 0.1 in b, 0.025 in c)."
    )
    assert "job.carry" in driver.state.reason
    assert {message.phase for message in driver.take(effects.Done).values()} == {"failed"}
    assert driver.commits == []


def test_of_two_both_are_named() -> None:
    driver = running("a", "b")
    report(driver, 0, {"a": (1, 4), "b": (1, 5)})
    explain(driver, "a", 0, momentum="0.9")
    explain(driver, "b", 0)
    assert driver.state.reason.startswith(
        "a and b hold different state at the start of step 0: momentum (0.9 in a, nothing in b)."
    )


@pytest.mark.parametrize("end", ["lost", "silent"])
def test_a_member_that_does_not_answer_is_done_without(end: str) -> None:
    driver = running("a", "b")
    report(driver, 0, {"a": (1, 4), "b": (1, 5)})
    explain(driver, "a", 0)
    if end == "lost":
        driver.lose("b")
    else:
        driver.tick(after=EXPLAIN_SECONDS)
    assert driver.state.phase == "failed"
    assert driver.state.reason.startswith(
        "a and b hold different state at the start of step 0: the difference could not be determined"
    )


def test_a_master_that_takes_over_asks_again() -> None:
    driver = running("a", "b")
    report(driver, 0, {"a": (1, 4), "b": (1, 5)})
    driver.machine = JobMachine.restore(driver.machine.snapshot())
    driver.do(events.MasterStarted("m2"))
    driver.take()
    for worker in "ab":
        driver.rejoin(worker, driver.generation, 0, session=f"{worker}-2")
    assert set(driver.take(effects.Explain)) == {"a", "b"}
    explain(driver, "a", 0)
    explain(driver, "b", 0)
    assert driver.state.phase == "failed"


def test_scripts_that_ended_with_different_state_fail_the_job() -> None:
    driver = running("a", "b", "c")
    driver.steps(0, 20)
    for worker, digest in (("a", 1), ("b", 2), ("c", 1)):
        session = driver.session(worker)
        driver.do(events.ByeReported(worker, session, "finished", "", 20, digest))
    assert driver.state.phase == "failed"
    assert driver.state.reason.startswith("b holds other state than a, c after the last step, 19.")


def test_all_that_leave_the_loop_at_one_step_end_the_training() -> None:
    driver = running("a", "b")
    driver.steps(0, 10)
    end_early(driver, "a", 10)
    assert driver.take(effects.AllEnd) == {}
    end_early(driver, "b", 10)
    assert set(driver.take(effects.AllEnd)) == {"a", "b"}
    (note,) = driver.noted("ended_early")
    assert note.reason == "ended early at epoch 1, step 10 by the script (train.py:9)"
    assert len(driver.commits) == 10
    end_early(driver, "b", 10)  # the answer was lost
    assert set(driver.take()) == {"b"}
    driver.join("c")  # has come too late to train
    driver.bye("a", applied=10)
    driver.lose("b")
    assert (driver.state.phase, driver.state.reason) == (
        "succeeded",
        "the script ended the training early, after 10 of 20 steps",
    )
    assert driver.take(effects.Done)["c"].phase == "succeeded"


def test_one_that_goes_on_fails_the_job_whoever_comes_first() -> None:
    for late in (True, False):
        driver = running("a", "b")
        driver.steps(0, 10)
        if late:
            end_early(driver, "a", 10)
            driver.report("b", 10)
        else:
            driver.report("b", 10)
            end_early(driver, "a", 10)
        assert driver.state.phase == "failed"
        assert driver.state.reason.startswith(
            "the script of a left its loop over epochs at train.py:9, at epoch 1, step 10,"
            " and that of b goes on."
        )


def test_ends_with_different_state_fail_the_job() -> None:
    driver = running("a", "b")
    driver.steps(0, 10)
    end_early(driver, "a", 10, 5)
    end_early(driver, "b", 10, 6)
    assert driver.state.reason.startswith("a and b hold different state after step 9.")


def test_a_death_while_others_wait_to_end_is_made_good_and_they_say_it_again() -> None:
    driver = running("a", "b")
    driver.steps(0, 10)
    end_early(driver, "a", 10)
    old = driver.generation
    driver.join("c")
    driver.lose("b")
    assert driver.members == ("a", "c")
    assert driver.state.early_ends == {}
    driver.ready("a", 10, holds=True)
    driver.ready("c")
    driver.do(events.EndEarlyReported("a", driver.session("a"), old, 10, 0, "t", 5))  # came too late
    assert driver.state.early_ends == {}
    end_early(driver, "c", 10)
    end_early(driver, "a", 10)
    assert set(driver.take(effects.AllEnd)) == {"a", "c"}


def test_max_steps_of_the_script_bound_the_training() -> None:
    signature = msgspec.structs.replace(SIGNATURE, environment={"torch": "2", "max_steps": "7"})
    driver = JobDriver(settings(6), signature)
    driver.form("a")
    driver.steps(0, 7)
    assert driver.state.total_steps == 7
    driver.bye("a", applied=7)
    assert driver.state.reason == "the script came to its end after 7 steps"
