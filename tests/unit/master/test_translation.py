"""Between messages and values: nothing is lost, defaults are filled in, nonsense is refused."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from google.protobuf import duration_pb2
from hypothesis import given
from hypothesis import strategies as st

from elastane_master.app import services
from elastane_master.decisions import effects, events
from elastane_master.decisions.events import Rejection
from elastane_master.jobs.records import StoredEvent, decode_event, encode
from elastane_master.servers.attend_encoding import AttendEncoder
from elastane_master.servers.binding import service_handler
from elastane_master.servers.translate import duration, seconds, timestamp
from elastane_master.servers.translate_job import decision_message, job_settings, settings_message
from elastane_master.servers.translate_session import attend_event, attend_response, hello, rate_report
from elastane_master.servers.translate_shard import after_token, dataset_settings, task_state
from elastane_proto import contexts
from elastane_proto.generator_positions import GeneratorPosition
from elastane_proto.job_settings import JobSettings
from elastane_proto.rendezvous import follow_group, group_of, group_secret
from elastane_proto.v1 import common_pb2, job_pb2, ring_pb2, shard_pb2
from elastane_scheduler.autoscaling.autoscaler import AutoscalerState, Decision
from elastane_scheduler.autoscaling.stragglers import Report, Usual
from elastane_shards.settings import QueueSettings

SPANS = st.integers(1, 10**12).map(lambda micros: micros / 1e6)
SETTINGS = st.builds(
    JobSettings,
    ests=st.integers(1, 1000),
    workers_min=st.integers(1, 10),
    workers_max=st.integers(1, 1000),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    checkpoint_url=st.text(max_size=20),
    checkpoint_interval_steps=st.integers(0, 10**6),
    checkpoint_keep=st.integers(1, 100),
    heartbeat_timeout_seconds=SPANS,
    lease_min_seconds=SPANS,
    lease_factor=st.floats(0.1, 1000),
    join_window_seconds=SPANS,
    return_grace_seconds=SPANS,
    idle_max_seconds=SPANS,
    torch_threads=st.integers(1, 64),
    audit_samples=st.booleans(),
    sentinel_steps=st.integers(0, 10**6),
    determinism=st.sampled_from(["d0", "d1", "d2"]),
)


def test_a_decision_has_all_that_its_message_tells() -> None:
    decision = Decision(
        AutoscalerState(), 5, "scale", "it pays", 90.5, 1_000, seconds_before=2.0, seconds_after=1.5
    )
    message = decision_message(decision)
    assert (message.workers_target, message.action, message.reason) == (5, "scale", "it pays")
    assert (message.predicted_finish.ToMilliseconds(), message.predicted_cost_micros) == (90_500, 1_000)
    assert (message.seconds_before, message.seconds_after) == (2.0, 1.5)


@given(SETTINGS)
def test_job_settings_survive_the_wire(settings: JobSettings) -> None:
    back = job_settings(job_pb2.JobSettings.FromString(settings_message(settings).SerializeToString()))
    for name in JobSettings.__struct_fields__:
        assert getattr(back, name) == pytest.approx(getattr(settings, name), abs=1e-8), name


def test_a_level_this_master_does_not_know_is_refused() -> None:
    with pytest.raises(Rejection, match="determinism: 7 is not a known value"):
        job_settings(job_pb2.JobSettings(ests=1, determinism=7))  # type: ignore[arg-type]


def test_what_a_message_leaves_out_has_the_default() -> None:
    assert job_settings(job_pb2.JobSettings(ests=4)) == JobSettings(ests=4, audit_samples=False)
    message = shard_pb2.DatasetSettings(task_size=2, range=shard_pb2.RangeSource(size=9))
    assert dataset_settings(message) == QueueSettings(task_size=2, size=9)


def test_a_dataset_has_exactly_the_source_that_was_given() -> None:
    listed = dataset_settings(shard_pb2.DatasetSettings(list=shard_pb2.ListSource(entries=[4, 2])))
    assert (listed.size, listed.entries, listed.watermark) == (None, (4, 2), None)
    stream = dataset_settings(
        shard_pb2.DatasetSettings(stream=shard_pb2.StreamSource(watermark=5, closed=True))
    )
    assert (stream.size, stream.entries, stream.watermark, stream.closed) == (None, None, 5, True)
    with pytest.raises(Rejection, match="no source"):
        dataset_settings(shard_pb2.DatasetSettings(task_size=1))


@given(st.floats(0, 1e9))
def test_spans_survive_the_wire(value: float) -> None:
    assert seconds(duration(value), "x") == pytest.approx(value, rel=1e-12, abs=1e-8)


@pytest.mark.parametrize("value", [-5.0, 0.0, 1.7e9, 1e300, math.inf])
def test_times_stay_in_range(value: float) -> None:
    timestamp(value).ToDatetime()


def test_negative_spans_are_refused() -> None:
    with pytest.raises(Rejection, match="lease: -1 s is negative"):
        seconds(duration_pb2.Duration(seconds=-1), "lease")


@pytest.mark.parametrize("token", ["x", "1", "1-", "-1-2", "1-2-3", "9" * 30 + "-1"])
def test_tokens_that_were_not_given_out_are_refused(token: str) -> None:
    with pytest.raises(Rejection, match="not a page token"):
        after_token(token)


def test_an_unknown_task_state_is_refused() -> None:
    with pytest.raises(Rejection):
        task_state(17)


def a_context(rank: int) -> common_pb2.EstContext:
    parts = {
        "rng/python": b"p",
        "rng/torch_cpu": b"t",
        "loader": contexts.pack_loader(1, 2, None),
        "stream/1/rng/numpy": b"n",
        "item/counter": b"\x00",
    }
    return contexts.context_to_proto(rank, 3, parts, delta=True)


def a_context_of_positions() -> common_pb2.EstContext:
    positions = {
        "stream/1/rng/python": GeneratorPosition(b"beside", 2**32 - 1),
        "rng/torch_cpu": GeneratorPosition(b"", 0),
    }
    return contexts.context_to_proto(1, 3, {"rng/numpy": b"n"}, delta=True, positions=positions)


def test_positions_of_generators_are_read_or_refused() -> None:
    message = common_pb2.EstContext.FromString(a_context_of_positions().SerializeToString())
    report = ring_pb2.StepReport(generation=1, step=2, contexts=[message])
    event = attend_event(ring_pb2.AttendRequest(step_report=report), "a", "1")
    assert isinstance(event, events.StepReported)
    (delta,) = event.contexts
    assert delta.parts == {"rng/numpy": b"n"} and delta.positions == {
        "stream/1/rng/python": GeneratorPosition(b"beside", 2**32 - 1),
        "rng/torch_cpu": GeneratorPosition(b"", 0),
    }
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=events.StepReported) == event
    with pytest.raises(ValueError, match="positions of generators"):
        contexts.context_from_proto(message)
    older = {"virtual_rank": 1, "parts": {"rng/numpy": b"n"}, "delta": True}
    assert msgspec.convert(older, events.ContextDelta).positions == {}


def test_who_goes_ahead_and_who_waits_for_it_is_said_both_ways() -> None:
    for said in (True, False):
        report = ring_pb2.StepReport(generation=1, step=2, goes_ahead=said)
        event = attend_event(ring_pb2.AttendRequest(step_report=report), "a", "1")
        assert isinstance(event, events.StepReported) and event.goes_ahead is said
        prepared = attend_response(effects.Prepared(1, 2, next_waits=said), JobSettings(ests=1)).prepared
        assert prepared.next_waits is said
    stored = msgspec.to_builtins(event)
    assert "goes_ahead" not in stored  # as older masters stored it
    assert msgspec.convert(stored, events.StepReported) == event
    welcome = effects.Welcome(generation=1, resumed=False)
    assert attend_response(welcome, JobSettings(ests=1)).welcome.planned_changes_wait


MESSAGES = [
    ({"heartbeat": ring_pb2.Heartbeat(generation=1, applied_step=2, phase=2)}, events.AppliedReported),
    ({"ready": ring_pb2.Ready(generation=1, applied_step=2, holds_state=True)}, events.ReadyReported),
    (
        {"loaded": ring_pb2.Loaded(generation=1, step=3, contexts=[a_context(0)], rejected=["x"])},
        events.LoadedReported,
    ),
    (
        {
            "step_report": ring_pb2.StepReport(
                generation=1,
                step=3,
                epoch=1,
                contexts=[a_context(1)],
                tasks=[ring_pb2.StepTask(virtual_rank=1, samples=[5, 6], metrics={"loss": 0.5})],
                extra=common_pb2.ExtraState(ready_order=[2, 1, 0]),
            )
        },
        events.StepReported,
    ),
    (
        {
            "interval_report": ring_pb2.IntervalReport(
                generation=1,
                step=3,
                passed=True,
                changes=[
                    ring_pb2.PartChange(name="rng/python", draws=4),
                    ring_pb2.PartChange(name="rng/numpy", state=b"s"),
                ],
                contexts=[a_context(0)],
            )
        },
        events.IntervalReported,
    ),
    ({"ring_broken": ring_pb2.RingBroken(generation=1, step=2, error="e")}, events.RingBrokenReported),
    (
        {"check_report": ring_pb2.CheckReport(generation=1, step=2, virtual_rank=1, digest=b"d")},
        events.CheckReported,
    ),
    ({"follow_report": ring_pb2.FollowReport(step=2, digest=2**64 - 1)}, events.FollowReported),
    ({"saved": ring_pb2.Saved(checkpoint="c", step=2, shard=1, bytes=9)}, events.SavedReported),
    ({"leaving": ring_pb2.Leaving(reason="spot", notice=duration(1.5))}, events.LeavingReported),
    (
        {"comparison": ring_pb2.Comparison(end_early=ring_pb2.EndEarly(step=3, state_digest=2**64 - 1))},
        events.EndEarlyReported,
    ),
    (
        {
            "comparison": ring_pb2.Comparison(
                details=ring_pb2.StateDetails(step=3, details=[ring_pb2.StateDetail(name="n", digest=2**63)])
            )
        },
        events.StateDetailed,
    ),
    ({"bye": ring_pb2.Bye(reason=ring_pb2.BYE_REASON_DRAINED, message="m")}, events.ByeReported),
]


@pytest.mark.parametrize(("message", "kind"), MESSAGES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_worker_message_becomes_its_event_and_can_be_stored(message: dict, kind: type) -> None:
    event = attend_event(ring_pb2.AttendRequest(**message), "w", "s")
    assert type(event) is kind
    assert (event.worker, event.session) == ("w", "s")
    stored = StoredEvent(12.5, event)
    assert decode_event(encode(stored)) == stored


@pytest.mark.parametrize("size", [0, 65])
def test_a_digest_that_is_none_is_refused(size: int) -> None:
    report = ring_pb2.AttendRequest(check_report=ring_pb2.CheckReport(step=2, digest=b"d" * size))
    with pytest.raises(Rejection, match=f"a digest of {size} bytes"):
        attend_event(report, "w", "s")


def test_what_the_sentinel_asks_reaches_the_worker() -> None:
    hosts, runs = effects.CheckOrder(4, 1, None), effects.CheckOrder(4, 1, {"rng/python": b"p"})
    prepared = attend_response(effects.Prepared(2, 3, check=hosts), JobSettings(ests=2)).prepared
    assert (prepared.check.step, prepared.check.virtual_rank) == (4, 1)
    assert not prepared.check.HasField("context")
    go = effects.Go(2, 4, (), (), (), (), (), check=runs)
    told = attend_response(go, JobSettings(ests=2)).go
    assert contexts.context_from_proto(told.check.context) == {"rng/python": b"p"}
    assert AttendEncoder().encode(go, JobSettings(ests=2)) == attend_response(
        go, JobSettings(ests=2)
    ).SerializeToString(deterministic=True)
    load = attend_response(effects.Load(2, "file:///x", doubts=(effects.Doubt(8, 1),)), JobSettings(ests=2))
    assert [(doubt.step_max, doubt.generation_max) for doubt in load.load.doubts] == [(8, 1)]


def test_every_field_of_the_oneof_is_handled() -> None:
    handled = {name for message, _ in MESSAGES for name in message} | {"hello"}
    assert handled == {field.name for field in ring_pb2.AttendRequest.DESCRIPTOR.oneofs[0].fields}


def test_a_hello_becomes_a_joining() -> None:
    message = ring_pb2.Hello(
        worker_id="w",
        role=ring_pb2.WORKER_ROLE_RING,
        signature=ring_pb2.ScriptSignature(
            tensors=[ring_pb2.TensorSpec(name="a", shape=[2, 3], dtype="float32")], environment={"torch": "2"}
        ),
        store_address="h:1",
        generation=4,
    )
    event = hello(message, "s")
    assert event.signature.tensors == (events.TensorSpec("a", (2, 3), "float32"),)
    assert decode_event(encode(StoredEvent(1.0, event))).event == event


MEMBER = effects.Member("w", 0, 2, "h:1")
PREPARE = effects.Prepare(3, (MEMBER,), "why")
CHECKPOINT = effects.Checkpoint("c", "file:///x", 5, 0, 1, 3, (effects.ManifestEntry(0, "f", "s", 9),))
TO_WORKER = [
    effects.Welcome(3, True),
    effects.Welcome(3, False, 7, 9),
    PREPARE,
    effects.Load(3, "file:///x"),
    effects.Go(3, 5, (MEMBER,), (0,), (), ((0, {"rng/python": b"p"}),), (1, 0)),
    effects.Prepared(3, 5, (1, 0), PREPARE, CHECKPOINT),
    effects.Follow(3, 5, "w", "v", "h:1", 2, (1, 0), 2),
    CHECKPOINT,
    effects.Drain("why"),
    effects.Done("succeeded", "why"),
]


def test_a_generations_secret_is_told_in_go_and_the_key_to_nobody() -> None:
    key = bytes(range(32))
    go = effects.Go(3, 5, (MEMBER,), (), (), (), (), rendezvous_key=key)
    told = attend_response(go, JobSettings(ests=2)).go
    assert told.rendezvous_secret == group_secret(key, group_of(3)) != group_secret(key, group_of(4))
    assert key not in told.SerializeToString()
    follow = effects.Follow(3, 5, "w", "v", "h:1", 2, (1, 0), 2, rendezvous_key=key)
    to_source = attend_response(effects.Prepared(3, 4, follow=follow), JobSettings(ests=2)).prepared.follow
    assert to_source == attend_response(follow, JobSettings(ests=2)).follow
    assert to_source.rendezvous_secret == group_secret(key, follow_group(3, 5)) != told.rendezvous_secret
    assert key not in to_source.SerializeToString()
    early = effects.Prepared(2, 5, then_prepare=effects.Prepare(3, (MEMBER,), "why", rendezvous_key=key))
    prepared = attend_response(early, JobSettings(ests=2)).prepared
    assert prepared.then_prepare.rendezvous_secret == told.rendezvous_secret
    assert key not in prepared.SerializeToString()
    assert not attend_response(PREPARE, JobSettings(ests=2)).prepare.rendezvous_secret
    assert hello(ring_pb2.Hello(worker_id="w", role=1, rendezvous_key=key), "s").rendezvous_key == key


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda message: type(message).__name__)
def test_every_message_to_a_worker_has_its_wire_form(message: object) -> None:
    response = attend_response(message, JobSettings(ests=2))  # type: ignore[arg-type]
    name = type(message).__name__.lower()
    assert response.WhichOneof("message") == name
    wire = getattr(response, name)
    for field in msgspec.structs.fields(message):  # type: ignore[arg-type]
        # The first is in `extra`; a generation's secret is told, and not the key it is made of.
        elsewhere = ("ready_order", "rendezvous_key")
        assert field.name in wire.DESCRIPTOR.fields_by_name or field.name in elsewhere, field.name
    for field in ("generation", "step", "reason", "resume_step", "keep"):
        if hasattr(message, field):
            assert getattr(wire, field) == getattr(message, field)


@pytest.mark.parametrize(
    ("ests", "timeout_seconds", "expected"),
    [(4, 3.0, 1.0), (4, 0.3, 0.1), (5000, 3.0, 1.0), (5000, 120.0, 5.0), (50_000, 60.0, 20.0)],
)
def test_workers_of_a_large_job_beat_less_often_but_three_times_in_the_timeout(
    ests: int, timeout_seconds: float, expected: float
) -> None:
    settings = JobSettings(ests=ests, heartbeat_timeout_seconds=timeout_seconds)
    interval = attend_response(effects.Welcome(1, False), settings).welcome.heartbeat_interval
    assert interval.ToTimedelta().total_seconds() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("message", "name"), [(effects.Explain(3, 5), "explain"), (effects.AllEnd(3, 5), "all_end")]
)
def test_what_the_master_compares_has_its_wire_form(
    message: effects.Explain | effects.AllEnd, name: str
) -> None:
    compare = attend_response(message, JobSettings(ests=2)).compare
    assert compare.WhichOneof("message") == name
    assert (getattr(compare, name).generation, getattr(compare, name).step) == (3, 5)


def test_an_order_of_a_capture_has_its_wire_form() -> None:
    told = attend_response(effects.CaptureOrder("c", 7, 5, end=True), JobSettings(ests=2)).capture
    assert (told.capture, told.first_step, told.trace_steps, told.end) == ("c", 7, 5, True)


def test_every_message_to_a_worker_is_covered() -> None:
    elsewhere = {"capture", "compare", "interval_decided"}
    covered = {type(message).__name__.lower() for message in TO_WORKER} | elsewhere
    assert covered == {field.name for field in ring_pb2.AttendResponse.DESCRIPTOR.oneofs[0].fields}


def test_a_servicer_without_a_method_is_found_at_the_start() -> None:
    with pytest.raises(AttributeError):
        service_handler(services()[0], object())


def test_what_all_workers_get_alike_is_encoded_once_and_says_the_same() -> None:
    settings = JobSettings(ests=2)
    other = effects.Go(3, 5, (MEMBER,), (0,), (), ((1, {"rng/numpy": b"n"}),), ())
    at_position = msgspec.structs.replace(other, members=(effects.Member("w", 0, 1, "h:2"),))
    elsewhere = effects.Prepare(3, (effects.Member("w", 0, 1, "h:2"),), "why")
    next_shard = effects.Prepared(3, 5, (1, 0), None, msgspec.structs.replace(CHECKPOINT, shard=1))
    plain = effects.Prepared(3, 5, ())
    joins = effects.Prepared(3, 5, (), PREPARE, None)
    positions = effects.Prepared(3, 5, (), elsewhere, None)
    later = effects.Prepared(3, 6, (), PREPARE, None)
    finishes = msgspec.structs.replace(PREPARE, prepared_until=6)
    finishes_later = effects.Prepared(3, 5, (), finishes, None)
    for messages in itertools.permutations([PREPARE, TO_WORKER[3], other, elsewhere, TO_WORKER[4]]):
        encoder = AttendEncoder()
        for message in (
            *messages,
            joins,
            plain,
            joins,
            positions,
            later,
            joins,
            finishes_later,
            PREPARE,
            finishes,
            at_position,
            next_shard,
            plain,
            plain,
            effects.Prepared(3, 6, ()),
            *TO_WORKER,
        ):
            expected = attend_response(message, settings)  # type: ignore[arg-type]
            assert ring_pb2.AttendResponse.FromString(encoder.encode(message, settings)) == expected  # type: ignore[arg-type]
    encoder = AttendEncoder()
    first = encoder.encode(PREPARE, settings)
    assert encoder.encode(effects.Prepare(3, PREPARE.members, "why"), settings) is first
    assert encoder.encode(effects.Prepare(4, PREPARE.members, "why"), settings) != first
    first = encoder.encode(joins, settings)
    again = effects.Prepared(3, 5, (), effects.Prepare(3, PREPARE.members, "why"), None)
    assert encoder.encode(again, settings) is first


def test_workers_are_told_whose_children_their_spans_are() -> None:
    settings, encoder = JobSettings(ests=2), AttendEncoder()

    def told(message: object, trace: str) -> ring_pb2.AttendResponse:
        def traceparent(generation: int) -> str:
            return f"{trace}-{generation}"

        return ring_pb2.AttendResponse.FromString(encoder.encode(message, settings, traceparent))  # type: ignore[arg-type]

    go = next(message for message in TO_WORKER if isinstance(message, effects.Go))
    joins, standby = effects.Prepared(2, 5, (), PREPARE, None), effects.Prepare(3, (), "why")
    for trace in ("a", "b", "a"):
        assert told(standby, trace).prepare.traceparent == f"{trace}-3"
        assert told(standby, "other").prepare.traceparent == "other-3", "another job may say the same"
        assert told(PREPARE, trace).prepare.traceparent == f"{trace}-{PREPARE.generation}"
        assert told(joins, trace).prepared.then_prepare.traceparent == f"{trace}-{PREPARE.generation}"
        assert told(go, trace).go.traceparent == f"{trace}-{go.generation}"
        assert told(go, trace).go.members == attend_response(go, settings).go.members
    untraced = ring_pb2.AttendResponse.FromString(encoder.encode(PREPARE, settings))
    assert untraced == attend_response(PREPARE, settings) and not untraced.prepare.traceparent


def test_what_a_worker_says_of_its_rate_is_read_and_one_that_says_nothing_has_no_ests() -> None:
    figures = ring_pb2.WorkerFigures(
        generation=3,
        ests=4,
        device_type="T4\x1b[2J",
        est_rates=120.5,
        est_rate_steps=7,
        usual_steps=31,
        usual_ests_seconds=0.4,
        usual_data_wait_seconds=0.1,
        usual_all_reduce_wait_seconds=0.2,
        usual_between_seconds=0.3,
        usual_after_seconds=0.5,
    )
    usual = Usual(3, 31, 0.4, 0.1, 0.2, 0.3, 0.5)
    assert rate_report(figures) == Report("T4\N{REPLACEMENT CHARACTER}[2J", 4, 120.5, 7, usual)
    assert rate_report(ring_pb2.WorkerFigures()).ests == 0
