"""Messages to parameter servers, and the effects that carry them."""

from __future__ import annotations

import msgspec

from elastane_master.decisions.effects import Effect, Message
from elastane_master.decisions.slot_model import SlotModel
from elastane_slots.slot_map import SlotMap
from elastane_slots.tasks import TaskRun


class PsAddress(Message, frozen=True, tag=True):
    """Address of a process. key: source of its secret. draining: no slot moves to it any more."""

    ps: str
    address: str
    key: bytes
    draining: bool = False


class ToldMap(Message, frozen=True, tag=True):
    """The slot map as it is sent. sources: folders of checkpoints that slots go back to, by slot."""

    map: SlotMap
    processes: tuple[PsAddress, ...]
    sources: dict[int, str] = msgspec.field(default_factory=dict)


class PsWelcome(Message, frozen=True, tag=True):
    """Answer to PsJoined. model: None if none is registered yet."""

    map: ToldMap
    model: SlotModel | None


class ModelKnown(Message, frozen=True, tag=True):
    """The job's model has been registered."""

    model: SlotModel


class SaveSlots(Message, frozen=True, tag=True):
    """Asks to save all owned slots. folder: empty: that of the periodic snapshots."""

    request: str
    folder: str = ""


class SaveManifest(Message, frozen=True, tag=True):
    """Asks to write the manifest of a checkpoint."""

    request: str
    folder: str
    manifest: bytes


class CloseTasks(Message, frozen=True, tag=True):
    """Orders a parameter server to refuse further pushes of these tasks."""

    tasks: tuple[TaskRun, ...]


class PsDrain(Message, frozen=True, tag=True):
    """Announces a drain; the process's slots move first."""

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
    """Send the new map to all parameter servers and watchers."""

    map: ToldMap
