"""Workers that were stragglers and left: restarted to stand by, or not for an hour on a barred host."""

from __future__ import annotations

import pytest

from elastane_agent.hosts.slots import HostOffer
from elastane_agent.supervisor.budget import RestartBudget
from elastane_agent.supervisor.placement import Placement
from elastane_agent.supervisor.policy import Action, JobView, Say, Spawn, SupervisorPolicy
from elastane_agent.supervisor.replaced_stragglers import barred_seconds
from elastane_common.exit_codes import EXIT_DRAINED
from elastane_common.processes.child import ExitStatus
from elastane_master.decisions.effects import Note
from elastane_master.jobs.records import StoredNote
from elastane_master.servers.translate_job import event_message
from elastane_proto.history import events as history
from elastane_proto.history.events import AnyHistoryEvent
from elastane_proto.v1 import ring_pb2

RUNNING = JobView("running", workers_max=2, step=5, steps=100)
DRAINED = ExitStatus(EXIT_DRAINED)


def told(*found: AnyHistoryEvent) -> list[ring_pb2.Event]:
    """Return the events as a master serves them, the first at second 100, each a second after the other."""
    return [
        event_message(StoredNote(number, 100.0 + number, Note.of(event)))
        for number, event in enumerate(found)
    ]


def replaced(worker: str, seconds: float) -> history.StragglerReplaced:
    return history.StragglerReplaced(worker, "w9", "compute", 0.5, "host", seconds, 1.0, 2.0)


def test_a_worker_is_barred_by_what_is_told_of_it_last() -> None:
    draining = history.WorkerDraining("w0", "slow", "straggler")
    assert barred_seconds("w0", told(replaced("w0", 3600.0), draining), 200.0) == 3500.0
    assert barred_seconds("w0", told(replaced("w0", 0.0), draining), 200.0) == 0.0
    assert barred_seconds("w0", told(replaced("w0", 3600.0)), 9999.0) == 0.0
    assert barred_seconds("w1", told(replaced("w0", 3600.0)), 200.0) is None
    assert barred_seconds("w0", told(draining), 200.0) is None
    joined = history.WorkerJoined("w0", "ring", "host")
    assert barred_seconds("w0", told(replaced("w0", 3600.0), joined), 200.0) is None
    assert barred_seconds("w0", [], 200.0) is None


def spawned(actions: list[Action]) -> list[str]:
    return [action.worker for action in actions if isinstance(action, Spawn)]


def said(actions: list[Action]) -> str:
    return "\n".join(action.text for action in actions if isinstance(action, Say))


def started() -> SupervisorPolicy:
    budget = RestartBudget(restarts_max=1, delay_min_seconds=1.0)
    policy = SupervisorPolicy(["w0", "w1"], budget, grace_seconds=20.0)
    assert spawned(policy.start(0.0, RUNNING)) == ["w0", "w1"]
    return policy


def test_a_straggler_is_restarted_at_once_and_counts_in_no_budget() -> None:
    policy = started()
    for now in range(5):
        actions = policy.worker_exited(float(now), "w0", DRAINED, barred_seconds=0.0)
        assert spawned(actions) == ["w0"]
        assert "it was slow" in said(actions)


def test_on_a_barred_host_nothing_is_started_for_as_long_and_the_agent_stays() -> None:
    policy = started()
    actions = policy.worker_exited(1.0, "w0", DRAINED, barred_seconds=3600.0)
    assert spawned(actions) == []
    assert "it gets none for 60 min" in said(actions)
    policy.worker_exited(2.0, "w1", DRAINED, barred_seconds=3599.0)
    assert policy.next_due() == 3601.0
    assert spawned(policy.tick(3600.0)) == []
    assert sorted(spawned(policy.tick(3601.0))) == ["w0", "w1"]


def test_a_job_that_is_over_ends_the_wait() -> None:
    policy = started()
    for worker in ("w0", "w1"):
        policy.worker_exited(1.0, worker, DRAINED, barred_seconds=3600.0)
    actions = policy.job_changed(2.0, JobView("succeeded"))
    actions += policy.tick(2.0)
    assert any(type(action).__name__ == "Finish" for action in actions)


@pytest.mark.parametrize("seconds", [5.0, 3600.0])
def test_another_host_takes_the_place_of_a_barred_one(seconds: float) -> None:
    placement = Placement()
    placement.found({"a": HostOffer(1), "b": HostOffer(2)}, {})
    fault = placement.barred(10.0, "a-0", seconds)
    assert fault.event == "host_barred"
    barred = "its host is paused: slow workers on it were replaced"
    assert placement.wanted(10.0) == {"a-0": barred, "b-0": "", "b-1": ""}
    assert placement.next_due() == 10.0 + seconds
    assert placement.wanted(10.0 + seconds)["a-0"] == ""
