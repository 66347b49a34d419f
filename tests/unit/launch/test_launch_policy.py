"""When the processes of a black-box script start again: no process, no clock."""

from __future__ import annotations

import signal

import pytest

from elastane_agent.hosts.exclusions import CALM_SECONDS, EXCLUDED_SECONDS
from elastane_agent.launch.policy import (
    CODE_FAILED,
    CODE_MAX_WAIT,
    Action,
    LaunchPolicy,
    StartRound,
)
from elastane_agent.supervisor.budget import RestartBudget
from elastane_agent.supervisor.policy import Finish, Kill, Say, Terminate
from elastane_common.processes.child import ExitStatus

OK, RAISED, KILLED = ExitStatus(0), ExitStatus(1), ExitStatus(-9)


def policy(
    low: int = 2, high: int = 4, *, restarts_max: int = 10, wait_max_seconds: float = 0.0
) -> LaunchPolicy:
    return LaunchPolicy(
        workers_min=low,
        workers_max=high,
        budget=RestartBudget(restarts_max=restarts_max, delay_min_seconds=1.0),
        grace_seconds=20.0,
        settle_seconds=5.0,
        wait_max_seconds=wait_max_seconds,
    )


def started(actions: list[Action]) -> list[str]:
    """The hosts of the processes of a new round, by rank."""
    rounds = [action for action in actions if isinstance(action, StartRound)]
    assert len(rounds) <= 1
    return [slot.host for slot in rounds[0].slots] if rounds else []


def ranks(actions: list[Action], kind: type[Terminate] | type[Kill]) -> list[int]:
    """The ranks of actions of one kind."""
    return [int(action.worker) for action in actions if isinstance(action, kind)]


def finish_code(actions: list[Action]) -> int | None:
    return next((action.code for action in actions if isinstance(action, Finish)), None)


def test_waits_for_enough_slots() -> None:
    launch = policy()
    assert started(launch.hosts_changed(1.0, {"a": 1})) == []
    assert started(launch.hosts_changed(2.0, {"a": 1, "b": 4})) == ["a", "b", "b", "b"]


def test_gives_up_waiting_after_its_time() -> None:
    launch = policy(wait_max_seconds=60.0)
    launch.hosts_changed(10.0, {"a": 1})
    assert launch.next_due() == 70.0
    assert finish_code(launch.tick(69.9)) is None
    assert finish_code(launch.tick(70.0)) == CODE_MAX_WAIT


def test_all_finished_is_the_end() -> None:
    launch = policy()
    launch.hosts_changed(1.0, {"a": 2})
    assert finish_code(launch.exited(2.0, 1, OK)) is None
    assert finish_code(launch.exited(3.0, 0, OK)) == 0


def test_a_failure_starts_all_again_after_its_delay() -> None:
    launch = policy()
    launch.hosts_changed(1.0, {"a": 3})
    actions = launch.exited(2.0, 1, RAISED)
    assert ranks(actions, Terminate) == [0, 2]
    launch.exited(2.1, 0, KILLED)
    assert started(launch.exited(2.2, 2, KILLED)) == []
    assert launch.next_due() == 3.0  # a second of delay after the failure
    assert started(launch.tick(3.0)) == ["a", "a", "a"]
    assert launch.round == 1


def test_who_does_not_end_in_time_is_killed() -> None:
    launch = policy()
    launch.hosts_changed(1.0, {"a": 3})
    launch.exited(2.0, 1, RAISED)
    launch.exited(2.1, 0, KILLED)
    assert ranks(launch.tick(21.9), Kill) == []
    assert ranks(launch.tick(22.0), Kill) == [2]


def test_used_up_restarts_end_it() -> None:
    launch = policy(restarts_max=0)
    launch.hosts_changed(1.0, {"a": 2})
    assert finish_code(launch.exited(2.0, 0, RAISED)) is None
    assert finish_code(launch.exited(2.5, 1, KILLED)) == CODE_FAILED


def test_a_host_that_goes_stops_the_round_at_once() -> None:
    launch = policy()
    launch.hosts_changed(1.0, {"a": 2, "b": 2})
    actions = launch.hosts_changed(10.0, {"a": 2})
    assert ranks(actions, Terminate) == [0, 1, 2, 3]
    for rank in range(3):
        assert started(launch.exited(11.0, rank, KILLED)) == []
    assert started(launch.exited(11.5, 3, KILLED)) == ["a", "a"]


def test_new_hosts_are_gathered_before_a_restart() -> None:
    launch = policy()
    launch.hosts_changed(1.0, {"a": 2})
    assert ranks(launch.hosts_changed(10.0, {"a": 2, "b": 1}), Terminate) == []
    assert ranks(launch.hosts_changed(12.0, {"a": 2, "b": 1, "c": 1}), Terminate) == []
    assert launch.next_due() == 15.0
    assert ranks(launch.tick(15.0), Terminate) == [0, 1]
    launch.exited(15.1, 0, KILLED)
    assert started(launch.exited(15.2, 1, KILLED)) == ["a", "a", "b", "c"]


def test_new_hosts_that_go_again_change_nothing() -> None:
    launch = policy()
    launch.hosts_changed(1.0, {"a": 2})
    launch.hosts_changed(10.0, {"a": 2, "b": 1})
    launch.hosts_changed(11.0, {"a": 2})
    assert launch.next_due() is None and launch.tick(20.0) == []


def test_more_hosts_than_wanted_change_nothing() -> None:
    launch = policy(2, 2)
    launch.hosts_changed(1.0, {"a": 2})
    launch.hosts_changed(10.0, {"a": 2, "b": 1})
    assert launch.next_due() is None


def fail_round(launch: LaunchPolicy, now: float, rank: int) -> list[Action]:
    """That rank fails first, the others end, and the delay passes."""
    count = len(launch.slots)
    launch.exited(now, rank, RAISED)
    for other in set(range(count)) - {rank}:
        launch.exited(now + 0.1, other, KILLED)
    return launch.tick(now + 10.0)


def test_a_host_that_fails_again_and_again_rests() -> None:
    launch = policy()
    launch.hosts_changed(1.0, {"a": 2, "bad": 1})
    assert started(fail_round(launch, 2.0, 2)) == ["a", "a", "bad"]
    assert started(fail_round(launch, 20.0, 2)) == ["a", "a", "bad"]
    assert started(fail_round(launch, 40.0, 2)) == ["a", "a"]
    launch.hosts_changed(60.0, {"a": 2, "bad": 1})
    assert launch.next_due() is None
    rested = 50.0 + EXCLUDED_SECONDS
    assert ranks(launch.hosts_changed(rested, {"a": 2, "bad": 1}), Terminate) == []
    assert ranks(launch.tick(rested + 5.0), Terminate) == [0, 1]


def test_a_round_that_lasted_forgives() -> None:
    launch = policy()
    now = 1.0
    launch.hosts_changed(now, {"a": 2, "b": 1})
    for _ in range(4):
        now += CALM_SECONDS + 20.0
        assert started(fail_round(launch, now, 2)) == ["a", "a", "b"]


@pytest.mark.parametrize("waiting", [False, True])
def test_first_signal_ends_second_kills(waiting: bool) -> None:
    launch = policy()
    if waiting:
        launch.hosts_changed(1.0, {})
        assert finish_code(launch.signalled(2.0, signal.SIGTERM)) == 143
        return
    launch.hosts_changed(1.0, {"a": 2})
    assert ranks(launch.signalled(2.0, signal.SIGINT), Terminate) == [0, 1]
    assert ranks(launch.signalled(3.0, signal.SIGINT), Kill) == [0, 1]
    launch.exited(3.1, 0, KILLED)
    assert finish_code(launch.exited(3.2, 1, KILLED)) == 130


def test_a_signal_while_stopping_ends_it() -> None:
    launch = policy()
    launch.hosts_changed(1.0, {"a": 2})
    launch.exited(2.0, 0, RAISED)
    actions = launch.signalled(2.5, signal.SIGTERM)
    assert ranks(actions, Terminate) == [] and any(isinstance(action, Say) for action in actions)
    assert finish_code(launch.exited(3.0, 1, KILLED)) == 143
