"""How often a job's server looks for deadlines: reports of steps come by the hundred a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from elastane_master.decisions.events import (
    ContextDelta,
    LoadedReported,
    ReadyReported,
    Signature,
    StepReported,
    StepTask,
    WorkerJoined,
)
from elastane_master.jobs import job_server
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.serving import stopping
from elastane_master.store.log import LogOptions
from elastane_proto.job_settings import JobSettings
from integration.master_support import private_store

SIGNATURE = Signature((), 1000, 2, 500, 1, {"torch": "2"})


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[JobServer]:
    """The server of a job whose two workers train."""
    async with private_store(tmp_path) as store:
        hosts = JobServers(store, LogOptions())
        await hosts.start()
        await hosts.create("j", JobSettings(ests=2, workers_min=2, heartbeat_timeout_seconds=600.0))
        server = hosts.get("j")
        for worker in ("a", "b"):
            server.open_session(
                lambda session, worker=worker: WorkerJoined(worker, session, "ring", SIGNATURE, "h", 1, "h:1")
            )
        deliver(server, [ReadyReported(worker, "", 1, 0, False) for worker in ("a", "b")])
        contexts = tuple(ContextDelta(rank, {"rng/python": b"s"}, False) for rank in range(2))
        deliver(server, [LoadedReported("a", "", 1, 0, contexts, (2, 1), "")])
        assert server.machine.state.ring.stage == "running"
        yield server
        await hosts.stop(stopping())


def deliver(
    server: JobServer, events: list[ReadyReported] | list[LoadedReported] | list[StepReported]
) -> None:
    for event in events:
        session = server.sessions[event.worker]
        fields = {name: getattr(event, name) for name in event.__struct_fields__} | {"session": session.id}
        server.deliver(session, type(event)(**fields))


def step(server: JobServer, number: int, workers: str = "ab") -> None:
    for rank, worker in enumerate("ab"):
        if worker in workers:
            context = ContextDelta(rank, {"rng/python": b"%d" % number}, False)
            task = StepTask(rank, number, number + 1)
            deliver(server, [StepReported(worker, "", 1, number, number // 500, (context,), (task,))])


async def test_a_step_does_not_ask_for_a_look_of_its_own(
    server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_server, "PLAN_SECONDS_AFTER_REPORT", 3600.0)
    looks = 0
    look = server._look_for_deadlines

    def counted() -> None:
        nonlocal looks
        looks += 1
        look()

    monkeypatch.setattr(server, "_look_for_deadlines", counted)
    server._plan(0.0)  # takes the place of those that are planned
    for number in range(20):
        step(server, number)
        await server.log.append(None)
        await asyncio.sleep(0)
    assert server.machine.state.steps.prepared == 19
    assert looks <= 1


async def test_a_look_follows_a_report_soon(server: JobServer) -> None:
    step(server, 0)
    assert server._timer is not None
    server._timer.cancel()  # what is planned by now, for the sake of the workers' sessions
    server._timer, server._looks_soon = None, False
    step(server, 1, "a")
    planned = server._timer
    assert planned is not None
    assert planned.when() <= server._loop.time() + 0.1
