"""Messages to parameter servers, and the effects that carry them."""

from __future__ import annotations

import msgspec

from elastane_master.decisions.effects import Effect, Message
from elastane_master.decisions.slot_model import SlotModel
from elastane_slots.slot_map import SlotMap
from elastane_slots.tasks import TaskRun


class PsAddress(Message, frozen=True, tag=True):
    """Where a process listens. key: of which its secret is made. draining: no slot moves to it any more."""

    ps: str
    address: str
    key: bytes
    draining: bool = False


class ToldMap(Message, frozen=True, tag=True):
    """The map as everybody is told. sources: folders of checkpoints that slots go back to, by slot."""

    map: SlotMap
    processes: tuple[PsAddress, ...]
    sources: dict[int, str] = msgspec.field(default_factory=dict)


class PsWelcome(Message, frozen=True, tag=True):
    """Answer to PsJoined. model: None: none is registered yet."""

    map: ToldMap
    model: SlotModel | None


class ModelKnown(Message, frozen=True, tag=True):
    """The job's model is registered now."""

    model: SlotModel


class SaveSlots(Message, frozen=True, tag=True):
    """Save all slots that you own; folder: empty: where the snapshots of the cadence are."""

    request: str
    folder: str = ""


class SaveManifest(Message, frozen=True, tag=True):
    """Write the manifest of a checkpoint."""

    request: str
    folder: str
    manifest: bytes


class CloseTasks(Message, frozen=True, tag=True):
    """Apply nothing of these tasks any more."""

    tasks: tuple[TaskRun, ...]


class PsDrain(Message, frozen=True, tag=True):
    """You are to go; your slots move first."""

    reason: str
    notice_seconds: float = 0.0


class PsDone(Message, frozen=True, tag=True):
    """The job is over, or halted."""

    reason: str


PsMessage = PsWelcome | ToldMap | ModelKnown | SaveSlots | SaveManifest | CloseTasks | PsDrain | PsDone


class SendPs(Effect, frozen=True, tag=True):
    """Send `message` down the stream of a parameter server; dropped if that is gone."""

    ps: str
    message: PsMessage


class ClosePs(Effect, frozen=True, tag=True):
    """End the stream of a parameter server with a typed error."""

    ps: str
    reason: str
    message: str
    hint: str = ""


class SendMap(Effect, frozen=True, tag=True):
    """Tell all parameter servers and all who watch that the map is another."""

    map: ToldMap
