"""Identity of the process behind a worker id: the newest process.

Two processes with one id, by mistake or because a scheduler started a second one beside the first, would
evict each other without end: each is taken for the other's successor. So the processes of an id are
remembered in order. The newest stays; an older one that comes back is refused for good, even if its stream
broke, or it slept, while the newer one joined.

Processes of one machine are ordered by their start. The order of their Hellos is not reliable: the Hello of a
process that was killed as it joined can arrive after its successor's. Machines have no common clock; between
them the order of arrival counts.
"""

from __future__ import annotations

from elastane_master.decisions.events import Rejection, WorkerJoined
from elastane_master.decisions.state import JobState

PROCESSES_KEPT = 4
"""Processes remembered per worker id; an older one counts as new."""

IDS_KEPT = 1000
"""Worker ids without a session whose processes are remembered."""

HINT = "give each process its own ELASTANE_WORKER_ID, or none: then each makes one"


def process_of(event: WorkerJoined) -> bytes:
    """Return the identity of the process that sent the Hello; empty if it cannot be determined."""
    return event.process or _place_of(event)


def _place_of(event: WorkerJoined) -> bytes:
    """Return the identity of a process that does not send `process`; empty without a store address.

    Host and pid are not enough: a restarted container has the same ones.
    """
    if not event.store_address:
        return b""
    return f"{event.host} {event.pid} {event.store_address}".encode()


def require_newest(state: JobState, event: WorkerJoined) -> None:
    """Raise Rejection for a process that a newer one with its worker id has replaced."""
    process, known = process_of(event), state.processes.get(event.worker, ())
    if process in known[:-1] or (known and process != known[-1] and _started_before_newest(state, event)):
        raise replaced(event.worker)


def _started_before_newest(state: JobState, event: WorkerJoined) -> bool:
    """True if the process is known to have started before the newest one of its worker id."""
    clock, started_seconds = state.process_starts.get(event.worker, ("", 0.0))
    return bool(clock) and clock == event.process_clock and event.process_started_seconds < started_seconds


def replaced(worker: str) -> Rejection:
    """Build the refusal of a replaced process."""
    return Rejection(
        "replaced",
        f"another process joined later as worker {worker}: it stays, this one is disconnected permanently",
        hint=HINT,
        worker=worker,
    )


def came(state: JobState, event: WorkerJoined) -> bool:
    """Record the process; True if it is not the last one known with its worker id."""
    process, known = process_of(event), state.processes.pop(event.worker, ())
    if not process:
        state.processes |= {event.worker: known} if known else {}
        return False
    if known and known[-1] == _place_of(event):  # stored by an older master, which keeps no `process`
        known = (*known[:-1], process)
    is_other = bool(known) and known[-1] != process
    if event.process_clock:
        state.process_starts[event.worker] = (event.process_clock, event.process_started_seconds)
    else:
        state.process_starts.pop(event.worker, None)
    state.processes[event.worker] = known if process in known else (*known, process)[-PROCESSES_KEPT:]
    if len(state.processes) > len(state.workers) + IDS_KEPT:
        oldest = next(worker for worker in state.processes if worker not in state.workers)
        del state.processes[oldest]
        state.process_starts.pop(oldest, None)
    return is_other


def left(state: JobState, worker: str) -> None:
    """Forget the processes of a worker that said Bye: its id is free again."""
    state.processes.pop(worker, None)
    state.process_starts.pop(worker, None)
