"""Gathers what a job's page shows of its parameter servers: a row for each, and where every slot is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from elastane_master.decisions.slots.view import SlotsView, slots_view
from elastane_master.jobs.job_server import JobServer
from elastane_proto.v1 import ps_pb2
from elastane_slots.slot_map import SlotPlace
from elastane_slots.staleness_counts import hot, quantiles

PS_SHOWN: Final = 100
CELLS_SHOWN: Final = 1024
COLOURS: Final = 8


@dataclass(frozen=True, slots=True)
class PsRow:
    """A parameter server. number: by which cells name it. rate: pushes a second; None: not known yet.

    measured: it has told its figures; without them the rest is empty. staleness: median, 99 %, maximum.
    behind: most tasks that the snapshot of any of its slots lacks; None: one has no snapshot by this owner.
    """

    number: int
    ps: str
    state: str
    slots: int
    backups: int
    rate: float | None
    measured: bool
    rows: int = 0
    bytes: int = 0
    hot: int = 0
    staleness: tuple[str, str, str] = ("-", "-", "-")
    behind: int | None = None
    unsaved: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A slot. number: of its owner; "" if it is not served. style: class of its colour."""

    number: str
    style: str
    title: str


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """Parameter servers of a job. served: slots. left_out: cells that are not drawn."""

    view: SlotsView
    generation: int
    rows: tuple[PsRow, ...]
    cells: tuple[Cell, ...]
    slots: int
    served: int
    left_out: int


def slot_facts(server: JobServer) -> SlotFacts | None:
    """Return what is known of a job's parameter servers; None if it has none."""
    book = server.machine.state.slots
    if book.map is None:
        return None
    view, places = slots_view(book, server.machine.queues), book.map.places
    told = {ps: ps_pb2.PsFigures.FromString(figures) for ps, figures in server.slots.figures.items()}
    sizes = [slot.weight_bytes + slot.optimizer_bytes for one in told.values() for slot in one.slots]
    known = sorted(view.processes, key=lambda one: one.ps)
    numbers = {one.ps: number for number, one in enumerate(known)}
    rows = []
    for one in known[:PS_SHOWN]:
        row = PsRow(
            numbers[one.ps],
            one.ps,
            one.state,
            one.slots,
            one.backups,
            server.slots.push_rates.get(one.ps),
            measured=one.ps in told,
        )
        rows.append(_measured(row, told[one.ps], sizes) if row.measured else row)
    return SlotFacts(
        view,
        book.map.generation,
        tuple(rows),
        tuple(_cell(slot, place, numbers) for slot, place in enumerate(places[:CELLS_SHOWN])),
        len(places),
        sum(place.served for place in places),
        max(0, len(places) - CELLS_SHOWN),
    )


def _measured(row: PsRow, figures: ps_pb2.PsFigures, sizes: list[int]) -> PsRow:
    own = [slot.weight_bytes + slot.optimizer_bytes for slot in figures.slots]
    unsaved = [slot for slot in figures.slots if slot.saved_version < 0]
    behind = max((slot.version - slot.saved_version for slot in figures.slots), default=0)
    return PsRow(
        row.number,
        row.ps,
        row.state,
        row.slots,
        row.backups,
        row.rate,
        measured=True,
        rows=sum(slot.rows for slot in figures.slots),
        bytes=sum(own),
        hot=hot(sizes, own),
        staleness=quantiles(figures.staleness_counts),
        behind=None if unsaved else behind,
        unsaved=figures.unsaved_error,
    )


def _cell(slot: int, place: SlotPlace, numbers: dict[str, int]) -> Cell:
    if not place.owner:
        return Cell("", "none", f"slot {slot} waits for a parameter server")
    if place.restoring:
        return Cell("", "none", f"slot {slot} is restored by {place.owner}")
    number = numbers.get(place.owner, 0)
    title = f"slot {slot}: {place.owner}"
    if place.backup:
        title += f", backup {place.backup}"
    if place.target or place.joining:
        title += f", {'moves' if place.target else 'is copied'} to {place.target or place.joining}"
    return Cell(str(number), f"h{number % COLOURS}", title)
