"""Parameter servers between messages and values: their streams, the model, the map, what is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from elastane_master.decisions import slot_effects as effects
from elastane_master.decisions import slot_events as events
from elastane_master.decisions.event import Event
from elastane_master.decisions.events import AnyEvent, Rejection
from elastane_master.decisions.slot_model import SlotModel
from elastane_master.decisions.slots.view import PsView, SlotsView
from elastane_master.jobs.limits import clip
from elastane_master.servers.translate import (
    NAME_CHARACTERS_MAX,
    SHOWN,
    checked_name,
    invalid_field,
    shown,
    timestamp,
)
from elastane_proto import versions
from elastane_proto.job_settings import JobSettings
from elastane_proto.message_codec import Codec, Field, InvalidFieldError, enum_words
from elastane_proto.rendezvous import KEY_BYTES, group_secret
from elastane_proto.v1 import common_pb2, ps_pb2
from elastane_slots.slot_map import LIFE_MAX, SlotMap, SlotPlace
from elastane_slots.tasks import TaskRun

_HEARTBEATS_PER_TIMEOUT = 3
_HEARTBEAT_SECONDS = 1.0
_NUMBER_MAX = 2**62
"""Limit of generations and leases, so that later ones fit into 63 bits."""
_NAMES = {"ps": "ps_id", "holder": "ps_id", "size_bytes": "bytes"}
_PLACE_FIELDS = ("owner", "backup", "target", "joining", "begun", "life", "fence", "since", "restoring")


def _capacity(number: int) -> str:
    known = enum_words(common_pb2.CapacityType.DESCRIPTOR)
    capacity = known.get(number or common_pb2.CAPACITY_TYPE_SPOT)
    if capacity is None:
        raise Rejection("invalid_argument", f"this master does not know capacity {number}", field="capacity")
    return capacity


def _shown_all(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(shown(text) for text in texts)


def _runs(messages: Iterable[ps_pb2.TaskRunName]) -> tuple[TaskRun, ...]:
    return tuple(TaskRun(one.dataset, one.epoch, one.start, one.end) for one in messages)


_CLIPPED = Field(read=partial(clip, characters=NAME_CHARACTERS_MAX))
_MESSAGES = Codec(
    _NAMES,
    {
        events.PsJoined: {
            "host": Field(read=partial(shown, characters_max=NAME_CHARACTERS_MAX)),
            "address": _CLIPPED,
            "key": Field(read=lambda key: key[:KEY_BYTES]),
            "process": Field(read=lambda process: process[: versions.PROCESS_BYTES]),
            "process_clock": _CLIPPED,
            "capacity": Field(read=_capacity),
        },
        events.SlotRestored: {"snapshot": SHOWN, "rejected": Field(read=_shown_all)},
        events.CopyBroken: {"error": SHOWN},
        events.BackupLost: {"error": SHOWN},
        events.SlotsSaved: {"error": SHOWN},
        events.SavedPart: {"folder": SHOWN},
        events.TasksClosed: {"tasks": Field(read=_runs)},
        events.PsLeaving: {"reason": SHOWN},
        events.PsLeft: {"reason": SHOWN},
    },
)

# ------------------------------------------------------------------ parameter server -> master

_hello = _MESSAGES.reader(events.PsJoined, ps_pb2.PsHello.DESCRIPTOR, ("ps", "session"))
_MESSAGES_OF: dict[str, type[Event]] = {
    "restored": events.SlotRestored,
    "copied": events.SlotCopied,
    "copy_broken": events.CopyBroken,
    "backup_lost": events.BackupLost,
    "saved": events.SlotsSaved,
    "closed": events.TasksClosed,
    "leaving": events.PsLeaving,
    "bye": events.PsLeft,
}
_READERS: dict[str, Callable[..., Any]] = {
    name: _MESSAGES.reader(
        struct, ps_pb2.AttendSlotsRequest.DESCRIPTOR.fields_by_name[name].message_type, ("ps", "session")
    )
    for name, struct in _MESSAGES_OF.items()
}


def hello(message: ps_pb2.PsHello, session: str) -> events.PsJoined:
    """Return the event of a Hello. Raises Rejection."""
    try:
        event: events.PsJoined = _hello(message, message.ps_id, session)
    except InvalidFieldError as error:
        raise invalid_field(error) from None
    checked_name(event.ps, "ps_id")
    _require_begun(event.ps, "life", [*event.lives, *(held.life for held in event.held)], LIFE_MAX)
    told = [event.generation, event.lease_seen, *(held.since for held in event.held)]
    _require_begun(event.ps, "generation or lease", told, _NUMBER_MAX)
    return event


def attend_event(request: ps_pb2.AttendSlotsRequest, ps: str, session: str) -> AnyEvent | None:
    """Return the event of any later message; None for one that nothing is decided about. Raises Rejection."""
    kind = request.WhichOneof("message") or ""
    if kind == "heartbeat":
        return None
    read = _READERS.get(kind)
    if read is None:
        what = "a second Hello" if kind == "hello" else "a message this master does not know"
        raise Rejection(
            "invalid_argument",
            f"{ps} sent {what}",
            hint="send PsHello once, first; use the release of the master",
            kind=kind or "none",
        )
    try:
        event: AnyEvent = read(getattr(request, kind), ps, session)
    except InvalidFieldError as error:
        raise invalid_field(error) from None
    if isinstance(event, events.SlotRestored):
        _require_begun(ps, "life", [event.life, event.snapshot_life], LIFE_MAX)
    return event


def _require_begun(ps: str, what: str, numbers: Iterable[int], most: int) -> None:
    """Raise Rejection for a number that no master has reached: it would go on from there."""
    highest = max(numbers, default=0)
    if highest > most:
        raise Rejection(
            "invalid_argument",
            f"{ps} tells of {what} {highest}; there are at most {most}",
            hint="its snapshots are damaged, or of something else: look at the folder of the checkpoints",
            ps=ps,
        )


def model_of(message: ps_pb2.SlotModel) -> SlotModel:
    """Return the model that a worker registers. Raises Rejection."""
    try:
        return _MESSAGES.read(SlotModel, message)
    except InvalidFieldError as error:
        raise invalid_field(error) from None


# ------------------------------------------------------------------ master -> parameter server, worker


def map_message(told: effects.ToldMap, job: str, *, secrets: bool = True) -> ps_pb2.SlotMap:
    """Return the map as it is sent. secrets: with those of the data ports, which only their users get."""
    message = ps_pb2.SlotMap()
    fill_map(message, told.map, told.sources)
    for one in told.processes:
        address = message.processes.add(ps_id=one.ps, address=one.address, draining=one.draining)
        if secrets:
            address.secret = group_secret(one.key, job)
    return message


def fill_map(message: ps_pb2.SlotMap, slot_map: SlotMap, sources: dict[int, str]) -> None:
    """Set generation and places."""
    message.generation = slot_map.generation
    for slot, place in enumerate(slot_map.places):
        _fill_place(message.places.add(source=sources.get(slot, "")), place)


def _fill_place(message: ps_pb2.SlotPlace, place: SlotPlace) -> None:
    for name in _PLACE_FIELDS:
        setattr(message, name, getattr(place, name))


def model_message(model: SlotModel) -> ps_pb2.SlotModel:
    """Return the model as it is sent."""
    message = ps_pb2.SlotModel()
    _MESSAGES.fill(message, model)
    return message


def settings_message(settings: JobSettings) -> ps_pb2.PsSettings:
    """Return the settings that parameter servers and workers need."""
    message = ps_pb2.PsSettings(
        replicas=settings.ps_replicas,
        snapshot_url=settings.checkpoint_url,
        snapshot_seconds=settings.ps_snapshot_seconds,
        nonfinite=f"PS_NONFINITE_{settings.ps_nonfinite.upper()}",
        wire=f"PS_WIRE_{settings.ps_wire.upper()}",
        scale_by_staleness=settings.ps_scale_by_staleness,
        journal=settings.ps_journal,
    )
    if settings.ps_staleness is not None:
        message.staleness = settings.ps_staleness
    return message


def attend_response(
    message: effects.PsMessage, job: str, settings: JobSettings
) -> ps_pb2.AttendSlotsResponse:
    """Return the wire form of what a decision sends to a parameter server."""
    response = ps_pb2.AttendSlotsResponse()
    match message:
        case effects.PsWelcome(told, model):
            response.welcome.map.CopyFrom(map_message(told, job))
            if model is not None:
                response.welcome.model.CopyFrom(model_message(model))
            response.welcome.settings.CopyFrom(settings_message(settings))
            interval = settings.heartbeat_timeout_seconds / _HEARTBEATS_PER_TIMEOUT
            response.welcome.heartbeat_seconds = min(_HEARTBEAT_SECONDS, interval)
        case effects.ToldMap():
            response.map.CopyFrom(map_message(message, job))
        case effects.ModelKnown(model):
            response.model.CopyFrom(model_message(model))
        case effects.SaveSlots(request, folder):
            response.save.request, response.save.folder = request, folder
        case effects.SaveManifest(request, folder, manifest):
            order = response.save_manifest
            order.request, order.folder, order.manifest = request, folder, manifest
        case effects.CloseTasks(tasks):
            response.close.SetInParent()
            fill_runs(response.close.tasks, tasks)
        case effects.PsDrain(reason, notice_seconds):
            response.drain.reason = reason
            response.drain.SetInParent()
            if notice_seconds:
                response.drain.notice.FromNanoseconds(round(notice_seconds * 1e9))
        case effects.PsDone(reason):
            response.done.reason = reason
            response.done.SetInParent()
    return response


def fill_runs(messages: Any, runs: Iterable[TaskRun]) -> None:
    """Add runs of tasks to a repeated field."""
    for run in runs:
        messages.add(dataset=run.dataset, epoch=run.epoch, start=run.start, end=run.end)


# ------------------------------------------------------------------ what is shown


def slots_message(
    view: SlotsView, settings: JobSettings, figures: dict[str, bytes], told: effects.ToldMap | None
) -> ps_pb2.GetSlotsResponse:
    """Return what is shown of the slots of a job."""
    response = ps_pb2.GetSlotsResponse(
        settings=settings_message(settings),
        reopened=view.reopened,
        checkpoint=view.checkpoint,
        datasets=view.datasets,
    )
    if told is not None:
        response.map.CopyFrom(map_message(told, "", secrets=False))
    if view.model is not None:
        response.model.CopyFrom(model_message(view.model))
    for ps in view.processes:
        _fill_process(response.processes.add(), ps, figures.get(ps.ps))
    gate = response.gate
    gate.outstanding, gate.returned, gate.closing = view.outstanding, view.returned, view.closing
    gate.worst, gate.waiting, gate.leases = view.worst, view.waiting, view.leases
    if view.limit is not None:
        gate.limit = view.limit
    for name, slots in view.left_parts:
        response.left.add(dataset=name.dataset, epoch=name.epoch, task=name.task, slots=slots)
    for slot, (life, version) in view.snapshots:
        response.snapshots.add(slot=slot, life=life, version=version)
    return response


def _fill_process(message: ps_pb2.PsState, ps: PsView, figures: bytes | None) -> None:
    message.ps_id, message.host, message.pid, message.address = ps.ps, ps.host, ps.pid, ps.address
    message.state, message.slots, message.backups = ps.state, ps.slots, ps.backups
    message.memory_bytes = ps.memory_bytes
    message.joined.CopyFrom(timestamp(ps.joined_at))
    on_demand = ps.capacity == "on_demand"
    message.capacity = common_pb2.CAPACITY_TYPE_ON_DEMAND if on_demand else common_pb2.CAPACITY_TYPE_SPOT
    if figures is not None:
        message.figures.ParseFromString(figures)
