"""Audit of the slots of a job: has every slot applied exactly the DONE tasks?

It compares the records of parameter servers (`Inspected.record`) with the master's committed history (the
audit log) and open tasks. It shares no code with either side and decodes the records from their bytes, so
that it can detect bugs in them. A record is MessagePack:

    [life, fence, applied, closed]            the last two again MessagePack:
    [1, [[name, even, open], ...]]            a set of tasks, by dataset
    even    [start, end, count]               epochs start..end-1 have the tasks 0..count-1
    open    [epoch, [gap, length, ...]]       runs of tasks of an epoch, each after a gap

While a job runs, the two are read one after the other. So a task is missing in a slot only if it was DONE
before the slots were read and is not open afterwards; it is surplus only if it is neither DONE nor open
afterwards. FAILED tasks that a slot has applied must be listed by the master.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import msgspec

from elastane_common.errors import ElastaneError

#: Limit of offending tasks that a result names; the counts are always exact.
NAMED_MAX: Final = 20

#: A task: dataset, epoch, index.
Name = tuple[str, int, int]


class SlotAuditError(ElastaneError):
    """The slots of a job cannot be audited: one is not served, or its record cannot be read."""

    code = "ELA493"


@dataclass(frozen=True)
class SlotContent:
    """Contents of a slot's record."""

    life: int
    fence: int
    applied: frozenset[Name]
    closed: frozenset[Name]


@dataclass(frozen=True)
class MasterView:
    """The master's view of the tasks of all pushing datasets.

    done: committed, and not reopened. open: TODO or DOING. failed: FAILED. left: for each FAILED task, the
    slots that keep its gradients; closing: number of FAILED tasks for which this is not known yet.
    """

    done: Set[Name]
    open: Set[Name]
    failed: Set[Name]
    left: Mapping[Name, Collection[int]] = field(default_factory=dict)
    closing: int = 0


@dataclass(frozen=True)
class SlotAudit:
    """Result for one slot. missing, surplus: faults, as counts. in_flight: applied here, and still open.

    left: FAILED tasks that it has applied. names: examples of the faults, with their kind.
    """

    slot: int
    life: int
    version: int
    missing: int = 0
    surplus: int = 0
    in_flight: int = 0
    left: int = 0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class SlotsAudit:
    """Result for all slots. tasks: DONE."""

    tasks: int
    slots: tuple[SlotAudit, ...]
    failed: int
    closing: int

    @property
    def ok(self) -> bool:
        """True if every slot has applied all DONE tasks, and no unexplained others."""
        return not any(slot.faults for slot in self.slots)


def decode_record(record: bytes) -> SlotContent:
    """Decode a slot's record. Raises SlotAuditError for bytes that are no record."""
    try:
        life, fence, applied, closed = msgspec.msgpack.decode(record)
        return SlotContent(int(life), int(fence), _names(applied), _names(closed))
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise SlotAuditError(f"the record of a slot cannot be read: {error}") from error


def audit_slots(
    slots: Mapping[int, SlotContent], lives: Mapping[int, int], before: MasterView, after: MasterView
) -> SlotsAudit:
    """Compare the slots' contents with the master's views before and after they were read.

    lives: of the map, by slot; if a slot was restored meanwhile, audit again.
    """
    done = before.done - after.open
    known = after.done | after.open | after.failed | before.done
    results = []
    for slot, content in sorted(slots.items()):
        faults: list[str] = []
        missing = done - content.applied
        surplus = content.applied - known
        left = content.applied & after.failed
        told = {name for name, where in after.left.items() if slot in where}
        faults += _named("is DONE, and not applied here", missing)
        faults += _named("is applied here, and no task of the job", surplus)
        if not after.closing:
            faults += _named("is FAILED and applied here, which the master does not list", left - told)
            faults += _named(
                "is FAILED and said to be applied here, and is not", told & after.failed - content.applied
            )
        faults += _named("is applied and closed", content.applied & content.closed)
        if content.life != lives[slot]:
            faults.append(f"it is in life {content.life}, and the map says {lives[slot]}")
        results.append(
            SlotAudit(
                slot,
                content.life,
                len(content.applied),
                len(missing),
                len(surplus),
                len(content.applied & after.open),
                len(left),
                tuple(faults),
            )
        )
    return SlotsAudit(len(after.done), tuple(results), len(after.failed), after.closing)


def _names(encoded: bytes) -> frozenset[Name]:
    version, datasets = msgspec.msgpack.decode(encoded)
    if version != 1:
        raise ValueError(f"a set of tasks in version {version}")
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for name, even, opened in datasets:
        for start, end, count in even:
            for epoch in range(start, end):
                _add(found, name, epoch, [(0, count)])
        for epoch, gaps in opened:
            _add(found, name, epoch, _runs(gaps))
    return frozenset((name, epoch, task) for (name, epoch), tasks in found.items() for task in tasks)


def _add(
    found: dict[tuple[str, int], set[int]], name: Any, epoch: Any, runs: Iterable[tuple[int, int]]
) -> None:
    if (name, epoch) in found:
        raise ValueError(f"epoch {epoch} of {name!r} stands twice")
    for start, end in runs:
        if not 0 <= start < end:
            raise ValueError(f"tasks {start}..{end - 1}")
        found[name, epoch].update(range(start, end))


def _runs(gaps: Iterable[int]) -> list[tuple[int, int]]:
    """Read [gap, length, gap, length, ...] as runs [start, end)."""
    bounds, place = [], 0
    for step in gaps:
        place += step
        bounds.append(place)
    if len(bounds) % 2 or any(a >= b for a, b in pairwise(bounds)):
        raise ValueError("the runs of an epoch are not ascending")
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def _named(what: str, names: Collection[Name]) -> list[str]:
    shown = sorted(names)[:NAMED_MAX]
    lines = [f"task {task} of epoch {epoch} of {dataset} {what}" for dataset, epoch, task in shown]
    return [*lines, f"and {len(names) - NAMED_MAX} more"] if len(names) > NAMED_MAX else lines
