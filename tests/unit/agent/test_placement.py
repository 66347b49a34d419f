"""Which worker runs where, what an exit says of a host, and what the policy makes of places that change."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_agent.hosts.exclusions import EXCLUDED_SECONDS, FAILURES_MAX, UNREACHABLE_MIN_SECONDS
from elastane_agent.hosts.slots import HostOffer
from elastane_agent.supervisor.actions import Action, Announce, Finish, Kill, Say, Spawn, Terminate
from elastane_agent.supervisor.budget import RestartBudget
from elastane_agent.supervisor.node_policy import NodePolicy
from elastane_agent.supervisor.placement import Placement
from elastane_agent.supervisor.policy import JobView, SupervisorPolicy
from elastane_common.exit_codes import CODE_OK, CODE_UNREACHABLE, EXIT_DRAINED, EXIT_RECLAIMED
from elastane_common.processes.child import ExitStatus

RUNNING = JobView("running", workers_max=3, step=5, steps=100)
DRAINED, RAISED = ExitStatus(EXIT_DRAINED), ExitStatus(1)
GRACE = 20.0


class Driver:
    """Placement and policy together, as the agent has them."""

    def __init__(self, workers_max: int = 3) -> None:
        self.placement = Placement()
        budget = RestartBudget(restarts_max=10, delay_min_seconds=1.0)
        self.policy = SupervisorPolicy([], budget, grace_seconds=GRACE, dynamic=True)
        self.view = JobView("running", workers_max=workers_max, step=5, steps=100)
        self.policy.start(0.0, self.view)

    def found(self, now: float, held: dict[str, str] | None = None, **hosts: int) -> list[Action]:
        offers = {name.replace("_", "."): HostOffer(count) for name, count in hosts.items()}
        self.placement.found(offers, held or {})
        return self.changed(now)

    def changed(self, now: float) -> list[Action]:
        places = self.placement.wanted(now)
        return self._note_starts(now, self.policy.places_changed(now, places, self.placement.on_demand()))

    def news(self, now: float, **changes: Any) -> list[Action]:
        """What the agent does about a job update."""
        self.view = replace(self.view, **changes)
        return self._note_starts(now, self.policy.job_changed(now, self.view))

    def offered(self, now: float, **hosts: HostOffer) -> list[Action]:
        self.placement.found(hosts, {})
        return self.changed(now)

    def _note_starts(self, now: float, actions: list[Action]) -> list[Action]:
        for worker in spawned(actions):
            self.placement.started(now, worker)
        return actions

    def exited(self, now: float, worker: str, code: int, *, asked_to_leave: bool = False) -> list[Action]:
        status = self.placement.status(worker, ExitStatus(code))
        if fault := self.placement.ended(now, worker, status):
            places = self.placement.wanted(now)
            return self.policy.host_failed(now, worker, fault.text, fault.event, places)
        return self.policy.worker_exited(now, worker, status, asked_to_leave=asked_to_leave)


def spawned(actions: list[Action]) -> list[str]:
    return [action.worker for action in actions if isinstance(action, Spawn)]


def terminated(actions: list[Action]) -> list[str]:
    return [action.worker for action in actions if isinstance(action, Terminate)]


def finished(actions: list[Action]) -> int | None:
    return next((action.code for action in actions if isinstance(action, Finish)), None)


def said(actions: list[Action]) -> str:
    return "\n".join(action.text for action in actions if isinstance(action, Say))


def test_workers_go_where_there_are_slots_up_to_what_the_job_wants() -> None:
    driver = Driver()
    assert spawned(driver.found(1.0, a=1)) == ["a-0"]
    assert spawned(driver.found(2.0, a=2, b=2)) == ["a-1", "b-0"]
    assert spawned(driver.found(3.0, a=2, b=2)) == []


def test_the_cheapest_hosts_are_used_first() -> None:
    driver = Driver(workers_max=4)
    offers = {
        "unknown": HostOffer(1),
        "dear": HostOffer(2, "on-demand", 980_000),
        "cheap": HostOffer(2, "spot", 310_000),
        "same": HostOffer(1, "spot", 310_000),
    }
    assert spawned(driver.offered(1.0, **offers)) == ["cheap-0", "cheap-1", "same-0", "dear-0"]
    assert driver.placement.capacity("dear-1") == "on-demand" and not driver.placement.capacity("unknown-0")


MIXED = {"o": HostOffer(3, "on-demand", 980_000), "s": HostOffer(3, "spot", 310_000)}


def test_workers_on_demand_are_those_that_the_job_wants_on_demand() -> None:
    """A deadline takes spot; as time runs out, on-demand workers come beside it and stay."""
    driver = Driver(workers_max=6)
    driver.news(0.5, target=6, on_demand_max=0)
    assert spawned(driver.offered(1.0, **MIXED)) == ["s-0", "s-1", "s-2"]
    actions = driver.news(2.0, on_demand_max=2)
    assert spawned(actions) == ["o-0", "o-1"] and "2 of them on demand" in said(actions)
    assert driver.changed(3.0) == []
    assert spawned(driver.exited(4.0, "o-0", EXIT_DRAINED, asked_to_leave=False)) == []
    assert spawned(driver.policy.tick(30.0)) == ["o-0"], "no other class replaces it"
    assert spawned(driver.news(40.0, on_demand_max=3)) == ["o-2"]


def test_where_no_host_is_on_demand_spot_does_not_take_its_place() -> None:
    driver = Driver(workers_max=4)
    driver.news(0.5, target=4, on_demand_max=2)
    assert spawned(driver.offered(1.0, s=HostOffer(4, "spot"))) == ["s-0", "s-1"]
    assert spawned(driver.news(2.0, on_demand_max=0)) == ["s-2", "s-3"]


def test_a_list_without_spot_waits_and_says_why() -> None:
    driver = Driver(workers_max=2)
    driver.news(0.5, target=2, on_demand_max=0)
    actions = driver.offered(1.0, o=HostOffer(2, "on-demand"))
    assert spawned(actions) == [] and finished(actions) is None
    assert "no worker is wanted here: the job wants 2 workers, 0 of them on demand" in said(actions)


def test_without_hosts_it_waits_and_says_so_once() -> None:
    driver = Driver()
    actions = driver.found(1.0)
    assert "no host has a slot" in said(actions) and finished(actions) is None
    assert driver.found(2.0) == []
    assert spawned(driver.found(3.0, a=1)) == ["a-0"]


def test_a_host_that_vanishes_is_drained_and_replaced_at_once() -> None:
    driver = Driver(workers_max=2)
    driver.found(1.0, a=1, b=2)
    actions = driver.found(2.0, b=2)
    assert terminated(actions) == ["a-0"] and spawned(actions) == ["b-1"]
    assert terminated(driver.found(3.0, b=2)) == [], "it is told once"
    assert driver.policy.next_due() == 2.0 + GRACE
    assert finished(driver.exited(4.0, "a-0", EXIT_DRAINED)) is None
    assert driver.policy.next_due() is None
    assert spawned(driver.policy.tick(100.0)) == []


def test_a_worker_of_a_vanished_host_that_overstays_is_killed() -> None:
    driver = Driver()
    driver.found(1.0, a=1, b=1)
    driver.found(2.0, b=1)
    assert driver.policy.tick(2.0 + GRACE - 0.1) == []
    actions = driver.policy.tick(2.0 + GRACE)
    assert Kill("a-0") in actions and "did not leave in time" in said(actions)
    assert driver.policy.tick(60.0) == [] and driver.policy.next_due() is None


def test_a_host_that_comes_back_while_it_drains_gets_a_new_worker_afterwards() -> None:
    driver = Driver()
    driver.found(1.0, a=1, b=1)
    driver.found(2.0, b=1)
    assert spawned(driver.found(3.0, a=1, b=1)) == []
    assert spawned(driver.exited(4.0, "a-0", EXIT_DRAINED)) == ["a-0"]


def test_slots_shrink_and_grow() -> None:
    driver = Driver()
    driver.found(1.0, a=3)
    assert terminated(driver.found(2.0, a=1)) == ["a-1", "a-2"]
    driver.exited(3.0, "a-1", EXIT_DRAINED)
    driver.exited(3.0, "a-2", EXIT_DRAINED)
    assert spawned(driver.found(4.0, a=2)) == ["a-1"]


def test_a_host_without_a_way_to_it_rests_and_costs_no_restart() -> None:
    driver = Driver()
    driver.found(0.0, a=1, b=2, c=1)
    now = 0.0
    for _ in range(12):  # more than the budget has
        actions = driver.exited(now, "a-0", 255)
        assert "a: the remote shell failed (exit code 255); it is not used for" in said(actions)
        now = driver.placement.next_due() or 0.0
        driver.policy.worker_exited(now, "c-0", DRAINED, asked_to_leave=True)
        spawned(driver.changed(now))
    assert finished(actions) is None


def test_another_host_takes_the_part_of_one_that_rests() -> None:
    driver = Driver(workers_max=2)
    driver.found(0.0, a=1, b=1, c=1)
    assert spawned(driver.exited(1.0, "a-0", 127)) == ["c-0"]
    assert driver.placement.next_due() == 1.0 + UNREACHABLE_MIN_SECONDS
    assert spawned(driver.changed(1.0 + UNREACHABLE_MIN_SECONDS)) == [], "there is no room any more"


def test_a_host_that_is_reclaimed_gets_no_worker_for_a_while() -> None:
    driver = Driver(workers_max=2)
    driver.found(0.0, a=1, b=1, c=1)
    actions = driver.exited(1.0, "b-0", EXIT_RECLAIMED)
    assert "b is being taken away" in said(actions) and spawned(actions) == ["c-0"]
    assert spawned(driver.exited(2.0, "a-0", EXIT_RECLAIMED)) == []
    assert spawned(driver.changed(1.0 + EXCLUDED_SECONDS)) == ["b-0"]


def test_a_notice_of_a_host_counts_once_for_all_its_workers() -> None:
    placement = Placement()
    placement.found({"a": HostOffer(2)}, {})

    def told(now: float, worker: str) -> bool:
        fault = placement.ended(now, worker, ExitStatus(EXIT_RECLAIMED))
        return fault is not None and fault.first_notice

    for worker in ("a-0", "a-1"):
        placement.started(0.0, worker)
    assert [told(1.0, "a-0"), told(1.1, "a-1")] == [True, False]
    placement.started(500.0, "a-0")
    assert told(501.0, "a-0"), "the host came back, and is taken away again"


def test_a_bad_host_among_good_ones_rests_before_the_budget_is_used_up() -> None:
    driver = Driver()
    driver.found(0.0, a=1, b=2)
    for number in range(FAILURES_MAX):
        actions = driver.exited(10.0 * number, "a-0", 1)
        driver.policy.tick(10.0 * number + 5.0)
        driver.placement.started(10.0 * number + 5.0, "a-0")
    assert "fails repeatedly and is not used" in said(actions) and finished(actions) is None


def test_a_script_that_fails_everywhere_is_given_up_all_the_same() -> None:
    driver = Driver(workers_max=2)
    driver.found(0.0, a=1, b=1)
    now, code = 0.0, None
    while code is None and now < 1000.0:
        for worker in ("a-0", "b-0"):
            code = code or finished(driver.exited(now, worker, 2))
            if code is not None:
                break
        now += 30.0
        driver.policy.tick(now)
    assert code == 1 and now < 200.0


def test_a_master_that_one_host_cannot_reach_is_that_host_affair() -> None:
    driver = Driver()
    driver.found(0.0, a=1, b=1)
    assert "could not reach the master from a" in said(driver.exited(1.0, "a-0", 83))
    driver.exited(2.0, "b-0", 83)
    alone = Driver()
    alone.found(0.0, a=1)
    assert finished(alone.exited(1.0, "a-0", 83)) == CODE_UNREACHABLE


def test_a_host_that_cannot_be_used_is_held() -> None:
    driver = Driver()
    assert spawned(driver.found(0.0, {"far": "it cannot reach a master on loopback"}, far=2, b=1)) == ["b-0"]
    only = Driver()
    assert "it cannot reach" in said(only.found(0.0, {"far": "it cannot reach a master on loopback"}, far=2))


def test_signals_of_a_remote_worker_are_named() -> None:
    placement = Placement()
    placement.found({"a": HostOffer(1), "localhost": HostOffer(1)}, {})
    assert placement.status("a-0", ExitStatus(137)) == ExitStatus(-signal.SIGKILL)
    assert placement.status("localhost-0", ExitStatus(137)) == ExitStatus(137)
    assert placement.status("a-0", ExitStatus(255)) == ExitStatus(255)


def test_a_stop_tells_nobody_twice() -> None:
    driver = Driver()
    driver.found(0.0, a=1, b=1)
    driver.found(1.0, b=1)
    assert terminated(driver.policy.signalled(2.0, signal.SIGTERM)) == ["b-0"]
    driver.exited(3.0, "a-0", EXIT_DRAINED)
    assert finished(driver.exited(4.0, "b-0", EXIT_DRAINED)) == 143


def test_hosts_that_go_when_the_job_is_over_change_nothing() -> None:
    driver = Driver()
    driver.found(0.0, a=1, b=1)
    driver.policy.job_changed(1.0, JobView("succeeded", workers_max=3))
    assert terminated(driver.found(2.0)) == []
    driver.policy.worker_exited(3.0, "a-0", ExitStatus(0))
    assert finished(driver.policy.worker_exited(3.0, "b-0", ExitStatus(0))) == CODE_OK


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), max_size=3),
            st.integers(0, 5),
            st.sampled_from([EXIT_DRAINED, EXIT_RECLAIMED, 255, -9]),
        ),
        max_size=25,
    )
)
def test_never_more_workers_than_wanted_and_none_without_a_place(
    history: list[tuple[dict[str, int], int, int]],
) -> None:
    driver, now, live, leaving = Driver(), 0.0, set(), set()
    for hosts, pick, code in history:
        now += 7.0
        actions = driver.found(now, **{host: count for host, count in hosts.items() if count})
        if live and pick < len(live):
            worker = sorted(live)[pick]
            live.discard(worker)
            leaving.discard(worker)
            leaving |= set(terminated(actions))
            live |= set(spawned(actions))
            actions = driver.exited(now, worker, code)
        actions += driver.policy.tick(now)
        leaving |= set(terminated(actions))
        places = driver.placement.wanted(now)
        for worker in spawned(actions):
            assert places[worker] == "" and worker not in live
            live.add(worker)
        assert len(live - leaving) <= 3
        assert {worker for worker in live if worker not in places} <= leaving
        if finished(actions) is not None:
            return


def test_a_node_hands_signals_on_and_tells_how_its_worker_ended() -> None:
    policy = NodePolicy("w", GRACE)
    assert terminated(policy.signalled(1.0, "SIGHUP")) == ["w"]
    assert policy.tick(1.0 + GRACE - 0.1) == [] and policy.next_due() == 1.0 + GRACE
    assert Kill("w") in policy.tick(1.0 + GRACE)
    assert finished(policy.exited(ExitStatus(EXIT_DRAINED))) == EXIT_DRAINED
    again = NodePolicy("w", GRACE)
    again.signalled(1.0, "SIGTERM")
    assert Kill("w") in again.signalled(2.0, "SIGTERM")


@pytest.mark.parametrize(
    ("code", "told", "after_a_notice"),
    [
        (0, 0, 0),
        (80, 80, 81),
        (82, 82, 82),
        (83, 83, 83),
        (1, 1, 81),
        (127, 1, 81),
        (255, 1, 81),
        (-9, 137, 81),
    ],
)
def test_codes_of_a_node(code: int, told: int, after_a_notice: int) -> None:
    assert finished(NodePolicy("w", GRACE).exited(ExitStatus(code))) == told
    policy = NodePolicy("w", GRACE)
    actions = policy.noticed(1.0, 15.0, "spot notice of aws")
    assert actions[0] == Announce(15.0, "spot notice of aws") and terminated(actions) == ["w"]
    assert policy.next_due() == 16.0
    assert finished(policy.exited(ExitStatus(code))) == after_a_notice


def test_parameter_servers_are_spread_and_those_on_demand_come_first() -> None:
    placement = Placement()
    assert not placement.spread(0.0, "ps0", [])
    offers = {"a": HostOffer(2, "spot"), "b": HostOffer(1, "on-demand"), "c": HostOffer(1, "spot")}
    placement.found(offers, {"c": "it cannot reach the master"})
    running: list[str] = []
    for name in ("ps0", "ps1", "ps2", "ps3"):
        assert placement.spread(0.0, name, running)
        running.append(name)
    assert [placement.slot(name).host for name in running] == ["b", "a", "b", "a"]
    # Those that have ended do not count, nor are failing hosts used.
    assert placement.spread(0.0, "ps0", ["ps1"]) and placement.slot("ps0").host == "b"
    assert placement.ended(1.0, "ps0", ExitStatus(255)) is not None
    assert placement.usable(1.0) == ["a"]
    assert placement.spread(1.0, "ps0", ["ps1", "ps3"]) and placement.slot("ps0").host == "a"
    placement.found({"b": HostOffer(1)}, {})
    assert not placement.is_listed("ps0") and placement.is_listed("ps2")
