"""State of the slots of one job: their processes, the slot map, operations in progress. Pure values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from elastane_master.decisions.slot_events import SavedPart
from elastane_master.decisions.slot_model import SlotModel
from elastane_shards.intervals import IntervalSet
from elastane_slots.slot_map import SlotMap
from elastane_slots.staleness import StalenessGate
from elastane_slots.tasks import TaskName, TaskRun


class PsRecord(msgspec.Struct):
    """A parameter server with a session, or one that may return with its slots.

    lost_at: when its stream broke; None: it has not. awaited: it has not sent Hello since the master's
    restart. process, process_clock, process_started: identify the process among those with its id. leave_by:
    when its node is taken away, if known. unsaved: why its snapshots cannot be written; empty: they can.
    read: slots restored since the last event about them; fresh: those with initial values.
    """

    ps: str
    session: str
    joined_at: float
    address: str = ""
    host: str = ""
    pid: int = 0
    key: bytes = b""
    process: bytes = b""
    process_clock: str = ""
    process_started: float = 0.0
    capacity: Literal["spot", "on_demand"] = "spot"
    memory_bytes: int = 0
    draining: bool = False
    drain_reason: str = ""
    awaited: bool = False
    lost_at: float | None = None
    reason: str = ""
    leave_by: float | None = None
    unsaved: str = ""
    read: tuple[int, ...] = ()
    fresh: bool = False

    @property
    def attends(self) -> bool:
        """True if it has a session."""
        return not self.awaited and self.lost_at is None

    @property
    def state(self) -> str:
        """In a word, as in ps.proto."""
        if self.awaited:
            return "awaited"
        if self.lost_at is not None:
            return "lost"
        return "draining" if self.draining else "serving"


class Closing(msgspec.Struct):
    """A FAILED task that some slots may still apply. applied: answers of slots, whether they have it."""

    applied: dict[int, bool] = {}


class Finishing(msgspec.Struct):
    """A dataset whose tasks are all over: workers are told once every slot is saved.

    request: of SaveSlots. saved: by slot, the life that was saved.
    """

    request: str
    saved: dict[int, int] = {}


class StoredDone(msgspec.Struct, frozen=True):
    """The DONE tasks of a dataset at one moment, as `DoneTasks`; sets are stored as gaps."""

    epoch: int
    done: list[int]
    tasks: int
    not_done: dict[int, list[int]]

    @classmethod
    def of(cls, epoch: int, done: IntervalSet, tasks: int, not_done: dict[int, IntervalSet]) -> StoredDone:
        """Return the stored form of `DynamicQueue.done_tasks`."""
        return cls(epoch, done.to_gaps(), tasks, {one: gaps.to_gaps() for one, gaps in not_done.items()})


class SlotCheckpointInFlight(msgspec.Struct):
    """A checkpoint in progress. requests: ids that it fulfils. done: tasks DONE before slots were saved.

    stage: "draining": no fresh task is leased until none is in flight, or until `drain_until`, or
    `returned_until` if all tasks in flight were given back (0: some are not); "saving"; "manifest": all slots
    are saved. parts: by slot. lives_sum: of the map when the parts were requested.
    """

    checkpoint: str
    since: float
    stage: Literal["draining", "saving", "manifest"]
    requests: tuple[str, ...] = ()
    in_flight: bool = False
    drain_until: float = 0.0
    lives_sum: int = 0
    parts: dict[int, SavedPart] = {}
    done: dict[str, StoredDone] = {}
    manifest: bytes = b""
    tasks: int = 0
    surplus: dict[int, list[TaskRun]] = {}
    returned_until: float = 0.0


class SavedSlotCheckpoint(msgspec.Struct, frozen=True):
    """A complete checkpoint. tasks: number of DONE tasks. surplus: further tasks applied, by slot."""

    checkpoint: str
    saved_at: float
    tasks: int
    surplus: dict[int, tuple[TaskRun, ...]] = {}
    requests: tuple[str, ...] = ()


class FailedSlotCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was abandoned."""

    checkpoint: str
    error: str
    requests: tuple[str, ...] = ()


class SlotBook(msgspec.Struct):
    """Slots of a job; `map` is None until a model is registered or the first parameter server comes.

    processes: by id. known: processes seen under each id, oldest first. leases: number of the last lease of a
    task that pushes. gate: limits leases. returns: number of returned tasks. closings: FAILED tasks that some
    slots have not closed. left_parts: FAILED tasks closed everywhere, with the slots that keep their
    gradients. snapshots: life and version of the newest one, by slot. sources: checkpoints that slots are
    taken back to, while they are restored. unrestored: by slot, the life in which restoring failed. claims:
    by slot, life and `since` reported by a backup after a restart of the master. lives_from: lowest number
    for a new life; lives_apart: its distance from every life before that start of the master; stored:
    generation of the stored map at that start, -1 without one (returning.py). grace_until: time until which
    processes may return after it. copy_since, moved, copied: of the copies in progress, for their event;
    copy_retries: by slot, when a broken copy is retried. finishing, finished: datasets whose tasks are all
    over, and those reported to workers. saves: number of requests to save. checkpoint, checkpoints,
    failed_checkpoints: newest last.
    """

    model: SlotModel | None = None
    map: SlotMap | None = None
    processes: dict[str, PsRecord] = {}
    known: dict[str, tuple[bytes, ...]] = {}
    leases: int = 0
    gate: StalenessGate = msgspec.field(default_factory=StalenessGate)
    returns: dict[TaskName, int] = {}
    closings: dict[TaskName, Closing] = {}
    left_parts: dict[TaskName, tuple[int, ...]] = {}
    snapshots: dict[int, tuple[int, int]] = {}
    sources: dict[int, str] = {}
    unrestored: dict[int, int] = {}
    claims: dict[int, tuple[int, int]] = {}
    lives_from: int = 0
    lives_apart: int = 1
    stored: int = -1
    grace_until: float | None = None
    copy_since: float | None = None
    moved: int = 0
    copied: int = 0
    copy_retries: dict[int, float] = {}
    finishing: dict[str, Finishing] = {}
    finished: dict[str, None] = {}
    saves: int = 0
    checkpoint: SlotCheckpointInFlight | None = None
    checkpoints: tuple[SavedSlotCheckpoint, ...] = ()
    failed_checkpoints: tuple[FailedSlotCheckpoint, ...] = ()

    @property
    def start_mark(self) -> str:
        """Distinguishes names given by this master from those of an earlier one that the store has
        forgotten; "" for a job's first master."""
        return f"-{self.lives_apart:08x}" if self.lives_apart > 1 else ""

    def attending(self) -> Iterator[PsRecord]:
        """Parameter servers with a session."""
        return (record for record in self.processes.values() if record.attends)

    def staying(self) -> list[str]:
        """Ids of parameter servers that slots may move to."""
        return [record.ps for record in self.attending() if not record.draining]

    def owned(self, ps: str) -> list[int]:
        """Slots that a process owns."""
        places = self.map.places if self.map is not None else ()
        return [slot for slot, place in enumerate(places) if place.owner == ps]
