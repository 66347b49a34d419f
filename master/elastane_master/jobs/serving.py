"""Shared parts of answers to watchers: report only durable state, end when the job is no longer served."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from elastane_master.decisions.events import AnyEvent, Rejection
from elastane_master.decisions.succession import Leader
from elastane_master.jobs.job_server import JobServer

T = TypeVar("T")


def stopping() -> Rejection:
    """Return the refusal that ends every stream when the master stops."""
    return Rejection(
        "store_unavailable", "the master is stopping", hint="connect again: another master takes over"
    )


def not_leading(leader: Leader | None) -> Rejection:
    """Return the refusal of requests to a master that does not lead. leader: the current leader, if known."""
    if leader is None:
        return Rejection(
            "not_leading",
            "this master does not lead the store",
            hint="ask the next of the masters' addresses",
        )
    return Rejection(
        "not_leading",
        f"this master is a standby; {leader.master} at {leader.address} leads",
        hint=f"ask the master at {leader.address}, or the next of the masters' addresses",
        leader=leader.address,
        master=leader.master,
    )


def require_serving(server: JobServer) -> None:
    """Raise the error that ended the service of this job, if any."""
    if server.stopping:
        raise stopping()
    if server.paused is not None:
        raise server.paused
    if server.log.failure is not None:
        raise server.log.failure


async def once_durable(server: JobServer, view: Callable[[], T]) -> T:
    """Return `view` of the job's state once that state is durable, so that a crash cannot revoke it.

    While the store does not answer, the state in memory is returned all the same, because operators need it
    then.
    """
    current = view()
    await server.log.settled()
    return current


async def outcome_of(server: JobServer, event: AnyEvent, outcome: Callable[[], T | None]) -> T:
    """Submit an event to the job, and return its outcome once that is durable.

    outcome: reads it from the job's state; None while it is pending. Raises what `outcome` raises, Rejection,
    and the error that ends the service of the job.
    """
    with server.watching():
        await server.submit(event)
        while True:
            seen = server.changed.count
            require_serving(server)
            found = outcome()
            if found is not None and await server.log.settled():
                return found
            await server.changed.beyond(seen)
