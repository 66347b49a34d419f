"""State of the slots of one job: the processes that hold them, the map, what is under way. Pure values."""

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

    lost_at: when its stream broke; None: it has not. awaited: the master was restarted, and it has not
    said Hello since. process, process_clock, process_started: which of several with its id it is. leave_by:
    when it is taken away, if known. unsaved: why its snapshots cannot be written; empty: they can. read:
    slots that it has read since the last event about them; fresh: with the initial values.
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
    """A FAILED task that some slots may still apply. applied: by slot that has answered, if it has it."""

    applied: dict[int, bool] = {}


class Finishing(msgspec.Struct):
    """A data set whose tasks are all over: workers are told so once every slot is saved.

    request: of SaveSlots. saved: by slot, the life that was saved.
    """

    request: str
    saved: dict[int, int] = {}


class StoredDone(msgspec.Struct, frozen=True):
    """The DONE tasks of a data set at one moment, as `DoneTasks`; sets as their gaps."""

    epoch: int
    done: list[int]
    tasks: int
    not_done: dict[int, list[int]]

    @classmethod
    def of(cls, epoch: int, done: IntervalSet, tasks: int, not_done: dict[int, IntervalSet]) -> StoredDone:
        """Return what `DynamicQueue.done_tasks` says, to be stored."""
        return cls(epoch, done.to_gaps(), tasks, {one: gaps.to_gaps() for one, gaps in not_done.items()})


class SlotCheckpointInFlight(msgspec.Struct):
    """A checkpoint being made. requests: ids that it fulfils. done: what was DONE before slots were saved.

    stage: "draining": no fresh task is leased until none is in flight, or until `drain_until`, or
    `returned_until` where all that are in flight were given back (0: some are not); "saving"; "manifest": all
    slots are saved. parts: by slot. lives_sum: of the map when the parts were asked for.
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
    """A complete checkpoint. tasks: DONE in it. surplus: by slot, tasks that it has beside them."""

    checkpoint: str
    saved_at: float
    tasks: int
    surplus: dict[int, tuple[TaskRun, ...]] = {}
    requests: tuple[str, ...] = ()


class FailedSlotCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was given up."""

    checkpoint: str
    error: str
    requests: tuple[str, ...] = ()


class SlotBook(msgspec.Struct):
    """Slots of a job; `map` is None until a model is registered or the first parameter server comes.

    processes: by id. known: of each id, the processes that were there, oldest first. leases: number of the
    last lease of a task that pushes. gate: what may be leased. returns: how often a task was given back.
    closings: FAILED tasks that not all slots have closed. left_parts: those that have, with the slots that
    keep what they pushed. snapshots: by slot, life and version of its newest one. sources: checkpoints that
    slots are taken back to, while they are restored. unrestored: by slot, the life in which it could not be.
    claims: by slot, life and `since` that a backup told after a restart of the master. lives_from: least
    number of a life that begins now; lives_apart: how far it is from every life before that start of the
    master; stored: generation of the map in the store at that start, -1 without one (returning.py).
    grace_until: time until which processes may return after that. copy_since, moved, copied: of the copies
    under way, for the event about them; copy_retries: by slot, when a broken copy is tried again. finishing,
    finished: data sets whose tasks are all over, and those of which workers may be told. saves: number of
    requests to save. checkpoint, checkpoints, failed_checkpoints: the newest last.
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
        """Tells what is named by this master from what an earlier one may have named, and the store has
        forgotten; "" for a job's first master."""
        return f"-{self.lives_apart:08x}" if self.lives_apart > 1 else ""

    def attending(self) -> Iterator[PsRecord]:
        """Parameter servers with a session."""
        return (record for record in self.processes.values() if record.attends)

    def staying(self) -> list[str]:
        """Ids of those that slots may come to."""
        return [record.ps for record in self.attending() if not record.draining]

    def owned(self, ps: str) -> list[int]:
        """Slots that a process owns."""
        places = self.map.places if self.map is not None else ()
        return [slot for slot, place in enumerate(places) if place.owner == ps]
