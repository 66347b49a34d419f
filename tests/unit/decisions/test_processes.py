"""Two processes with one worker id: the later one stays, the first one is sent away for good."""

from __future__ import annotations

from typing import Any

import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events, processes
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.machine import JobMachine

FIRST, LATER = {"process": b"first", "pid": 1}, {"process": b"later", "pid": 2}


def running(**hello: Any) -> JobDriver:
    job = JobDriver(settings(4))
    job.join("w", **{**FIRST, **hello})
    job.gather()
    job.ready("w")
    job.loaded("w")
    job.steps(0, 2)
    job.take()
    return job


def how_it_ended(job: JobDriver) -> list[str]:
    """How streams were ended by the last event."""
    return [effect.reason for effect in job.effects if isinstance(effect, effects.Close)]


def refused(job: JobDriver, **hello: Any) -> None:
    before = job.machine.snapshot()
    with pytest.raises(Rejection) as refusal:
        job.join("w", **hello)
    assert refusal.value.reason == "replaced" and "ELASTANE_WORKER_ID" in refusal.value.hint
    assert job.machine.snapshot() == before


def test_the_later_process_stays_and_the_first_is_told_and_never_let_in_again() -> None:
    job = running()
    job.join("w", session="w-2", **LATER)
    assert how_it_ended(job) == ["replaced"]
    assert "another process with its id joined (process 2 at host)" in job.noted("worker_lost")[0].reason
    for _ in range(3):
        refused(job, session="w-3", **FIRST)
        assert job.session("w") == "w-2"


def test_nor_when_its_stream_broke_before_the_later_one_joined() -> None:
    job = running()
    job.lose("w")
    job.join("w", session="w-2", **LATER)
    assert how_it_ended(job) == []
    refused(job, session="w-3", **FIRST)


@pytest.mark.parametrize("returns", [FIRST, LATER])
def test_nor_after_a_restart_of_the_master(returns: dict[str, Any]) -> None:
    job = running()
    job.join("w", session="w-2", **LATER)
    job.machine = JobMachine.restore(job.machine.snapshot())
    job.do(events.MasterStarted("m2"))
    if returns is FIRST:
        refused(job, session="w-3", **FIRST)
    job.join("w", session="w-4", **LATER)
    assert job.session("w") == "w-4"


def test_a_process_that_connects_again_is_no_other_one() -> None:
    job = running()
    job.join("w", session="w-2", **FIRST)
    assert how_it_ended(job) == ["evicted"]
    job.lose("w")
    job.join("w", session="w-3", **FIRST)
    assert job.session("w") == "w-3"


def test_processes_that_do_not_say_who_they_are_are_told_apart_by_host_pid_and_address() -> None:
    job = running()
    job.join("w", session="w-2", pid=7)
    assert how_it_ended(job) == ["replaced"]
    job.join("w", session="w-3", pid=8)
    refused(job, session="w-4", pid=7)
    # And where nothing tells them apart, as before.
    for session in ("w-5", "w-6", "w-7"):
        job.join("w", session=session, host="", pid=0, store_address="")
        assert how_it_ended(job) == ["evicted"]


def test_another_process_at_the_same_place_does_not_return_for_the_first() -> None:
    """A container that is started again has its host, pid and perhaps port again, but not its state."""
    job = running()
    job.machine = JobMachine.restore(job.machine.snapshot())
    job.do(events.MasterStarted("m2"))
    generation = job.generation
    job.join("w", session="w-2", **{**LATER, "pid": FIRST["pid"]})
    assert [note.reason for note in job.noted("worker_lost")] == ["w was started anew"]
    assert not job.noted("worker_joined")[-1].reason.startswith("w returned")
    assert job.generation > generation and not job.state.workers["w"].holds_state


def test_a_worker_that_an_older_master_let_in_returns_to_this_one() -> None:
    """What an older master stores of a Hello has no `process`."""
    job = running(process=b"")
    job.machine = JobMachine.restore(job.machine.snapshot())
    job.do(events.MasterStarted("m2"))
    job.join("w", session="w-3", **FIRST)
    assert job.noted("worker_joined")[-1].reason == "w returned to the restarted master"
    job.join("w", session="w-4", **FIRST)
    assert how_it_ended(job) == ["evicted"]


def test_host_and_pid_alone_are_no_process() -> None:
    """A container that is started again has the pid that it had; older task workers say no more."""
    job = running()
    for number, host in enumerate(("node-1", "node-2", "node-1")):
        job.join("t", session=f"t-{number}", role="tasks", host=host, pid=7, store_address="")
        job.lose("t")
    assert "t" not in job.state.processes


def test_an_id_is_free_again_once_its_worker_has_said_bye() -> None:
    job = running()
    job.join("w", session="w-2", **LATER)
    job.bye("w", "drained", applied=0)
    assert job.state.processes == {}
    job.join("w", session="w-3", **FIRST)
    assert job.session("w") == "w-3"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "IDS_KEPT", 3)
    job = running()
    for number in range(10):
        job.join("w", session=f"w-{number}", process=b"%d" % number)
        job.join(f"x{number}", role="tasks")
        job.lose(f"x{number}")
    assert job.state.processes["w"] == (b"6", b"7", b"8", b"9")
    assert set(job.state.processes) == {"w", "x7", "x8", "x9"}


def at(clock: str, seconds: float, process: bytes) -> dict[str, Any]:
    return {"process_clock": clock, "process_started_seconds": seconds, "process": process}


def test_the_process_that_started_later_stays_though_its_hello_came_first() -> None:
    """That of a process that was killed as it joined may be delayed on its way."""
    job = running(**at("boot", 5.0, b"later"))
    refused(job, session="w-2", **at("boot", 4.0, b"first"))
    assert job.session("w") != "w-2"
    job.machine = JobMachine.restore(job.machine.snapshot())
    refused(job, session="w-3", **at("boot", 4.0, b"first"))
    job.join("w", session="w-4", **at("boot", 6.0, b"last"))
    assert job.session("w") == "w-4"


@pytest.mark.parametrize("other", ["another boot", ""])
def test_without_a_clock_in_common_the_order_of_arrival_counts(other: str) -> None:
    job = running(**at("boot", 5.0, b"first"))
    job.join("w", session="w-2", **at(other, 4.0, b"later"))
    assert job.session("w") == "w-2"


def test_after_bye_the_id_is_free_for_any_process() -> None:
    job = running(**at("boot", 5.0, b"later"))
    processes.left(job.state, "w")
    assert job.state.processes == {} and job.state.process_starts == {}
