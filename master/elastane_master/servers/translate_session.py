"""A worker's stream: its messages become events, the decisions' messages become the master's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from elastane_master.decisions import effects, events
from elastane_master.decisions.events import Capacity, Rejection
from elastane_master.jobs.limits import clip
from elastane_master.jobs.sessions import WorkerMessage
from elastane_master.servers.translate import (
    NAME_CHARACTERS_MAX,
    as_range,
    checked_name,
    duration,
    seconds,
    shown,
)
from elastane_proto import contexts, versions
from elastane_proto.job_settings import JobSettings
from elastane_proto.rendezvous import KEY_BYTES, group_of, group_secret
from elastane_proto.v1 import common_pb2, ring_pb2

_ROLES: dict[int, Literal["ring", "tasks"]] = {
    ring_pb2.WORKER_ROLE_RING: "ring",
    ring_pb2.WORKER_ROLE_TASKS: "tasks",
}
CAPACITIES: dict[Capacity, common_pb2.CapacityType] = {
    "spot": common_pb2.CAPACITY_TYPE_SPOT,
    "on_demand": common_pb2.CAPACITY_TYPE_ON_DEMAND,
}
_BYES: dict[int, Literal["finished", "drained", "failed"]] = {
    ring_pb2.BYE_REASON_FINISHED: "finished",
    ring_pb2.BYE_REASON_DRAINED: "drained",
    ring_pb2.BYE_REASON_FAILED: "failed",
}
_DIGEST_BYTES_MAX = 64
_HEARTBEATS_PER_TIMEOUT = 3
_HEARTBEAT_SECONDS = 1.0
_HEARTBEATS_PER_SECOND_MAX = 1000
"""Of a job: with thousands of workers half of what the master does would be hearing that they live."""

# ------------------------------------------------------------------ worker -> master


def hello(message: ring_pb2.Hello, session: str) -> events.WorkerJoined:
    """The event of a Hello; raises Rejection."""
    role = _ROLES.get(message.role)
    if role is None:
        raise Rejection(
            "invalid_argument", "Hello without a role", hint="set role to RING or TASKS", field="role"
        )
    return events.WorkerJoined(
        worker=checked_name(message.worker_id, "worker_id"),
        session=session,
        role=role,
        signature=_signature(message.signature),
        host=shown(message.host, NAME_CHARACTERS_MAX),
        pid=message.pid,
        store_address=clip(message.store_address, NAME_CHARACTERS_MAX),
        generation=message.generation,
        applied_step=message.applied_step,
        holds_state=message.holds_state,
        capacity=_capacity(message.capacity),
        history_generation=message.history_generation,
        rendezvous_key=message.rendezvous_key[:KEY_BYTES],
        process=message.process[: versions.PROCESS_BYTES],
    )


def _capacity(value: common_pb2.CapacityType) -> Capacity:
    if value == common_pb2.CAPACITY_TYPE_UNSPECIFIED:
        return "spot"
    for capacity, known in CAPACITIES.items():
        if known == value:
            return capacity
    raise Rejection(
        "invalid_argument",
        f"this master does not know capacity {int(value)}",
        hint="use SPOT or ON_DEMAND, or a newer master",
        field="capacity",
    )


def attend_event(request: ring_pb2.AttendRequest, worker: str, session: str) -> events.AnyEvent:
    """The event of any later message; raises Rejection."""
    kind = request.WhichOneof("message")
    translate = _EVENTS.get(kind or "")
    if translate is None:
        what = "a second Hello" if kind == "hello" else "a message this master does not know"
        raise Rejection(
            "invalid_argument",
            f"{worker} sent {what}",
            hint="send Hello once, first; use the client of the master's version",
            kind=kind or "none",
        )
    return translate(getattr(request, str(kind)), worker, session)


def _heartbeat(message: ring_pb2.Heartbeat, worker: str, session: str) -> events.AnyEvent:
    return events.AppliedReported(
        worker,
        session,
        message.generation,
        message.applied_step,
        message.phase == ring_pb2.TRAINER_PHASE_BETWEEN,
    )


def _ready(message: ring_pb2.Ready, worker: str, session: str) -> events.AnyEvent:
    return events.ReadyReported(
        worker, session, message.generation, message.applied_step, message.holds_state
    )


def _loaded(message: ring_pb2.Loaded, worker: str, session: str) -> events.AnyEvent:
    return events.LoadedReported(
        worker,
        session,
        message.generation,
        message.step,
        tuple(_delta(context) for context in message.contexts),
        tuple(message.extra.ready_order),
        shown(message.checkpoint),
        tuple(shown(reason) for reason in message.rejected),
    )


def _step_report(message: ring_pb2.StepReport, worker: str, session: str) -> events.AnyEvent:
    tasks = tuple(
        events.StepTask(
            task.virtual_rank,
            task.range.start,
            task.range.end,
            tuple(task.samples),
            dict(task.metrics),
        )
        for task in message.tasks
    )
    return events.StepReported(
        worker,
        session,
        message.generation,
        message.step,
        message.epoch,
        tuple(_delta(context) for context in message.contexts),
        tasks,
        tuple(message.extra.ready_order),
        message.settings_digest if message.HasField("settings_digest") else None,
        message.state_digest if message.HasField("state_digest") else None,
    )


def _interval_report(message: ring_pb2.IntervalReport, worker: str, session: str) -> events.AnyEvent:
    changes: dict[str, events.Change] = {}
    for change in message.changes:
        kind = change.WhichOneof("change")
        if kind is None or change.draws < 0:
            raise Rejection("invalid_argument", f"{worker} reports an invalid change of {shown(change.name)}")
        changes[change.name] = change.draws if kind == "draws" else change.state
    return events.IntervalReported(
        worker,
        session,
        message.generation,
        message.step,
        message.passed,
        message.as_leader,
        message.asked,
        changes,
        shown(message.uncertain),
        shown(message.fault),
        tuple(_delta(context) for context in message.contexts),
        message.each_rank,
    )


def _check_report(message: ring_pb2.CheckReport, worker: str, session: str) -> events.AnyEvent:
    if not 0 < len(message.digest) <= _DIGEST_BYTES_MAX:
        raise Rejection(
            "invalid_argument",
            f"{worker} sent a digest of {len(message.digest)} bytes",
            hint=f"a digest has 1 to {_DIGEST_BYTES_MAX} bytes",
            field="digest",
        )
    return events.CheckReported(
        worker, session, message.generation, message.step, message.virtual_rank, message.digest.hex()
    )


def _ring_broken(message: ring_pb2.RingBroken, worker: str, session: str) -> events.AnyEvent:
    return events.RingBrokenReported(worker, session, message.generation, message.step, shown(message.error))


def _saved(message: ring_pb2.Saved, worker: str, session: str) -> events.AnyEvent:
    return events.SavedReported(
        worker,
        session,
        message.checkpoint,
        message.step,
        message.shard,
        message.file,
        message.sha256,
        message.bytes,
        shown(message.error),
        message.complete,
    )


def _leaving(message: ring_pb2.Leaving, worker: str, session: str) -> events.AnyEvent:
    return events.LeavingReported(worker, session, shown(message.reason), seconds(message.notice, "notice"))


def _bye(message: ring_pb2.Bye, worker: str, session: str) -> events.AnyEvent:
    reason = _BYES.get(message.reason)
    if reason is None:
        raise Rejection("invalid_argument", f"{worker} said Bye without a reason", field="reason")
    return events.ByeReported(
        worker,
        session,
        reason,
        shown(message.message),
        message.applied_step,
        message.state_digest if message.HasField("state_digest") else None,
    )


def _comparison(message: ring_pb2.Comparison, worker: str, session: str) -> events.AnyEvent:
    match message.WhichOneof("message"):
        case "end_early":
            end = message.end_early
            digest = end.state_digest if end.HasField("state_digest") else None
            return events.EndEarlyReported(
                worker, session, end.generation, end.step, end.epoch, shown(end.place), digest
            )
        case "details":
            details = tuple(
                events.StateDetail(shown(one.name), one.digest, shown(one.value))
                for one in message.details.details
            )
            return events.StateDetailed(
                worker, session, message.details.generation, message.details.step, details
            )
    raise Rejection("invalid_argument", f"{worker} sent a comparison without a message", field="comparison")


_EVENTS: dict[str, Callable[[Any, str, str], events.AnyEvent]] = {
    "heartbeat": _heartbeat,
    "ready": _ready,
    "loaded": _loaded,
    "step_report": _step_report,
    "interval_report": _interval_report,
    "check_report": _check_report,
    "ring_broken": _ring_broken,
    "saved": _saved,
    "leaving": _leaving,
    "bye": _bye,
    "comparison": _comparison,
}


def _signature(message: ring_pb2.ScriptSignature) -> events.Signature:
    return events.Signature(
        tensors=tuple(
            events.TensorSpec(tensor.name, tuple(tensor.shape), tensor.dtype) for tensor in message.tensors
        ),
        dataset_size=message.dataset_size,
        batch_size=message.batch_size,
        steps_per_epoch=message.steps_per_epoch,
        epochs=message.epochs,
        environment=dict(message.environment),
    )


def _delta(message: common_pb2.EstContext) -> events.ContextDelta:
    return events.ContextDelta(
        message.virtual_rank, contexts.context_from_proto(message), delta=message.delta
    )


# ------------------------------------------------------------------ master -> worker


def attend_response(message: WorkerMessage, settings: JobSettings) -> ring_pb2.AttendResponse:
    """The wire form of what a decision sends to a worker."""
    response = ring_pb2.AttendResponse()
    match message:
        case effects.Welcome():
            response.welcome.CopyFrom(_welcome(message, settings))
        case effects.Prepare():
            response.prepare.CopyFrom(_prepare(message))
        case effects.Load():
            response.load.generation = message.generation
            response.load.checkpoint_url = message.checkpoint_url
            if message.step_max is not None:
                response.load.step_max = message.step_max
            for doubt in message.doubts:
                response.load.doubts.add(step_max=doubt.step_max, generation_max=doubt.generation_max)
        case effects.Go():
            response.go.CopyFrom(_go(message))
        case effects.Prepared():
            response.prepared.CopyFrom(_prepared(message))
        case effects.IntervalDecided():
            response.interval_decided.CopyFrom(_interval_decided(message))
        case effects.Checkpoint():
            response.checkpoint.CopyFrom(_checkpoint(message))
        case effects.Drain():
            response.drain.reason = message.reason
        case effects.Explain():
            response.compare.explain.generation = message.generation
            response.compare.explain.step = message.step
        case effects.AllEnd():
            response.compare.all_end.generation = message.generation
            response.compare.all_end.step = message.step
        case effects.Done():
            response.done.phase = message.phase
            response.done.reason = message.reason
    return response


def ring_members(members: Iterable[effects.Member]) -> list[ring_pb2.Member]:
    """The ring's members, in its order."""
    return [
        ring_pb2.Member(
            worker_id=member.worker,
            ests=as_range(member.start, member.end),
            store_address=member.store_address,
        )
        for member in members
    ]


def _welcome(message: effects.Welcome, settings: JobSettings) -> ring_pb2.Welcome:
    wanted = max(_HEARTBEAT_SECONDS, settings.ests / _HEARTBEATS_PER_SECOND_MAX)
    interval = min(wanted, settings.heartbeat_timeout_seconds / _HEARTBEATS_PER_TIMEOUT)
    return ring_pb2.Welcome(
        generation=message.generation,
        resumed=message.resumed,
        ests=settings.ests,
        seed=settings.seed,
        checkpoint_url=settings.checkpoint_url,
        checkpoint_keep=settings.checkpoint_keep,
        heartbeat_interval=duration(interval),
        audit_samples=settings.audit_samples,
        version=str(versions.PROTOCOL),
        reports_from=message.reports_from,
    )


def _prepare(message: effects.Prepare) -> ring_pb2.Prepare:
    return ring_pb2.Prepare(
        generation=message.generation, members=ring_members(message.members), reason=message.reason
    )


def _go(message: effects.Go) -> ring_pb2.Go:
    go = go_without_members(message)
    go.members.extend(ring_members(message.members))
    return go


def go_without_members(message: effects.Go) -> ring_pb2.Go:
    """What of a Go is this worker's alone."""
    go = ring_pb2.Go(
        generation=message.generation,
        resume_step=message.resume_step,
        donors=message.donors,
        receivers=message.receivers,
        contexts=[
            contexts.context_to_proto(rank, message.resume_step, parts) for rank, parts in message.contexts
        ],
        extra=_extra(message.ready_order),
        history_generation=message.history_generation,
        check=_check(message.check),
        rendezvous_secret=group_secret(message.rendezvous_key, group_of(message.generation)),
    )
    if message.interval is not None:
        go.interval.CopyFrom(_interval_decided(message.interval))
    return go


def _interval_decided(message: effects.IntervalDecided) -> ring_pb2.IntervalDecided:
    decided = ring_pb2.IntervalDecided(
        generation=message.generation,
        step=message.step,
        contexts=[contexts.context_to_proto(rank, message.step, parts) for rank, parts in message.contexts],
        refusal=message.refusal,
    )
    for name, change in message.changes.items():
        if isinstance(change, int):
            decided.changes.add(name=name, draws=change)
        else:
            decided.changes.add(name=name, state=change)
    return decided


def _prepared(message: effects.Prepared) -> ring_pb2.Prepared:
    prepared = ring_pb2.Prepared(generation=message.generation, step=message.step)
    if message.ready_order:
        prepared.extra.CopyFrom(common_pb2.ExtraState(ready_order=message.ready_order))
    if message.then_prepare is not None:
        prepared.then_prepare.CopyFrom(_prepare(message.then_prepare))
    if message.then_checkpoint is not None:
        prepared.then_checkpoint.CopyFrom(_checkpoint(message.then_checkpoint))
    if (check := _check(message.check)) is not None:
        prepared.check.CopyFrom(check)
    return prepared


def _check(order: effects.CheckOrder | None) -> ring_pb2.Check | None:
    if order is None:
        return None
    check = ring_pb2.Check(step=order.step, virtual_rank=order.rank)
    if order.parts is not None:
        check.context.CopyFrom(contexts.context_to_proto(order.rank, order.step, order.parts))
    return check


def _checkpoint(message: effects.Checkpoint) -> ring_pb2.Checkpoint:
    return ring_pb2.Checkpoint(
        checkpoint=message.checkpoint,
        url=message.url,
        step=message.step,
        shard=message.shard,
        shards=message.shards,
        keep=message.keep,
        manifest=[
            ring_pb2.Saved(
                checkpoint=message.checkpoint,
                step=message.step,
                shard=entry.shard,
                file=entry.file,
                sha256=entry.sha256,
                bytes=entry.bytes,
            )
            for entry in message.manifest
        ],
    )


def _extra(ready_order: Sequence[int]) -> common_pb2.ExtraState | None:
    return common_pb2.ExtraState(ready_order=ready_order) if ready_order else None
