"""What all answers to watchers share: they tell what is durable, and end when the job is no longer served."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.succession import Leader
from elastane_master.host import JobHost

T = TypeVar("T")


def stopping() -> Rejection:
    """The refusal that ends every stream of a master that stops in good order."""
    return Rejection(
        "store_unavailable", "the master is stopping", hint="connect again: another one takes its place"
    )


def not_leading(leader: Leader | None) -> Rejection:
    """The refusal of every request to a master that does not lead. leader: who does, if that is known."""
    if leader is None:
        return Rejection(
            "not_leading",
            "this master does not lead the store",
            hint="ask the next of the masters' addresses",
        )
    return Rejection(
        "not_leading",
        f"this master stands by; {leader.master} at {leader.address} leads",
        hint=f"ask the master at {leader.address}, or the next of the masters' addresses",
        leader=leader.address,
        master=leader.master,
    )


def require_serving(host: JobHost) -> None:
    """Raises what ended the service of this job, if anything did."""
    if host.stopping:
        raise stopping()
    if host.paused is not None:
        raise host.paused
    if host.log.failure is not None:
        raise host.log.failure


async def once_durable(host: JobHost, view: Callable[[], T]) -> T:
    """`view` of the job's state, told once that state is durable: a crash must not take back what was told.

    While the store does not answer, the state in memory is told all the same: operators ask just then.
    """
    told = view()
    await host.log.settled()
    return told
