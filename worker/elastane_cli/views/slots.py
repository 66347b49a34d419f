"""Parameter servers and slots of a job, in words and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from elastane_cli.views.text import counted, harmless
from elastane_common.sizes import size_text
from elastane_slots.staleness_counts import HOT_TIMES, quantiles

if TYPE_CHECKING:
    from elastane_proto.v1 import ps_pb2

#: Number of a server's busiest slots that are named.
_HOT_MAX: Final = 3


def ps_rows(slots: ps_pb2.GetSlotsResponse) -> Iterator[tuple[str, ...]]:
    """Yield a row for each parameter server, by name.

    Name, state, slots, backups, rows, bytes of weights and optimizer states, pushes applied, staleness
    (median, 99 %, maximum), hot slots.
    """
    sizes = {
        slot.slot: slot.weight_bytes + slot.optimizer_bytes
        for process in slots.processes
        for slot in process.figures.slots
    }
    mean = sum(sizes.values()) / len(sizes) if sizes else 0.0
    for process in sorted(slots.processes, key=lambda one: one.ps_id):
        figures = process.figures
        if not process.HasField("figures"):
            yield (process.ps_id, process.state, str(process.slots), str(process.backups), *("-",) * 7)
            continue
        own = {slot.slot: sizes[slot.slot] for slot in figures.slots}
        yield (
            process.ps_id,
            process.state,
            str(process.slots),
            str(process.backups),
            f"{sum(slot.rows for slot in figures.slots):,}",
            size_text(sum(own.values())),
            f"{figures.verdicts.get('applied', 0):,}",
            *quantiles(figures.staleness_counts),
            _hot_text(own, mean),
        )


def slot_rows(slots: ps_pb2.GetSlotsResponse) -> Iterator[tuple[str, ...]]:
    """Yield a row for each slot: number, owner, backup, state, life, version, rows, bytes, version saved."""
    figures = {slot.slot: slot for process in slots.processes for slot in process.figures.slots}
    saved = {snapshot.slot: snapshot for snapshot in slots.snapshots}
    for number, place in enumerate(slots.map.places):
        known = figures.get(number)
        measured = ("-", "-", "-")
        if known is not None:
            size = size_text(known.weight_bytes + known.optimizer_bytes)
            measured = (f"{known.version:,}", f"{known.rows:,}", size)
        snapshot = saved.get(number)
        is_of_life = snapshot is not None and snapshot.life == place.life
        yield (
            str(number),
            place.owner or "-",
            place.backup or "-",
            place_state(place),
            str(place.life),
            *measured,
            f"{snapshot.version:,}" if snapshot is not None and is_of_life else "-",
        )


def place_state(place: ps_pb2.SlotPlace) -> str:
    """Describe the state of a slot."""
    if not place.owner:
        return "waits for a parameter server"
    if place.restoring:
        return f"is restored from {place.source}" if place.source else "is restored"
    if place.target:
        return f"moves to {place.target}"
    if place.joining:
        return f"is copied to {place.joining}"
    return "served"


def summary_lines(slots: ps_pb2.GetSlotsResponse) -> Iterator[str]:
    """Yield a summary of the whole job: model, leases, restored and saved slots."""
    if slots.HasField("model"):
        model = slots.model
        parts = [counted(len(model.tensors), "tensor"), counted(len(model.tables), "table")]
        yield f"model: {' and '.join(parts)} in {counted(model.slots, 'slot')}; map {slots.map.generation}"
    else:
        yield "no worker has registered a model yet"
    yield gate_line(slots.gate)
    if slots.gate.waiting:
        yield f"no task is leased: {harmless(slots.gate.waiting)}"
    if slots.reopened:
        yield f"{counted(slots.reopened, 'DONE task')} opened again, as slots were restored"
    for parts_left in list(slots.left)[:_HOT_MAX]:
        where = ", ".join(map(str, list(parts_left.slots)[:20])) or "none"
        yield (
            f"FAILED task {parts_left.task} of epoch {parts_left.epoch} of {harmless(parts_left.dataset)} "
            f"has left its gradient in slots: {where}"
        )
    if len(slots.left) > _HOT_MAX:
        yield f"and {len(slots.left) - _HOT_MAX} more FAILED tasks: see --json"
    if slots.checkpoint:
        yield f"newest checkpoint: {harmless(slots.checkpoint)}"
    for process in slots.processes:
        if process.figures.unsaved_error:
            yield (
                f"{process.ps_id} cannot save its slots since "
                f"{process.figures.unsaved_since.ToJsonString()}: {harmless(process.figures.unsaved_error)}"
            )


def status_lines(slots: ps_pb2.GetSlotsResponse) -> Iterator[str]:
    """Yield the lines of `elastane status` and `why` for a job with slots: servers, and `summary_lines`."""
    ready = sum(bool(place.owner) and not place.restoring for place in slots.map.places)
    servers = ", ".join(
        one.ps_id if one.state == "serving" else f"{one.ps_id} ({one.state})"
        for one in sorted(slots.processes, key=lambda one: one.ps_id)
    )
    count = counted(len(slots.map.places), "slot")
    yield f"parameter servers: {servers or 'none'}; {ready} of {count} served"
    yield from summary_lines(slots)


def gate_line(gate: ps_pb2.LeaseGate) -> str:
    """Describe the possible staleness of pushes, and the tasks in flight."""
    limit = f"at most {gate.limit}" if gate.HasField("limit") else "any number"
    line = (
        f"staleness: {limit}, {gate.worst} possible now; {counted(gate.outstanding, 'task')} in flight, "
        f"{gate.returned} given back"
    )
    return f"{line}, {gate.closing} FAILED and not closed everywhere" if gate.closing else line


def _hot_text(sizes: Mapping[int, int], mean: float) -> str:
    hot = [slot for slot, size in sizes.items() if size > HOT_TIMES * mean]
    hot.sort(key=lambda slot: (-sizes[slot], slot))
    named = [f"{slot} ({size_text(sizes[slot])})" for slot in hot[:_HOT_MAX]]
    return ", ".join([*named, f"+{len(hot) - _HOT_MAX}"] if len(hot) > _HOT_MAX else named) or "-"
