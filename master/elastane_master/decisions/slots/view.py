"""View of a job's slots, for display."""

from __future__ import annotations

from dataclasses import dataclass

from elastane_master.decisions.queues import Queues
from elastane_master.decisions.slot_book import SlotBook
from elastane_master.decisions.slot_model import SlotModel
from elastane_master.decisions.slots import leasing
from elastane_slots.tasks import TaskName


@dataclass(frozen=True)
class PsView:
    """A parameter server. slots, backups: numbers of those it owns, and backs up. state: as in ps.proto."""

    ps: str
    host: str
    pid: int
    address: str
    state: str
    slots: int
    backups: int
    memory_bytes: int
    joined_at: float
    capacity: str


@dataclass(frozen=True)
class SlotsView:
    """The slots of a job, their processes and the gate.

    waiting: why nothing is leased; empty: tasks are, or all are over. snapshots: by slot, life and version.
    checkpoint: the newest complete one; empty: none. datasets: those whose tasks push.
    """

    model: SlotModel | None
    processes: tuple[PsView, ...]
    limit: int | None
    outstanding: int
    returned: int
    closing: int
    worst: int
    waiting: str
    leases: int
    left_parts: tuple[tuple[TaskName, tuple[int, ...]], ...]
    snapshots: tuple[tuple[int, tuple[int, int]], ...]
    reopened: int
    checkpoint: str
    datasets: tuple[str, ...]


def slots_view(book: SlotBook, queues: Queues) -> SlotsView:
    """Return what is shown of a job's slots."""
    places = book.map.places if book.map is not None else ()
    processes = tuple(
        PsView(
            record.ps,
            record.host,
            record.pid,
            record.address,
            record.state,
            sum(place.owner == record.ps for place in places),
            sum(place.backup == record.ps for place in places),
            record.memory_bytes,
            record.joined_at,
            record.capacity,
        )
        for record in book.processes.values()
    )
    gate, datasets = book.gate, tuple(name for name, queue in queues.dynamic.items() if queue.pushes)
    over = bool(datasets) and book.finished.keys() >= set(datasets)
    return SlotsView(
        book.model,
        processes,
        gate.limit,
        len(gate.outstanding),
        len(gate.returned),
        len(gate.closing),
        gate.worst(),
        "" if over else leasing.waits(book),
        book.leases,
        tuple(sorted(book.left_parts.items())),
        tuple(sorted(book.snapshots.items())),
        sum(queue.reopened for queue in queues.dynamic.values()),
        book.checkpoints[-1].checkpoint if book.checkpoints else "",
        datasets,
    )
