"""What all streams to watchers share: they end when the job is no longer served here, and why."""

from __future__ import annotations

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.succession import Leader
from elastane_master.host import JobHost


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
