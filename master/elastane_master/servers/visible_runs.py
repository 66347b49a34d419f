"""Runs that the caller of an rpc may know of."""

from __future__ import annotations

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs.run import Run
from elastane_master.runs.run_server import RunServer
from elastane_master.servers import callers


def run_of(server: RunServer, run_id: int) -> Run:
    """Return a run that the caller may know of. Raises Rejection("not_found") for any other."""
    run = server.machine.state.runs.get(run_id)
    if run is None or not callers.principal.get().covers_owner(run.owner):
        raise unknown_run(run_id)
    return run


def unknown_run(run_id: int) -> Rejection:
    """Return the refusal for a run that does not exist, or that the caller may not know of."""
    return Rejection(
        "not_found",
        f"there is no run {run_id}",
        hint="elastane queue and elastane jobs list them",
        run_id=run_id,
    )
