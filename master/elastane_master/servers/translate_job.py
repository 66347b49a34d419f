"""Jobs, workers, events and contexts between messages and values."""

from __future__ import annotations

from msgspec.structs import replace

from elastane_master.decisions.amounts import NANOS
from elastane_master.decisions.cost import CostView, DeviceCostView
from elastane_master.decisions.effects import Note
from elastane_master.decisions.events import DevicePriceRequested, PricesRequested, Rejection
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.views import ContextView, JobView, WorkerView
from elastane_master.jobs.records import StoredNote
from elastane_master.servers.translate import (
    DEVICE_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    NAMES,
    invalid_field,
    shown,
)
from elastane_master.store.errors import Damage, HeldError, JobDamaged
from elastane_proto import contexts, history_wire, message_codec
from elastane_proto.job_settings import JobSettings
from elastane_proto.message_codec import Codec, Field
from elastane_proto.v1 import context_pb2, job_pb2, ring_pb2
from elastane_scheduler.autoscaling.autoscaler import Decision


def _put_settings(message: job_pb2.Job, view: JobView) -> None:
    message.settings.CopyFrom(settings_message(view.settings))


def _put_loader(message: context_pb2.ContextInfo, view: ContextView) -> None:
    if view.loader:
        contexts.fill_loader(message.loader, view.loader)


_TIMES = ("worker", "spot_worker", "on_demand_worker", "useful", "replayed", "idle", "unpriced")
_DEVICE_TIMES = ("worker", "spot_worker", "on_demand_worker", "unpriced")


def _seconds(times: tuple[str, ...]) -> dict[str, Field]:
    """Return the fields for times that are in nanoseconds here, and in seconds in the message."""
    return {f"{time}_nanos": Field(f"{time}_seconds", write=lambda nanos: nanos / NANOS) for time in times}


_VIEWS = Codec(
    NAMES,
    {
        JobView: {"settings": Field(put=_put_settings), "original_settings": None},
        WorkerView: {"session": None, "place": "state", "start": "ests.start", "end": "ests.end"},
        CostView: _seconds(_TIMES),
        DeviceCostView: _seconds(_DEVICE_TIMES),
        ContextView: {"loader": Field(put=_put_loader)},
        Decision: {
            "state": None,
            "target": "workers_target",
            "barred_seconds": None,
            "look_steps": None,
            "met": None,
            "seconds_before": "seconds_before",
            "seconds_after": "seconds_after",
        },
        Note: {"event": Field(put=lambda message, note: history_wire.fill(message, note.event))},
    },
)


def job_settings(message: job_pb2.JobSettings) -> JobSettings:
    """The settings, with the defaults where the message says nothing. Raises Rejection."""
    try:
        settings = message_codec.read(JobSettings, message, zero_is_default=True)
    except message_codec.InvalidFieldError as error:
        raise invalid_field(error) from None
    return replace(settings, currency=shown(settings.currency, NAME_CHARACTERS_MAX))


def prices_requested(request: job_pb2.JobServiceSetPricesRequest, request_id: str) -> PricesRequested:
    """The new prices. Raises Rejection for a time that cannot be."""
    return PricesRequested(
        request_id,
        request.spot_price_micros if request.HasField("spot_price_micros") else None,
        request.on_demand_price_micros if request.HasField("on_demand_price_micros") else None,
        shown(request.currency, NAME_CHARACTERS_MAX),
        tuple(
            DevicePriceRequested(
                shown(price.device_type, DEVICE_CHARACTERS_MAX),
                price.spot_price_micros if price.HasField("spot_price_micros") else None,
                price.on_demand_price_micros if price.HasField("on_demand_price_micros") else None,
                _expires_at(price),
            )
            for price in request.devices
        ),
        _expires_at(request),
    )


def _expires_at(message: job_pb2.JobServiceSetPricesRequest | job_pb2.DevicePrice) -> float | None:
    if not message.HasField("expires"):
        return None
    seconds = message.expires.seconds + message.expires.nanos / NANOS
    if not 0 <= seconds <= message_codec.TIMESTAMP_SECONDS_MAX:
        raise Rejection("invalid_argument", f"expires is {seconds:g} s", hint="from 1970 to 9999")
    return seconds


def settings_message(settings: JobSettings) -> job_pb2.JobSettings:
    """Inverse of `job_settings`, with every default written out."""
    message = job_pb2.JobSettings()
    message_codec.fill(message, replace(settings, workers_max=settings.workers_max or settings.ests))
    return message


def job_message(view: JobView, liveness: Liveness) -> job_pb2.Job:
    """The job as it is shown."""
    message = job_pb2.Job()
    _VIEWS.fill(message, view)
    for info, worker in zip(message.workers, view.workers, strict=True):
        heard = liveness.last_heard(worker.worker, worker.session)
        if heard is not None:
            message_codec.set_timestamp(info.last_heard, heard)
    return message


def decision_message(decision: Decision) -> job_pb2.ScalingDecision:
    """Return the message of a decision that the autoscaler would make."""
    message = job_pb2.ScalingDecision()
    _VIEWS.fill(message, decision)
    return message


def held_message(error: HeldError) -> job_pb2.Job:
    """A job that is held."""
    if not isinstance(error, JobDamaged):
        return job_pb2.Job(name=error.job, phase=job_pb2.JOB_PHASE_TOO_NEW, saved_step=-1, reason=str(error))
    return job_pb2.Job(
        name=error.job,
        phase=job_pb2.JOB_PHASE_DAMAGED,
        saved_step=-1,
        reason="; ".join(str(damage) for damage in error.damages),
        damages=[damage_message(damage) for damage in error.damages],
    )


def damage_message(damage: Damage) -> job_pb2.Damage:
    """Return the message for damage to stored data."""
    return job_pb2.Damage(key=damage.key, sequence=damage.sequence, lost=damage.lost)


def event_message(stored: StoredNote) -> ring_pb2.Event:
    """A decision and its reason."""
    event = ring_pb2.Event(sequence=stored.sequence)
    message_codec.set_timestamp(event.time, stored.now)
    _VIEWS.fill(event, stored.note)
    return event


def context_info(view: ContextView) -> context_pb2.ContextInfo:
    """A stored context without its bytes."""
    info = context_pb2.ContextInfo()
    _VIEWS.fill(info, view)
    return info
