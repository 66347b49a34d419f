"""Events of parameter servers, and of callers that register, save or rewind a model."""

from __future__ import annotations

from typing import Literal

import msgspec

from elastane_master.decisions.event import Event
from elastane_master.decisions.slot_model import SlotModel
from elastane_slots.tasks import TaskRun


class HeldSlot(msgspec.Struct, frozen=True):
    """A slot held by a process, as reported: see ps.proto."""

    slot: int
    life: int
    version: int = 0
    since: int = 0
    backup: bool = False
    frozen: bool = False


class PsJoined(Event, frozen=True, tag=True):
    """PsHello. process, process_started_seconds, process_clock: as in a worker's Hello.

    held, generation, lease_seen, lives: its knowledge, in case the store has lost writes (returning.py).
    """

    ps: str
    session: str
    host: str = ""
    pid: int = 0
    address: str = ""
    key: bytes = b""
    process: bytes = b""
    process_started_seconds: float = 0.0
    process_clock: str = ""
    capacity: Literal["spot", "on_demand"] = "spot"
    memory_bytes: int = 0
    held: tuple[HeldSlot, ...] = ()
    generation: int = 0
    lease_seen: int = 0
    lives: tuple[int, ...] = ()


class PsStreamLost(Event, frozen=True, tag=True):
    """A parameter server's stream ended without PsBye, or no heartbeat came for too long."""

    ps: str
    session: str
    reason: str


class SlotRestored(Event, frozen=True, tag=True):
    """A slot was read from its newest snapshot. applied: the names in it (AppliedSet.encode).

    since: generation of the map that gave the slot to this process in this life. snapshot_life: of the slot
    in the snapshot.
    """

    ps: str
    session: str
    slot: int
    life: int
    version: int
    applied: bytes = b""
    snapshot: str = ""
    rejected: tuple[str, ...] = ()
    since: int = 0
    snapshot_life: int = 0


class SlotCopied(Event, frozen=True, tag=True):
    """A copy of a slot is complete at the process `holder`."""

    ps: str
    session: str
    slot: int
    holder: str
    begun: int


class CopyBroken(Event, frozen=True, tag=True):
    """A copy of a slot to the process `holder` has failed."""

    ps: str
    session: str
    slot: int
    holder: str
    begun: int
    error: str = ""


class BackupLost(Event, frozen=True, tag=True):
    """The backup `holder` of a slot does not answer its owner."""

    ps: str
    session: str
    slot: int
    holder: str
    generation: int = 0
    error: str = ""


class SavedPart(msgspec.Struct, frozen=True):
    """Snapshot of one slot. applied: the names in it, of a checkpoint's alone. sha256: of its manifest."""

    slot: int
    life: int
    version: int
    folder: str = ""
    sha256: bytes = b""
    applied: bytes = b""
    size_bytes: int = 0


class SlotsSaved(Event, frozen=True, tag=True):
    """Snapshots were written. request: empty: periodic ones. error: a failure, which is retried."""

    ps: str
    session: str
    request: str = ""
    slots: tuple[SavedPart, ...] = ()
    error: str = ""


class ClosedPart(msgspec.Struct, frozen=True):
    """FAILED tasks are closed in a slot. applied: by task, whether it is applied there."""

    slot: int
    applied: tuple[bool, ...]
    life: int = 0


class TasksClosed(Event, frozen=True, tag=True):
    """Answer to CloseTasks for the slots of one process. tasks: the names, in runs."""

    ps: str
    session: str
    tasks: tuple[TaskRun, ...] = ()
    slots: tuple[ClosedPart, ...] = ()


class PsLeaving(Event, frozen=True, tag=True):
    """A parameter server asks to be drained."""

    ps: str
    session: str
    reason: str = ""
    notice_seconds: float = 0.0


class PsLeft(Event, frozen=True, tag=True):
    """PsBye."""

    ps: str
    session: str
    reason: str = ""


class ModelRegistered(Event, frozen=True, tag=True):
    """A worker registers the model. The result is whether it is the first."""

    worker: str
    model: SlotModel


class PsDrainRequested(Event, frozen=True, tag=True):
    """An operator asks that a parameter server be drained."""

    request_id: str
    ps: str
    reason: str = ""


class SlotsCheckpointRequested(Event, frozen=True, tag=True):
    """An operator requests a checkpoint of all slots. in_flight: do not wait for tasks in flight.

    The result is its name.
    """

    request_id: str
    in_flight: bool = False


class SlotsRewindRequested(Event, frozen=True, tag=True):
    """An operator takes all slots back to a checkpoint."""

    request_id: str
    checkpoint: str


class MapSeen(Event, frozen=True, tag=True):
    """A worker has a map of this generation, which the store may have lost."""

    generation: int


AnySlotEvent = (
    PsJoined
    | MapSeen
    | PsStreamLost
    | SlotRestored
    | SlotCopied
    | CopyBroken
    | BackupLost
    | SlotsSaved
    | TasksClosed
    | PsLeaving
    | PsLeft
    | ModelRegistered
    | PsDrainRequested
    | SlotsCheckpointRequested
    | SlotsRewindRequested
)
