"""Runs and runners between messages and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.runs import effects, events
from elastane_master.decisions.runs.allocation import RunDecision
from elastane_master.decisions.runs.effects import RunnerMessage
from elastane_master.decisions.runs.events import AnyRunsEvent
from elastane_master.decisions.runs.runner import RunnerKind
from elastane_master.decisions.runs.spec import RunSpec
from elastane_master.decisions.runs.views import RunnerView, RunView, ServiceView
from elastane_master.servers.translate import SHOWN, duration, invalid_field, shown
from elastane_proto import message_codec
from elastane_proto.job_settings import JobSettings
from elastane_proto.message_codec import Codec, Field
from elastane_proto.v1 import job_pb2, training_pb2

LINE_CHARACTERS_MAX = 500
"""Limit of the last line of a rank's output."""


def _job_settings(message: job_pb2.JobSettings) -> JobSettings:
    """Return the settings of a run's job, with the defaults where the message says nothing."""
    try:
        return message_codec.read(JobSettings, message, zero_is_default=True)
    except message_codec.InvalidFieldError as error:
        raise error.within("job") from None


_LINE = Field(read=lambda line: shown(line, LINE_CHARACTERS_MAX))

_CODEC = Codec(
    {},
    {
        RunSpec: {"job": Field("job", read=_job_settings)},
        RunView: {"owner": None, "fence": None, "data_url": None},
        RunnerView: {"session": None},
        events.RankStatus: {"host": SHOWN, "last_line": _LINE, "reason": SHOWN},
        events.RunnerJoined: {"session": None, "owners": None, "host": SHOWN, "device_type": SHOWN},
        events.LaunchFailed: {"reason": SHOWN},
        events.RunnerLeft: {"reason": SHOWN},
    },
)


def spec_of(message: training_pb2.RunSpec) -> RunSpec:
    """The spec that a user submits. Raises Rejection."""
    try:
        return _CODEC.read(RunSpec, message, zero_is_default=True)
    except message_codec.InvalidFieldError as error:
        raise invalid_field(error.within("spec")) from None


def run_message(view: RunView, artifact_url: str) -> training_pb2.Run:
    """The run as it is shown, with its owner in the spec."""
    message = training_pb2.Run(artifact_url=artifact_url)
    _CODEC.fill(message, view)
    message.spec.owner = view.owner
    return message


def runner_message(view: RunnerView, liveness: Liveness) -> training_pb2.Runner:
    """The runner as it is shown."""
    message = training_pb2.Runner()
    _CODEC.fill(message, view)
    heard = liveness.last_heard(view.runner_id, view.session)
    if heard is not None:
        message_codec.set_timestamp(message.last_heard, heard)
    return message


def service_message(view: ServiceView, liveness: Liveness) -> training_pb2.TrainingServiceGetServiceResponse:
    """The service as a whole, without its settings."""
    return training_pb2.TrainingServiceGetServiceResponse(
        runners=[runner_message(runner, liveness) for runner in view.runners],
        runs_waiting=view.runs_waiting,
        slots_used=view.slots_used,
        slots=view.slots,
        queues=[
            training_pb2.QueueUse(
                name=one.share.name,
                weight=one.share.weight,
                guaranteed=one.share.guaranteed,
                slots_used=one.slots_used,
                runs_running=one.running,
                runs_waiting=one.waiting,
            )
            for one in view.queues
        ],
    )


def scheduling_message(
    policy: str, decisions: tuple[RunDecision, ...]
) -> training_pb2.TrainingServiceGetSchedulingResponse:
    """Return the policy's decision as a message. policy: of the service."""
    response = training_pb2.TrainingServiceGetSchedulingResponse(policy=policy)
    for decision in decisions:
        message = response.decisions.add(
            policy=decision.policy,
            choice=decision.choice,
            rejected=decision.rejected,
            run_id=decision.run_id,
            kind=training_pb2.SchedulingDecision.Kind.Value(f"KIND_{decision.kind.upper()}"),
            slots_before=decision.slots_before,
            slots_after=decision.slots_after,
            reason=decision.reason,
        )
        message_codec.set_timestamp(message.time, decision.time_at)
    return response


def state_word(number: int) -> str:
    """The state that a number of RunState means. Raises Rejection."""
    word = message_codec.enum_words(training_pb2.RunState.DESCRIPTOR).get(number)
    if word is None:
        raise Rejection(
            "invalid_argument", f"{number} is not a state of a run", hint="use RunState", field="states"
        )
    return word


# ------------------------------------------------------------------ runners


def runner_joined(
    message: training_pb2.RunnerHello, session: str, owners: tuple[str, ...]
) -> events.RunnerJoined:
    """A Hello as an event. owners: patterns of owners that the caller's token is for; empty: everybody.

    Raises Rejection.
    """
    if message.kind not in (kinds := get_args(RunnerKind)):
        raise Rejection(
            "invalid_argument",
            f"hello.kind: {message.kind[:40]!r} is not a kind of runner",
            hint=f"one of {', '.join(kinds)}",
            field="hello.kind",
        )
    try:
        joined = _CODEC.reader(events.RunnerJoined, message.DESCRIPTOR, ("runner_id", "session"))(
            message, message.runner_id, session
        )
    except message_codec.InvalidFieldError as error:
        raise invalid_field(error.within("hello")) from None
    return msgspec.structs.replace(joined, owners=owners)


_EVENTS: dict[str, type[Any]] = {
    "prepared": events.LaunchPrepared,
    "launch_failed": events.LaunchFailed,
    "rank_changed": events.RankChanged,
    "stopped": events.AttemptStopped,
    "leaving": events.RunnerLeft,
}


def runner_event(
    message: training_pb2.RunnerServiceAttendRequest, runner_id: str, session: str
) -> AnyRunsEvent:
    """A message of a runner as an event. Raises Rejection for one that is none."""
    kind = message.WhichOneof("message") or ""
    struct: Any = _EVENTS.get(kind)
    if struct is None:
        raise Rejection(
            "invalid_argument",
            f"a runner cannot send {kind or 'nothing'} here",
            hint="Hello comes first, once",
        )
    part = getattr(message, kind)
    try:
        event: AnyRunsEvent = _CODEC.reader(struct, part.DESCRIPTOR, ("runner_id", "session"))(
            part, runner_id, session
        )
    except message_codec.InvalidFieldError as error:
        raise invalid_field(error.within(kind)) from None
    return event


def _prepare(
    message: effects.Prepare, urls: Callable[[int], tuple[str, str]]
) -> training_pb2.RunnerServiceAttendResponse:
    artifact_url, checkpoint_url = urls(message.attempt.run_id)
    response = training_pb2.RunnerServiceAttendResponse()
    prepare = response.prepare
    _fill_key(prepare.attempt, message.attempt)
    _CODEC.fill(prepare.spec, message.spec)
    prepare.spec.instances = message.instances
    prepare.ranks.extend(message.ranks)
    prepare.job, prepare.data_url = message.job, message.data_url
    prepare.artifact_url, prepare.checkpoint_url = artifact_url, checkpoint_url
    return response


def runner_response(
    message: RunnerMessage | training_pb2.RunnerReadLog, urls: Callable[[int], tuple[str, str]]
) -> training_pb2.RunnerServiceAttendResponse:
    """Return an effect as the runner's message. urls: of a run's artifacts and checkpoints."""
    response = training_pb2.RunnerServiceAttendResponse()
    match message:
        case training_pb2.RunnerReadLog():
            response.read_log.CopyFrom(message)
        case effects.Prepare():
            return _prepare(message, urls)
        case effects.Start():
            _fill_key(response.start.attempt, message.attempt)
            for endpoint in message.endpoints:
                response.start.endpoints.add(rank=endpoint.rank, host=endpoint.host, port=endpoint.port)
        case effects.Stop():
            _fill_key(response.stop.attempt, message.attempt)
            response.stop.grace.CopyFrom(duration(message.grace_seconds))
            response.stop.reason = message.reason
            if message.rank is not None:
                response.stop.rank = message.rank
        case effects.Forget():
            _fill_key(response.forget.attempt, message.attempt)
        case _:
            raise AssertionError(f"no message for {type(message).__name__}")
    return response


def _fill_key(message: training_pb2.AttemptKey, key: events.AttemptKey) -> None:
    message.run_id, message.attempt, message.fence = key.run_id, key.attempt, key.fence
