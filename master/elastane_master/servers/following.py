"""What all streams to watchers share: they end when the job is no longer served here."""

from __future__ import annotations

from elastane_master.decisions.events import Rejection
from elastane_master.host import JobHost


def stopping() -> Rejection:
    """The refusal that ends every stream of a master that stops in good order."""
    return Rejection(
        "store_unavailable", "the master is stopping", hint="connect again: another one takes its place"
    )


def require_serving(host: JobHost) -> None:
    """Raises what ended the service of this job, if anything did."""
    if host.stopping:
        raise stopping()
    if host.log.failure is not None:
        raise host.log.failure
