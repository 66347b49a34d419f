"""What the agent does about its parameter servers: no process, no clock."""

from __future__ import annotations

import signal

import pytest

from elastane_agent.supervisor.actions import (
    Action,
    Announce,
    Fail,
    Finish,
    Kill,
    Say,
    Spawn,
    Terminate,
)
from elastane_agent.supervisor.budget import RestartBudget
from elastane_agent.supervisor.ps_policy import PsPolicy
from elastane_common.exit_codes import CODE_FAILED, CODE_OK, CODE_REFUSED, CODE_UNREACHABLE
from elastane_common.processes.child import ExitStatus

KILLED = ExitStatus(-signal.SIGKILL)
DRAINED = ExitStatus(80)


def started(count: int = 2, restarts_max: int = 10) -> PsPolicy:
    budget = RestartBudget(restarts_max=restarts_max, delay_min_seconds=1.0)
    policy = PsPolicy([f"ps-{number}" for number in range(count)], budget, grace_seconds=20.0)
    assert policy.start() == [Spawn(f"ps-{number}") for number in range(count)]
    return policy


def of(actions: list[Action], kind: type) -> list[str]:
    return [action.worker for action in actions if isinstance(action, kind)]


def codes(actions: list[Action]) -> list[int]:
    return [action.code for action in actions if isinstance(action, Finish)]


def failures(actions: list[Action]) -> list[tuple[int, str]]:
    return [(action.code, action.text) for action in actions if isinstance(action, Fail)]


def said(actions: list[Action]) -> str:
    return "\n".join(action.text for action in actions if isinstance(action, Say))


def test_without_parameter_servers_the_workers_end_is_the_agents() -> None:
    policy = PsPolicy([], RestartBudget())
    assert policy.start() == []
    assert policy.workers_over(1.0, 3, ["other"]) == [Finish(3)]
    assert policy.next_due() is None


def test_where_the_job_is_over_none_is_started_and_none_waited_for() -> None:
    policy = PsPolicy(["ps-0"], RestartBudget())
    assert policy.workers_over(1.0, CODE_OK, ["other"]) == [Finish(CODE_OK)]


@pytest.mark.parametrize("status", [KILLED, ExitStatus(1), ExitStatus(-signal.SIGSEGV)])
def test_one_that_dies_is_restarted_under_its_name(status: ExitStatus) -> None:
    policy = started()
    actions = policy.exited(100.0, "ps-1", status)
    assert not of(actions, Spawn) and "restart 1 of 10" in said(actions)
    assert policy.next_due() == 101.0
    assert policy.tick(100.9) == []
    assert policy.tick(101.0) == [Spawn("ps-1")]
    assert policy.next_due() is None
    # A streak waits longer.
    policy.exited(102.0, "ps-1", status)
    assert policy.next_due() == 104.0


def test_one_beyond_the_budget_stays_away_and_the_last_stops_everything() -> None:
    policy = started(restarts_max=1)
    policy.exited(0.0, "ps-0", KILLED)
    policy.tick(1.0)
    actions = policy.exited(2.0, "ps-0", KILLED)
    assert not failures(actions) and "restart budget used up" in said(actions)
    assert policy.next_due() is None
    ((code, text),) = failures(policy.exited(3.0, "ps-1", KILLED))
    assert code == CODE_FAILED and "ps-1: ended by SIGKILL; restart budget used up" in text
    # The agent's workers leave, and nothing is left to wait for.
    assert policy.workers_over(4.0, code, []) == [Finish(CODE_FAILED)]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (ExitStatus(82), CODE_REFUSED),
        (ExitStatus(83), CODE_UNREACHABLE),
        (ExitStatus(1, "ModuleNotFoundError: No module named 'torch'"), CODE_FAILED),
    ],
)
def test_what_a_restart_would_not_mend_stops_everything(status: ExitStatus, code: int) -> None:
    policy = started()
    ((found, text),) = failures(policy.exited(0.0, "ps-0", status))
    assert found == code and text.startswith("ps-0 ")
    assert of(policy.workers_over(1.0, code, ["other"]), Terminate) == ["ps-1"]


@pytest.mark.parametrize("status", [DRAINED, ExitStatus(0)])
def test_one_that_was_drained_stays_away(status: ExitStatus) -> None:
    policy = started()
    actions = policy.exited(0.0, "ps-0", status)
    assert said(actions) == "ps-0 left" and not failures(actions)
    assert policy.next_due() is None and policy.tick(1000.0) == []
    assert of(policy.workers_over(1.0, CODE_OK, []), Terminate) == ["ps-1"]


def test_they_leave_after_the_workers_and_end_the_agent() -> None:
    policy = started()
    actions = policy.workers_over(50.0, CODE_OK, [])
    assert of(actions, Terminate) == ["ps-0", "ps-1"] and not codes(actions)
    assert policy.next_due() == 70.0
    assert not codes(policy.exited(51.0, "ps-0", DRAINED))
    assert codes(policy.exited(52.0, "ps-1", DRAINED)) == [CODE_OK]
    assert policy.tick(90.0) == []


def test_they_stay_while_workers_of_others_attend() -> None:
    policy = started()
    actions = policy.workers_over(0.0, CODE_OK, ["b-0", "a-0"])
    assert not of(actions, Terminate) and "a-0, b-0" in said(actions)
    assert policy.attending(1.0, ["b-0"]) == []  # said once
    # One that dies meanwhile is still needed.
    policy.exited(2.0, "ps-0", KILLED)
    assert policy.tick(3.0) == [Spawn("ps-0")]
    assert of(policy.attending(4.0, []), Terminate) == ["ps-0", "ps-1"]
    assert policy.attending(5.0, ["b-1"]) == []


def test_an_agent_that_fails_leaves_nothing_behind_for_others() -> None:
    policy = started()
    assert of(policy.workers_over(0.0, CODE_FAILED, ["other"]), Terminate) == ["ps-0", "ps-1"]


def test_attendance_is_no_matter_before_the_workers_end() -> None:
    assert started().attending(0.0, []) == []


def test_one_that_does_not_leave_is_killed() -> None:
    policy = started()
    policy.workers_over(0.0, CODE_OK, [])
    policy.exited(1.0, "ps-0", DRAINED)
    actions = policy.tick(20.0)
    assert of(actions, Kill) == ["ps-1"] and "ps-1 did not leave in time" in said(actions)
    assert policy.next_due() is None
    assert codes(policy.exited(21.0, "ps-1", KILLED)) == [CODE_OK]


def test_one_that_waits_for_its_restart_is_not_waited_for() -> None:
    policy = started(1)
    policy.exited(0.0, "ps-0", KILLED)
    assert policy.workers_over(0.1, CODE_OK, []) == [Finish(CODE_OK)]


def test_signals_after_the_workers() -> None:
    policy = started()
    policy.workers_over(0.0, CODE_OK, ["other"])
    assert of(policy.signalled(1.0, signal.SIGINT), Terminate) == ["ps-0", "ps-1"]
    assert of(policy.signalled(2.0, signal.SIGINT), Kill) == ["ps-0", "ps-1"]
    policy.exited(3.0, "ps-0", KILLED)
    assert codes(policy.exited(3.0, "ps-1", KILLED)) == [130]


def test_a_signal_while_they_leave_kills_them() -> None:
    policy = started()
    policy.workers_over(0.0, CODE_OK, [])
    assert of(policy.signalled(1.0, signal.SIGTERM), Kill) == ["ps-0", "ps-1"]
    policy.exited(3.0, "ps-0", KILLED)
    assert codes(policy.exited(3.0, "ps-1", KILLED)) == [CODE_OK]  # the job's result stands


def test_a_spot_notice_lets_them_leave_beside_the_workers() -> None:
    policy = started()
    actions = policy.noticed(0.0, 100.0, "reclaim")
    assert actions[0] == Announce(100.0, "reclaim") and of(actions, Terminate) == ["ps-0", "ps-1"]
    assert policy.next_due() == 100.0
    assert policy.noticed(1.0, 50.0, "again") == []
    assert policy.next_due() == 51.0
    policy.exited(5.0, "ps-0", DRAINED)
    assert not codes(policy.exited(6.0, "ps-1", DRAINED))  # workers still drain
    assert codes(policy.workers_over(7.0, 143, [])) == [143]


def test_a_second_signal_to_the_agent_kills_them_with_the_workers() -> None:
    policy = started()
    assert of(policy.kill(), Kill) == ["ps-0", "ps-1"]
    policy.exited(1.0, "ps-0", KILLED)
    policy.exited(1.0, "ps-1", KILLED)
    assert policy.workers_over(2.0, 130, []) == [Finish(130)]


def on_hosts() -> PsPolicy:
    policy = PsPolicy(["ps0", "ps1"], RestartBudget(restarts_max=1), grace_seconds=20.0, dynamic=True)
    assert policy.start() == [] and policy.next_due() is None and policy.tick(1.0) == []
    assert policy.hosts_changed(2.0, True) == [Spawn("ps0"), Spawn("ps1")]
    return policy


def test_one_whose_host_is_gone_leaves_and_starts_elsewhere() -> None:
    policy = on_hosts()
    assert of(policy.hosts_changed(3.0, True, ["ps1"]), Terminate) == ["ps1"]
    assert policy.hosts_changed(4.0, True, ["ps1"]) == [], "it is asked once"
    assert policy.next_due() == 23.0
    assert not of(policy.exited(5.0, "ps1", DRAINED), Spawn)
    assert policy.tick(5.0) == [Spawn("ps1")]
    # Whoever does not leave is killed, once, and starts elsewhere as well: no restart is counted.
    policy.hosts_changed(6.0, True, ["ps0"])
    assert of(policy.tick(26.0), Kill) == ["ps0"]
    assert policy.tick(27.0) == []
    assert not failures(policy.exited(28.0, "ps0", KILLED))
    assert policy.tick(28.0) == [Spawn("ps0")]
    assert "restart 1 of 1" in said(policy.exited(30.0, "ps0", KILLED))


def test_without_a_usable_host_it_waits_for_one() -> None:
    policy = on_hosts()
    policy.host_failed(3.0, "ps0", "h: the remote shell failed", "host_unreachable")
    assert policy.hosts_changed(4.0, False) == [] and policy.next_due() is None
    assert policy.hosts_changed(5.0, True) == [Spawn("ps0")]


def test_the_end_of_the_job_is_none_of_a_host() -> None:
    policy = on_hosts()
    policy.hosts_changed(3.0, True, ["ps0"])
    assert not of(policy.exited(4.0, "ps0", ExitStatus(0)), Spawn)
    assert policy.tick(100.0) == []
    # One that leaves its host already gets no second SIGTERM, which would end it at once.
    policy = on_hosts()
    policy.hosts_changed(3.0, True, ["ps0"])
    assert of(policy.workers_over(4.0, CODE_OK, []), Terminate) == ["ps1"]
    policy.host_failed(5.0, "ps0", "h is being taken away", "host_reclaimed")
    assert codes(policy.exited(6.0, "ps1", DRAINED)) == [CODE_OK]


def test_on_hosts_a_missing_module_may_be_elsewhere() -> None:
    policy = on_hosts()
    assert not failures(policy.exited(3.0, "ps0", ExitStatus(1, "ModuleNotFoundError: torch")))
    assert policy.next_due() is not None
