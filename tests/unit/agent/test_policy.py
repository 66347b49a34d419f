"""What the agent does about exits, news and signals: no process, no clock."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from elastane_agent.supervisor.actions import Action, Announce, Finish, Kill, Say, Spawn, Terminate
from elastane_agent.supervisor.budget import RestartBudget
from elastane_agent.supervisor.policy import (
    CODE_FAILED,
    CODE_OK,
    CODE_REFUSED,
    CODE_UNDECIDED,
    CODE_UNREACHABLE,
    OVER_GRACE_SECONDS,
    PHASE_WAIT_SECONDS,
    UNTRAINED_WAIT_SECONDS,
    JobView,
    SupervisorPolicy,
)
from elastane_common.errors import EXIT_START_ANEW
from elastane_common.processes.child import ExitStatus

RUNNING = JobView("running", workers_max=4, step=5, steps=100)
KILLED = ExitStatus(-signal.SIGKILL)
RAISED = ExitStatus(1)
DRAINED = ExitStatus(80)
FINISHED = ExitStatus(0)


def started(workers: int = 4, view: JobView = RUNNING, restarts_max: int = 10) -> SupervisorPolicy:
    budget = RestartBudget(restarts_max=restarts_max, delay_min_seconds=1.0)
    policy = SupervisorPolicy([f"w{number}" for number in range(workers)], budget, grace_seconds=20.0)
    policy.start(0.0, view)
    return policy


def spawned(actions: list[Action]) -> list[str]:
    return [action.worker for action in actions if isinstance(action, Spawn)]


def finished(actions: list[Action]) -> int | None:
    codes = [action.code for action in actions if isinstance(action, Finish)]
    assert len(codes) <= 1
    return codes[0] if codes else None


def said(actions: list[Action]) -> str:
    return "\n".join(action.text for action in actions if isinstance(action, Say))


def test_starts_as_many_workers_as_the_job_wants() -> None:
    policy = SupervisorPolicy(["w0", "w1", "w2"], RestartBudget())
    assert spawned(policy.start(0.0, JobView("waiting", workers_max=2))) == ["w0", "w1"]


@pytest.mark.parametrize(
    ("phase", "code"),
    [("succeeded", CODE_OK), ("failed", CODE_FAILED), ("cancelled", CODE_OK), ("suspended", CODE_OK)],
)
def test_a_job_that_is_over_starts_nothing(phase: str, code: int) -> None:
    policy = SupervisorPolicy(["w0"], RestartBudget())
    actions = policy.start(0.0, JobView(phase, reason="why"))  # type: ignore[arg-type]
    assert spawned(actions) == []
    assert finished(actions) == code
    assert "why" in said(actions)


def test_a_killed_worker_is_restarted_when_its_delay_is_over() -> None:
    policy = started()
    actions = policy.worker_exited(100.0, "w2", KILLED)
    assert "w2 was killed by SIGKILL" in said(actions) and "restart 1 of 10" in said(actions)
    assert policy.next_due() == 101.0
    assert spawned(policy.tick(100.9)) == []
    assert spawned(policy.tick(101.0)) == ["w2"]
    assert policy.next_due() is None


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (ExitStatus(-signal.SIGTERM), "was preempted (SIGTERM)"),
        (ExitStatus(-signal.SIGSEGV), "crashed with SIGSEGV"),
        (ExitStatus(1), "failed with exit code 1"),
        (ExitStatus(-64 + 30), "crashed with"),
    ],
)
def test_the_message_names_the_cause(status: ExitStatus, words: str) -> None:
    assert words in said(started().worker_exited(1.0, "w0", status))


def test_a_used_up_budget_stops_everything() -> None:
    policy = started(workers=2, restarts_max=1)
    policy.worker_exited(1.0, "w0", KILLED)
    assert spawned(policy.tick(2.0)) == ["w0"]
    actions = policy.worker_exited(3.0, "w0", KILLED)
    assert "restart budget used up" in said(actions)
    assert Terminate("w1") in actions and finished(actions) is None
    assert finished(policy.worker_exited(4.0, "w1", DRAINED)) == CODE_FAILED


@pytest.mark.parametrize(("view", "limit"), [(JobView("waiting", workers_max=2), 2), (RUNNING, 3)])
def test_a_script_that_always_raises_is_given_up_before_the_budget_is(view: JobView, limit: int) -> None:
    policy = started(workers=2, view=view)
    now = 0.0
    for _ in range(limit - 1):
        for worker in ("w0", "w1"):
            assert finished(policy.worker_exited(now, worker, RAISED)) is None
        now += 30.0
        assert spawned(policy.tick(now)) == ["w0", "w1"]
    policy.worker_exited(now, "w0", RAISED)
    actions = policy.worker_exited(now, "w1", RAISED)
    assert "the script failed in every worker, without a step in between" in said(actions)
    assert finished(actions) == CODE_FAILED


def test_a_step_between_makes_raising_forgivable() -> None:
    policy = started(workers=1)
    for number in range(5):
        now = 100.0 * number
        assert finished(policy.worker_exited(now, "w0", RAISED)) is None
        assert spawned(policy.tick(now + 1.0)) == ["w0"]
        policy.job_changed(now + 2.0, JobView("running", workers_max=4, step=6 + number, steps=100))


def test_one_bad_worker_among_good_ones_only_uses_the_budget() -> None:
    policy = started(workers=2)
    for number in range(4):
        now = 100.0 * number
        assert finished(policy.worker_exited(now, "w0", RAISED)) is None
        policy.tick(now + 50.0)


def test_refusal_stops_all_with_its_code() -> None:
    policy = started(workers=2)
    actions = policy.worker_exited(1.0, "w0", ExitStatus(82))
    assert Terminate("w1") in actions
    assert finished(policy.worker_exited(2.0, "w1", DRAINED)) == CODE_REFUSED


@pytest.mark.parametrize(
    "error", ["ModuleNotFoundError: No module named 'absent'", "SyntaxError: invalid syntax"]
)
def test_what_cannot_run_is_not_started_again(error: str) -> None:
    policy = started(workers=2, view=JobView("waiting", workers_max=2))
    actions = policy.worker_exited(1.0, "w0", ExitStatus(1, error))
    assert Terminate("w1") in actions and error in said(actions)
    assert finished(policy.worker_exited(2.0, "w1", ExitStatus(1, error))) == CODE_FAILED
    for status in (ExitStatus(1, "ValueError: 3"), ExitStatus(-9, error), ExitStatus(1, "OSError: x")):
        assert Terminate("w1") not in started(workers=2).worker_exited(1.0, "w0", status)


def test_unreachable_master_stops_all_with_its_code() -> None:
    policy = started(workers=1)
    assert finished(policy.worker_exited(1.0, "w0", ExitStatus(83))) == CODE_UNREACHABLE


def test_scale_in_dismisses_who_stands_by_and_scale_out_brings_them_back() -> None:
    policy = started()
    small = JobView("running", workers_max=2, step=6, steps=100)
    assert policy.job_changed(1.0, small) != [], "it is said"
    assert not any(isinstance(action, Terminate) for action in policy.job_changed(1.1, small))
    scaled = replace(small, standby=frozenset({"w0", "w3"}))
    assert policy.job_changed(1.2, scaled) == [Terminate("w3"), Terminate("w0")]
    assert policy.job_changed(1.3, scaled) == [], "once is enough"
    for worker in ("w0", "w3"):
        assert spawned(policy.worker_exited(2.0, worker, DRAINED)) == []
    assert policy.next_due() is None
    assert spawned(policy.job_changed(3.0, replace(small, workers_max=3))) == ["w0"]
    assert spawned(policy.job_changed(4.0, RUNNING)) == ["w3"]


def test_a_dismissed_worker_comes_back_if_the_job_was_scaled_out_meanwhile() -> None:
    policy = started(workers=2, view=replace(RUNNING, workers_max=2))
    policy.job_changed(1.0, replace(RUNNING, workers_max=1, standby=frozenset({"w1"})))
    policy.job_changed(2.0, replace(RUNNING, workers_max=2))
    assert spawned(policy.worker_exited(3.0, "w1", DRAINED)) == ["w1"]


def test_standbys_within_the_wanted_number_stay() -> None:
    policy = started(view=replace(RUNNING, standby=frozenset({"w3"})))
    assert policy.job_changed(1.0, replace(RUNNING, step=9, standby=frozenset({"w3"}))) == []


def auto(target: int, *attending: str, standby: str = "", **more: Any) -> JobView:
    """A job that scales by itself. standby: names of one letter's worth, apart."""
    names = frozenset(attending)
    waiting = frozenset(standby.split())
    return replace(RUNNING, workers_max=8, target=target, attending=names | waiting, standby=waiting, **more)


def test_a_job_that_scales_by_itself_gets_its_target_and_not_its_bound() -> None:
    policy = SupervisorPolicy([f"w{number}" for number in range(8)], RestartBudget(restarts_max=10))
    assert spawned(policy.start(0.0, auto(2))) == ["w0", "w1"]
    assert spawned(policy.job_changed(1.0, auto(4, "w0", "w1"))) == ["w2", "w3"]
    assert spawned(policy.job_changed(1.1, auto(4, "w0", "w1", "w2", "w3"))) == []
    # The target falls: nothing happens before the ring has changed, then who stands by is released.
    actions = policy.job_changed(2.0, auto(3, "w0", "w1", "w2", "w3"))
    assert "the job wants up to 3 workers" in said(actions)
    assert not any(isinstance(action, Terminate) for action in actions)
    assert policy.job_changed(2.1, auto(3, "w1", "w2", "w3", standby="w0")) == [Terminate("w0")]
    assert policy.job_changed(2.2, auto(3, "w1", "w2", "w3", standby="w0")) == [], "once is enough"
    assert spawned(policy.worker_exited(3.0, "w0", DRAINED)) == []
    assert spawned(policy.job_changed(4.0, auto(4, "w1", "w2", "w3"))) == ["w0"]


def test_a_worker_drained_by_request_stays_away_until_a_user_raises_the_bound() -> None:
    policy = SupervisorPolicy([f"w{number}" for number in range(3)], RestartBudget(restarts_max=10))
    assert spawned(policy.start(0.0, auto(3))) == ["w0", "w1", "w2"]
    policy.worker_exited(1.0, "w2", DRAINED, asked_to_leave=True)
    assert spawned(policy.job_changed(2.0, auto(2, "w0", "w1"))) == []
    assert spawned(policy.job_changed(3.0, auto(3, "w0", "w1"))) == [], "the target is no user's wish"
    assert spawned(policy.job_changed(4.0, replace(auto(3, "w0", "w1"), workers_max=9))) == ["w2"]


def test_a_worker_that_dies_is_replaced_up_to_the_target() -> None:
    policy = SupervisorPolicy([f"w{number}" for number in range(8)], RestartBudget(restarts_max=10))
    policy.start(0.0, auto(2))
    policy.worker_exited(1.0, "w1", KILLED)
    assert spawned(policy.job_changed(1.5, auto(2, "w0"))) == [], "it is restarted after its pause"
    due = policy.next_due()
    assert due is not None and len(spawned(policy.tick(due))) == 1


def test_the_target_is_that_of_all_agents_and_they_release_the_same_worker() -> None:
    agents = {
        name: SupervisorPolicy([f"{name}{number}" for number in range(4)], RestartBudget(restarts_max=10))
        for name in "ab"
    }
    assert spawned(agents["a"].start(0.0, auto(3))) == ["a0", "a1", "a2"]
    # b comes later and is not needed: it waits, and does not end.
    actions = agents["b"].start(1.0, auto(3, "a0", "a1", "a2"))
    assert spawned(actions) == [] and finished(actions) is None
    assert "no worker is wanted here: the job wants 3 workers" in said(actions)
    wider = auto(6, "a0", "a1", "a2")
    assert spawned(agents["a"].job_changed(2.0, wider)) == ["a3"]
    assert spawned(agents["b"].job_changed(2.0, wider)) == ["b0", "b1", "b2"], "both started at once"
    there = auto(6, "a0", "a1", "a2", "a3", "b0", "b1", standby="b2")
    assert agents["a"].job_changed(3.0, there) == []
    assert agents["b"].job_changed(3.0, there) == [Terminate("b2")]
    # Two stand by on each side, one is too many: only one agent releases it.
    narrow = auto(3, "a2", "a3", standby="a1 b1")
    released = [
        action.worker
        for policy in agents.values()
        for action in policy.job_changed(4.0, narrow)
        if isinstance(action, Terminate)
    ]
    assert released == ["b1"]
    # When a's workers are gone, b takes over.
    agents["b"].worker_exited(5.0, "b2", DRAINED)
    agents["b"].worker_exited(5.0, "b1", DRAINED)
    agents["b"].worker_exited(5.0, "b0", KILLED)
    assert spawned(agents["b"].job_changed(6.0, auto(3))) == ["b1", "b2"]


def test_the_end_of_a_job_ends_an_agent_of_which_no_worker_is_wanted() -> None:
    policy = SupervisorPolicy(["b0"], RestartBudget(restarts_max=10))
    policy.start(0.0, auto(1, "a0"))
    assert policy.job_changed(1.0, auto(1, "a0")) == [], "it is said once"
    assert finished(policy.job_changed(2.0, JobView("succeeded", step=100, steps=100))) == CODE_OK


def test_workers_on_demand_and_on_spot_are_counted_apart() -> None:
    names = [f"o{number}" for number in range(4)]
    dear = SupervisorPolicy(names, RestartBudget(restarts_max=10), on_demand=True)
    cheap = SupervisorPolicy([f"s{number}" for number in range(4)], RestartBudget(restarts_max=10))
    first = auto(4, on_demand_max=0)
    assert spawned(dear.start(0.0, first)) == []
    assert spawned(cheap.start(0.0, first)) == ["s0", "s1", "s2", "s3"]
    # On demand is asked for while spot fills the target: it is started beside, and takes the place of spot.
    names = ["s0", "s1", "s2", "s3"]
    actions = dear.job_changed(1.0, auto(4, *names, on_demand_max=2))
    assert spawned(actions) == ["o0", "o1"] and "4 workers, 2 of them on demand" in said(actions)
    coming = auto(4, *names, standby="o0", on_demand_max=2, on_demand=frozenset({"o0"}))
    assert dear.job_changed(2.0, coming) == [] != cheap.job_changed(2.0, coming), "it waits for its ring"
    assert not any(isinstance(action, Terminate) for action in cheap.job_changed(2.1, coming))
    there = auto(
        4, "s0", "s1", "o0", "o1", standby="s2 s3", on_demand_max=2, on_demand=frozenset({"o0", "o1"})
    )
    assert dear.job_changed(3.0, there) == []
    assert cheap.job_changed(3.0, there) == [Terminate("s3"), Terminate("s2")]
    # Fewer on demand are wanted: who trains stays until spot has taken the place.
    for worker in ("s2", "s3"):
        cheap.worker_exited(3.5, worker, DRAINED)
    fewer = auto(4, "s0", "s1", "o0", "o1", on_demand_max=1, on_demand=frozenset({"o0", "o1"}))
    assert not any(isinstance(action, Terminate) for action in dear.job_changed(4.0, fewer))
    assert spawned(cheap.job_changed(4.0, fewer)) == ["s2"]
    taken = auto(4, "s0", "s1", "s2", "o0", standby="o1", on_demand_max=1, on_demand=frozenset({"o0", "o1"}))
    assert dear.job_changed(5.0, taken) == [Terminate("o1")]


def test_an_agent_on_demand_starts_only_what_others_have_not() -> None:
    policy = SupervisorPolicy(["o0", "o1"], RestartBudget(restarts_max=10), on_demand=True)
    there = auto(4, "s0", "p0", on_demand_max=2, on_demand=frozenset({"p0"}))
    assert spawned(policy.start(1.0, there)) == ["o0"], "one is there already, from elsewhere"


def test_who_is_drained_while_there_are_too_many_stays_away() -> None:
    policy = started()
    policy.job_changed(1.0, replace(RUNNING, workers_max=3))
    assert spawned(policy.worker_exited(2.0, "w1", DRAINED)) == []
    assert policy.next_due() is None


def test_a_worker_drained_by_request_stays_away() -> None:
    policy = started()
    actions = policy.worker_exited(1.0, "w1", DRAINED, asked_to_leave=True)
    assert "w1 was drained" in said(actions)
    assert spawned(policy.tick(1000.0)) == []


def test_a_worker_that_left_on_its_own_notice_is_restarted() -> None:
    policy = started()
    actions = policy.worker_exited(1.0, "w1", DRAINED)
    assert "preemption notice" in said(actions)
    assert spawned(policy.tick(2.0)) == ["w1"]


def test_all_drained_by_request_ends_well() -> None:
    policy = started(workers=2)
    policy.worker_exited(1.0, "w0", DRAINED, asked_to_leave=True)
    actions = policy.worker_exited(2.0, "w1", DRAINED, asked_to_leave=True)
    assert finished(actions) == CODE_OK
    assert "waits at step 5" in said(actions)


@pytest.mark.parametrize(
    ("phase", "code"),
    [("succeeded", CODE_OK), ("failed", CODE_FAILED), ("cancelled", CODE_OK), ("suspended", CODE_OK)],
)
def test_the_end_of_the_job_waits_for_the_workers(phase: str, code: int) -> None:
    policy = started(workers=2)
    over = JobView(phase, reason="because", workers_max=4)  # type: ignore[arg-type]
    actions = policy.job_changed(1.0, over)
    assert finished(actions) is None and "because" in said(actions)
    assert finished(policy.worker_exited(2.0, "w0", FINISHED)) is None
    assert finished(policy.worker_exited(3.0, "w1", DRAINED)) == code


def test_a_job_that_the_sentinel_suspended_has_a_code_of_its_own() -> None:
    policy = started(workers=1)
    over = JobView("suspended", reason="w0 and w1 differ", undecided=True)
    assert "w0 and w1 differ; `elastane resume` continues it" in said(policy.job_changed(1.0, over))
    assert finished(policy.worker_exited(2.0, "w0", DRAINED)) == CODE_UNDECIDED


def test_workers_that_ignore_the_end_are_killed() -> None:
    policy = started(workers=1)
    policy.job_changed(1.0, JobView("cancelled"))
    assert policy.tick(1.0 + OVER_GRACE_SECONDS - 0.1) == []
    assert Kill("w0") in policy.tick(1.0 + OVER_GRACE_SECONDS)
    assert finished(policy.worker_exited(40.0, "w0", KILLED)) == CODE_OK


def test_finished_workers_wait_for_the_phase() -> None:
    policy = started(workers=1)
    assert finished(policy.worker_exited(1.0, "w0", FINISHED)) is None
    assert finished(policy.job_changed(1.2, JobView("succeeded", step=100, steps=100))) == CODE_OK


def test_a_script_that_ends_early_is_a_failure() -> None:
    policy = started(workers=1)
    policy.worker_exited(1.0, "w0", FINISHED)
    assert policy.next_due() == 1.0 + PHASE_WAIT_SECONDS
    actions = policy.tick(1.0 + PHASE_WAIT_SECONDS)
    assert finished(actions) == CODE_FAILED and "ended at step 5 of 100" in said(actions)


@pytest.mark.parametrize(
    ("datasets", "code", "words"),
    [
        pytest.param(0, CODE_FAILED, "without having used the job", id="of neither kind"),
        pytest.param(1, CODE_OK, "", id="it leased tasks"),
        pytest.param(None, CODE_OK, "without training", id="an older master"),
    ],
)
def test_a_script_that_uses_no_job_has_failed(datasets: int | None, code: int, words: str) -> None:
    policy = started(workers=1, view=JobView("waiting", workers_max=1, datasets=datasets))
    policy.worker_exited(1.0, "w0", FINISHED)
    assert policy.next_due() == 1.0 + UNTRAINED_WAIT_SECONDS
    actions = policy.tick(1.0 + UNTRAINED_WAIT_SECONDS)
    assert finished(actions) == code
    assert words in said(actions)


def test_news_of_training_that_come_late_are_waited_for_as_long_as_any() -> None:
    policy = started(workers=1, view=JobView("waiting", workers_max=1))
    policy.worker_exited(1.0, "w0", FINISHED)
    policy.job_changed(1.5, JobView("running", workers_max=1, step=99, steps=100))
    assert finished(policy.tick(1.0 + UNTRAINED_WAIT_SECONDS)) is None
    assert policy.next_due() == 1.0 + PHASE_WAIT_SECONDS
    assert finished(policy.job_changed(3.0, JobView("succeeded", step=100, steps=100))) == CODE_OK


def test_first_signal_drains_second_kills() -> None:
    policy = started(workers=2)
    actions = policy.signalled(1.0, signal.SIGTERM)
    assert Terminate("w0") in actions and Terminate("w1") in actions
    assert policy.next_due() == 21.0
    actions = policy.signalled(2.0, signal.SIGINT)
    assert Kill("w0") in actions and Kill("w1") in actions
    policy.worker_exited(3.0, "w0", KILLED)
    assert finished(policy.worker_exited(3.0, "w1", KILLED)) == 143


def test_a_signal_cancels_restarts() -> None:
    policy = started(workers=1)
    policy.worker_exited(1.0, "w0", KILLED)
    assert finished(policy.signalled(1.5, signal.SIGINT)) == 130


def test_who_does_not_drain_in_time_is_killed() -> None:
    policy = started(workers=1)
    policy.signalled(1.0, signal.SIGTERM)
    actions = policy.tick(21.0)
    assert Kill("w0") in actions and "did not leave in time" in said(actions)


def test_a_reclaim_gives_the_workers_all_the_time_there_is() -> None:
    policy = started(2)
    first, *exclude = policy.noticed(1.0, 100.0, "spot notice of aws")
    assert first == Announce(100.0, "spot notice of aws")
    assert [action.worker for action in exclude if isinstance(action, Terminate)] == ["w0", "w1"]
    assert policy.next_due() == 101.0  # the grace of a signal, 20 s, is not asked
    assert [action for action in policy.tick(100.9) if isinstance(action, Kill)] == []
    policy.worker_exited(100.9, "w0", DRAINED)
    assert [action for action in policy.tick(101.0) if isinstance(action, Kill)] == [Kill("w1")]
    assert finished(policy.worker_exited(101.1, "w1", KILLED)) == 128 + signal.SIGTERM


def test_a_reclaim_while_stopping_only_moves_the_deadline() -> None:
    policy = started(1)
    policy.signalled(1.0, signal.SIGINT)
    actions = policy.noticed(2.0, 5.0, "spot notice")
    assert not [action for action in actions if isinstance(action, Terminate)]
    assert policy.next_due() == 7.0
    assert finished(policy.worker_exited(3.0, "w0", DRAINED)) == 130


def test_fatal_trouble_elsewhere_stops_the_workers() -> None:
    policy = started(workers=1)
    actions = policy.fatal(1.0, CODE_FAILED, "the master is broken")
    assert Terminate("w0") in actions and "the master is broken" in said(actions)
    assert finished(policy.worker_exited(2.0, "w0", DRAINED)) == CODE_FAILED


def test_of_two_notices_the_sooner_counts_whichever_came_last() -> None:
    policy = started(workers=1)
    policy.noticed(10.0, 120.0, "of the cloud")
    policy.noticed(11.0, 15.0, "of a file")
    assert policy.next_due() == 26.0
    policy.noticed(12.0, 300.0, "of the cloud again")
    assert policy.next_due() == 26.0 and Kill("w0") in policy.tick(26.0)


def test_a_worker_that_is_to_start_anew_does_so_at_once_and_for_no_budget() -> None:
    policy = started(workers=2, restarts_max=1)
    for number in range(5):
        for worker in ("w0", "w1"):
            actions = policy.worker_exited(float(number), worker, ExitStatus(EXIT_START_ANEW))
            assert spawned(actions) == [worker]
            assert "rolled back" in said(actions)
    assert finished(policy.worker_exited(9.0, "w0", KILLED)) is None  # the one restart is still there


def reasons(actions: list[Action]) -> dict[str, str]:
    return {action.worker: action.reason for action in actions if isinstance(action, Terminate)}


def test_a_worker_is_told_who_asks_it_to_leave_and_why() -> None:
    policy = started(workers=2)
    scaled = replace(RUNNING, workers_max=1, standby=frozenset({"w1"}))
    assert reasons(policy.job_changed(1.0, scaled)) == {
        "w1": "asked for by its agent: the job wants 1 worker"
    }
    assert reasons(started(2).signalled(1.0, signal.SIGINT)) == {
        "w0": "asked for by its agent: it got SIGINT",
        "w1": "asked for by its agent: it got SIGINT",
    }
    assert reasons(started(1).noticed(1.0, 30.0, "spot notice")) == {"w0": ""}, "that was announced"
    stopped = started(2).worker_exited(1.0, "w0", ExitStatus(82))
    assert reasons(stopped) == {"w1": "asked for by its agent: w0 was refused"}


def test_a_worker_that_was_refused_in_its_steps_makes_the_success_of_the_others_a_refusal() -> None:
    """They have ended the training before its process was gone."""
    policy = started(2)
    policy.job_changed(1.0, replace(RUNNING, phase="succeeded"))
    policy.worker_exited(2.0, "w1", FINISHED)
    actions = policy.worker_exited(3.0, "w0", ExitStatus(82))
    assert "w0 was refused" in said(actions)
    assert finished(actions) == CODE_REFUSED


@pytest.mark.parametrize("phase", ["cancelled", "suspended", "failed"])
def test_a_refused_worker_of_a_job_that_did_not_succeed_changes_nothing(phase: str) -> None:
    policy = started(1)
    policy.job_changed(1.0, replace(RUNNING, phase=phase))
    assert finished(policy.worker_exited(2.0, "w0", ExitStatus(82))) == (
        CODE_FAILED if phase == "failed" else CODE_OK
    )


@pytest.mark.parametrize("code", [80, 81, 82, 83, 84])
def test_what_workers_tell_their_agent_alone_is_shown_in_words(code: int) -> None:
    assert str(code) not in str(ExitStatus(code)) and "code" not in str(ExitStatus(code))
    assert str(code) not in said(started(2).worker_exited(1.0, "w0", ExitStatus(code)))
    assert str(ExitStatus(7)) == "exit code 7"


def test_an_agent_without_workers_waits_for_the_end_of_the_job() -> None:
    policy = SupervisorPolicy([], RestartBudget())
    assert policy.start(0.0, RUNNING) == [] and policy.next_due() is None
    assert policy.tick(1.0) == policy.job_changed(2.0, replace(RUNNING, step=9)) == []
    assert policy.job_changed(3.0, replace(RUNNING, phase="succeeded"))[-1] == Finish(CODE_OK)
    policy = SupervisorPolicy([], RestartBudget())
    policy.start(0.0, RUNNING)
    assert policy.signalled(1.0, signal.SIGTERM)[-1] == Finish(143)
