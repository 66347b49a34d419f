"""Pipelines on the wire: what workers say of their units, and the plan that a Go brings them."""

from __future__ import annotations

from elastane_master.decisions.effects import Go, Member, PipelinePlan, PipelineStage, Prepare, UnitSource
from elastane_master.decisions.events import (
    AppliedReported,
    PipelineModel,
    PipelineUnit,
    ReadyReported,
    UnitRange,
)
from elastane_master.servers.translate_session import attend_event, attend_response, hello
from elastane_proto.job_settings import JobSettings
from elastane_proto.v1 import pipeline_pb2, ring_pb2

SETTINGS = JobSettings(ests=2)


def test_a_hello_tells_of_the_units_and_one_without_a_pipeline_of_none() -> None:
    message = ring_pb2.Hello(job="j", worker_id="w", role=ring_pb2.WORKER_ROLE_RING)
    assert hello(message, "s").signature.pipeline is None
    model = message.signature.pipeline
    model.waves = 2
    model.units.add(name="layer\x07", parameter_bytes=8, forward_seconds=0.5, tie=3)
    model.forward_overhead_seconds, model.backward_overhead_seconds = 0.125, 0.25
    told = hello(message, "s").signature.pipeline
    unit = PipelineUnit("layer\ufffd", 8, forward_seconds=0.5, tie=3)
    assert told == PipelineModel((unit,), 2, 0.125, 0.25)


def test_ready_and_heartbeat_tell_what_is_held_and_how_long_it_takes() -> None:
    ready = ring_pb2.Ready(generation=2, applied_step=5, holds_state=True)
    ready.units.add(first_unit=1, end_unit=4)
    event = attend_event(ring_pb2.AttendRequest(ready=ready), "w", "s")
    assert event == ReadyReported("w", "s", 2, 5, True, (UnitRange(1, 4),))
    beat = ring_pb2.Heartbeat(generation=2)
    beat.figures.first_unit, beat.figures.memory_bytes = 1, 99
    beat.figures.unit_forward_seconds.extend([0.5, 0.25])
    beat.figures.unit_backward_seconds.extend([1.0, 0.5])
    beat.figures.forward_overhead_seconds, beat.figures.backward_overhead_seconds = 0.125, 0.375
    event = attend_event(ring_pb2.AttendRequest(heartbeat=beat), "w", "s")
    assert isinstance(event, AppliedReported)
    assert (event.forward_overhead_seconds, event.backward_overhead_seconds) == (0.125, 0.375)
    assert (event.first_unit, event.memory_bytes) == (1, 99)
    assert (event.unit_forward_seconds, event.unit_backward_seconds) == ((0.5, 0.25), (1.0, 0.5))


def test_go_brings_the_plan_and_prepare_what_is_prepared() -> None:
    plan = PipelinePlan(
        (PipelineStage(0, 2, (0,), (1,), "checkpoint"), PipelineStage(2, 3, (1,))),
        (UnitSource(0, 2, (0,)), UnitSource(2, 3, (), "step-4")),
        0.25,
        "why",
    )
    go = Go(3, 4, (Member("a", 0, 1, ""), Member("b", 1, 2, "")), (0,), (1,), (), (), pipeline=plan)
    message = attend_response(go, SETTINGS).go.pipeline
    assert [(stage.first_unit, stage.end_unit) for stage in message.stages] == [(0, 2), (2, 3)]
    assert list(message.stages[0].shadows) == [1]
    assert [stage.memory for stage in message.stages] == [
        pipeline_pb2.STAGE_MEMORY_CHECKPOINT,
        pipeline_pb2.STAGE_MEMORY_PLAIN,
    ]
    assert list(message.sources[0].donors) == [0] and message.sources[1].checkpoint == "step-4"
    assert (message.step_seconds, message.reason) == (0.25, "why")
    plain = Go(3, 4, go.members, (0,), (1,), (), ())
    assert not attend_response(plain, SETTINGS).go.HasField("pipeline")
    assert attend_response(Prepare(3, (), "", 0), SETTINGS).prepare.HasField("prepared_until")
    assert not attend_response(Prepare(3, (), ""), SETTINGS).prepare.HasField("prepared_until")
