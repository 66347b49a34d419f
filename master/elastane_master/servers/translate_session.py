"""A worker's stream: its messages become events, and what decisions send to it becomes the master's messages.

Both by field name; the tables have what names do not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from operator import attrgetter, eq
from typing import Any

from google.protobuf.message import Message

from elastane_master.decisions import effects, events
from elastane_master.decisions.effects import WorkerMessage
from elastane_master.decisions.events import Rejection
from elastane_master.jobs.limits import clip
from elastane_master.servers.translate import (
    DEVICE_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    NAMES,
    RANGE,
    SHOWN,
    checked_name,
    duration,
    invalid_field,
    shown,
)
from elastane_proto import contexts, versions
from elastane_proto.job_settings import JobSettings
from elastane_proto.message_codec import Codec, Field, InvalidFieldError, enum_words
from elastane_proto.rendezvous import KEY_BYTES, follow_group, group_of, group_secret
from elastane_proto.v1 import common_pb2, ring_pb2
from elastane_scheduler.autoscaling.stragglers import Report, Usual

_DIGEST_BYTES_MAX = 64
_LINKS_MAX = 64
"""Maximum number of links read from a worker's report; workers send half as many."""
_HEARTBEATS_PER_TIMEOUT = 3
_HEARTBEAT_SECONDS = 1.0
_HEARTBEATS_PER_SECOND_MAX = 1000
"""Limit for a job: otherwise, with thousands of workers, heartbeats would be half of the master's work."""

# ------------------------------------------------------------------ worker -> master


class _Fault(Exception):  # noqa: N818 - becomes a Rejection that names the worker
    """Description of a fault in a worker's message, worded to follow the worker's name."""

    def __init__(self, problem: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(problem)
        self.hint = hint
        self.facts = facts


def _role(number: int) -> str:
    role = enum_words(ring_pb2.WorkerRole.DESCRIPTOR).get(number)
    if role is None:
        hint = "set role to RING or TASKS"
        raise Rejection("invalid_argument", "Hello without a role", hint=hint, field="role")
    return role


def _capacity(number: int) -> str:
    known = enum_words(common_pb2.CapacityType.DESCRIPTOR)
    capacity = known.get(number or common_pb2.CAPACITY_TYPE_SPOT)
    if capacity is None:
        raise Rejection(
            "invalid_argument",
            f"this master does not know capacity {number}",
            hint="use SPOT or ON_DEMAND, or a newer master",
            field="capacity",
        )
    return capacity


def _bye_reason(number: int) -> str:
    reason = enum_words(ring_pb2.ByeReason.DESCRIPTOR).get(number)
    if reason is None:
        raise _Fault("said Bye without a reason", field="reason")
    return reason


def _digest(digest: bytes) -> str:
    if not 0 < len(digest) <= _DIGEST_BYTES_MAX:
        raise _Fault(
            f"sent a digest of {len(digest)} bytes",
            hint=f"a digest has 1 to {_DIGEST_BYTES_MAX} bytes",
            field="digest",
        )
    return digest.hex()


def _changes(messages: Iterable[ring_pb2.PartChange]) -> dict[str, events.Change]:
    changes: dict[str, events.Change] = {}
    for message in messages:
        kind = message.WhichOneof("change")
        if kind is None or message.draws < 0:
            raise _Fault(f"reports an invalid change of {shown(message.name)}")
        changes[message.name] = message.draws if kind == "draws" else message.state
    return changes


def _link_workers(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(clip(name, NAME_CHARACTERS_MAX) for name in islice(names, _LINKS_MAX))


def _link_values(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(islice(values, _LINKS_MAX))


_DEVICE_TYPE = Field("figures.device_type", read=partial(shown, characters_max=DEVICE_CHARACTERS_MAX))

_EVENTS = Codec(
    NAMES,
    {
        events.WorkerJoined: {
            "role": Field(read=_role),
            "capacity": Field(read=_capacity),
            "host": Field(read=partial(shown, characters_max=NAME_CHARACTERS_MAX)),
            "store_address": Field(read=lambda address: clip(address, NAME_CHARACTERS_MAX)),
            "rendezvous_key": Field(read=lambda key: key[:KEY_BYTES]),
            "process": Field(read=lambda process: process[: versions.PROCESS_BYTES]),
            "process_clock": Field(read=lambda clock: clip(clock, NAME_CHARACTERS_MAX)),
        },
        events.ContextDelta: {
            "parts": Field(get=contexts.parts_from_proto),
            "positions": Field(get=contexts.positions_from_proto),
        },
        events.StepTask: RANGE,
        events.AppliedReported: {
            "between_steps": Field("phase", read=partial(eq, ring_pb2.TRAINER_PHASE_BETWEEN)),
            "device_type": _DEVICE_TYPE,
            "est_seconds": Field("figures.est_seconds"),
            "after_est_seconds": Field("figures.after_est_seconds"),
            "est_steps": Field("figures.est_steps"),
            "ring_generation": Field("figures.generation"),
            "ring_step_seconds": Field("figures.ring_step_seconds"),
            "ring_steps": Field("figures.ring_steps"),
            "ests_max": Field("figures.ests_max"),
            "straggler": None,
            "rate_ratio": None,
            "first_unit": Field("figures.first_unit"),
            "unit_forward_seconds": Field("figures.unit_forward_seconds"),
            "unit_backward_seconds": Field("figures.unit_backward_seconds"),
            "memory_bytes": Field("figures.memory_bytes"),
            "link_workers": Field("figures.link_workers", read=_link_workers),
            "link_bytes_per_second": Field("figures.link_bytes_per_second", read=_link_values),
            "forward_overhead_seconds": Field("figures.forward_overhead_seconds"),
            "backward_overhead_seconds": Field("figures.backward_overhead_seconds"),
        },
        events.PipelineUnit: {"name": SHOWN},
        events.LoadedReported: {
            "checkpoint": SHOWN,
            "rejected": Field(read=lambda reasons: tuple(shown(reason) for reason in reasons)),
        },
        events.IntervalReported: {"changes": Field(read=_changes), "uncertain": SHOWN, "fault": SHOWN},
        events.CheckReported: {"digest": Field(read=_digest)},
        events.FollowReported: {"error": SHOWN},
        events.RingBrokenReported: {"error": SHOWN},
        events.SavedReported: {"error": SHOWN},
        events.LeavingReported: {"reason": SHOWN},
        events.ByeReported: {
            "reason": Field(read=_bye_reason),
            "message": SHOWN,
            "device_type": _DEVICE_TYPE,
        },
        events.EndEarlyReported: {"place": SHOWN},
        events.StateDetail: {"name": SHOWN, "value": SHOWN},
    },
)


def _readers(
    oneof: type[Message], **structs: type[events.Event]
) -> dict[str, Callable[..., events.AnyEvent]]:
    """Return the readers of the messages of a oneof, by field."""
    return {
        name: _EVENTS.reader(
            struct, oneof.DESCRIPTOR.fields_by_name[name].message_type, ("worker", "session")
        )
        for name, struct in structs.items()
    }


_REPORTS = _readers(
    ring_pb2.AttendRequest,
    heartbeat=events.AppliedReported,
    ready=events.ReadyReported,
    loaded=events.LoadedReported,
    step_report=events.StepReported,
    interval_report=events.IntervalReported,
    check_report=events.CheckReported,
    follow_report=events.FollowReported,
    ring_broken=events.RingBrokenReported,
    saved=events.SavedReported,
    leaving=events.LeavingReported,
    bye=events.ByeReported,
)
_hello = _EVENTS.reader(events.WorkerJoined, ring_pb2.Hello.DESCRIPTOR, ("worker", "session"))
_COMPARISONS = _readers(ring_pb2.Comparison, end_early=events.EndEarlyReported, details=events.StateDetailed)


def hello(message: ring_pb2.Hello, session: str) -> events.WorkerJoined:
    """Return the event of a Hello. Raises Rejection."""
    event = _hello(message, message.worker_id, session)
    checked_name(event.worker, "worker_id")
    return event


def attend_event(request: ring_pb2.AttendRequest, worker: str, session: str) -> events.AnyEvent:
    """Return the event of any later message. Raises Rejection."""
    kind = request.WhichOneof("message") or ""
    read = _REPORTS.get(kind)
    try:
        if read is not None:
            return read(getattr(request, kind), worker, session)
        if kind == "comparison":
            return _compared(request.comparison, worker, session)
        what = "a second Hello" if kind == "hello" else "a message this master does not know"
        hint = "send Hello once, first; use the client of the master's version"
        raise _Fault(f"sent {what}", hint=hint, kind=kind or "none")
    except _Fault as fault:
        raise Rejection("invalid_argument", f"{worker} {fault}", hint=fault.hint, **fault.facts) from None
    except InvalidFieldError as error:
        raise invalid_field(error) from None


def rate_report(figures: ring_pb2.WorkerFigures) -> Report:
    """Return what a worker says of its rate; one that says nothing has no ESTs."""
    usual = Usual(
        figures.generation,
        figures.usual_steps,
        figures.usual_ests_seconds,
        figures.usual_data_wait_seconds,
        figures.usual_all_reduce_wait_seconds,
        figures.usual_between_seconds,
        figures.usual_after_seconds,
    )
    device_type = shown(figures.device_type, characters_max=DEVICE_CHARACTERS_MAX)
    return Report(device_type, figures.ests, figures.est_rates, figures.est_rate_steps, usual)


def _compared(message: ring_pb2.Comparison, worker: str, session: str) -> events.AnyEvent:
    kind = message.WhichOneof("message")
    if kind is None:
        raise _Fault("sent a comparison without a message", field="comparison")
    return _COMPARISONS[kind](getattr(message, kind), worker, session)


# ------------------------------------------------------------------ master -> worker


def _put_contexts(message: Any, step: int, held: Iterable[tuple[int, events.Parts]]) -> None:
    for rank, parts in held:
        contexts.fill_context(message.contexts.add(), rank, step, parts)


def _put_changes(message: ring_pb2.IntervalDecided, decided: effects.IntervalDecided) -> None:
    for name, change in decided.changes.items():
        if isinstance(change, int):
            message.changes.add(name=name, draws=change)
        else:
            message.changes.add(name=name, state=change)


def _put_guest_context(message: ring_pb2.Check, order: effects.CheckOrder) -> None:
    if order.parts is not None:
        contexts.fill_context(message.context, order.rank, order.step, order.parts)


def _put_manifest(message: ring_pb2.Checkpoint, order: effects.Checkpoint) -> None:
    for entry in order.manifest:
        saved = message.manifest.add(checkpoint=order.checkpoint, step=order.step)
        _MESSAGES.fill(saved, entry)


def _put_secret(message: ring_pb2.Go | ring_pb2.Prepare, told: effects.Go | effects.Prepare) -> None:
    message.rendezvous_secret = group_secret(told.rendezvous_key, group_of(told.generation))


def _put_follow_secret(message: ring_pb2.Follow, told: effects.Follow) -> None:
    group = follow_group(told.generation, told.step)
    message.rendezvous_secret = group_secret(told.rendezvous_key, group)


_MESSAGES = Codec(
    NAMES,
    {
        effects.Member: {"start": "ests.start", "end": "ests.end"},
        effects.Prepare: {"rendezvous_key": Field(put=_put_secret)},
        effects.Follow: {"rendezvous_key": Field(put=_put_follow_secret)},
        effects.Go: {
            "contexts": Field(put=lambda message, go: _put_contexts(message, go.resume_step, go.contexts)),
            "rendezvous_key": Field(put=_put_secret),
        },
        effects.IntervalDecided: {
            "changes": Field(put=_put_changes),
            "contexts": Field(
                put=lambda message, decided: _put_contexts(message, decided.step, decided.contexts)
            ),
        },
        effects.CheckOrder: {"parts": Field(put=_put_guest_context)},
        effects.Checkpoint: {"manifest": Field(put=_put_manifest)},
    },
)
_FIELDS: dict[type[effects.Message], str] = {
    effects.Welcome: "welcome",
    effects.Prepare: "prepare",
    effects.Load: "load",
    effects.Go: "go",
    effects.Prepared: "prepared",
    effects.Follow: "follow",
    effects.IntervalDecided: "interval_decided",
    effects.Checkpoint: "checkpoint",
    effects.Drain: "drain",
    effects.Explain: "compare.explain",
    effects.AllEnd: "compare.all_end",
    effects.Done: "done",
    effects.CaptureOrder: "capture",
}
"""Field of AttendResponse that holds each message."""


def attend_response(message: WorkerMessage, settings: JobSettings) -> ring_pb2.AttendResponse:
    """Return the wire form of what a decision sends to a worker."""
    response = ring_pb2.AttendResponse()
    field = attrgetter(_FIELDS[type(message)])(response)
    field.SetInParent()  # also if every field of it is zero
    _MESSAGES.fill(field, message)
    if isinstance(message, effects.Welcome):
        _fill_settings(field, settings)
    return response


def fill_members(field: Any, members: Iterable[effects.Member]) -> None:
    """Add the ring's members to a repeated field, in its order."""
    write = _MESSAGES.writer(effects.Member, ring_pb2.Member.DESCRIPTOR)
    for member in members:
        write(field.add(), member)


def _fill_settings(welcome: ring_pb2.Welcome, settings: JobSettings) -> None:
    for name in ("ests", "seed", "checkpoint_url", "checkpoint_keep", "audit_samples"):
        if (value := getattr(settings, name)) is not None:
            setattr(welcome, name, value)
    wanted = max(_HEARTBEAT_SECONDS, settings.ests / _HEARTBEATS_PER_SECOND_MAX)
    interval = min(wanted, settings.heartbeat_timeout_seconds / _HEARTBEATS_PER_TIMEOUT)
    welcome.heartbeat_interval.CopyFrom(duration(interval))
    welcome.version = str(versions.PROTOCOL)
    welcome.generator_positions = welcome.planned_changes_wait = True
