"""Heartbeats that a relay holds back: several in one message, none so late that it is missed."""

from __future__ import annotations

import pytest

from elastane_agent.relay.held_heartbeats import HELD_SECONDS_MAX, HeldHeartbeats, is_heartbeat
from elastane_proto.v1 import ring_pb2

BEAT = ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat(generation=3)).SerializeToString()


@pytest.mark.parametrize(
    ("request_", "held"),
    [
        (ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat()), True),
        (ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat(applied_step=9)), True),
        (ring_pb2.AttendRequest(hello=ring_pb2.Hello(job="j")), False),
        (ring_pb2.AttendRequest(step_report=ring_pb2.StepReport(step=1)), False),
        (ring_pb2.AttendRequest(bye=ring_pb2.Bye()), False),
        (ring_pb2.AttendRequest(), False),
    ],
)
def test_only_heartbeats_are_held(request_: ring_pb2.AttendRequest, held: bool) -> None:
    assert is_heartbeat(request_.SerializeToString()) is held


def test_beats_of_several_workers_go_together_and_say_how_old_they_are() -> None:
    held = HeldHeartbeats()
    for session in (1, 2, 3):
        held.hold(session, BEAT, now=10.0 + session / 10)
        assert held.due == 10.0 + session / 10, "the first one of a session is not held"
        held.take(held.due)
    for session in (1, 2, 3):
        held.hold(session, BEAT, now=11.0 + session / 10)
        assert held.due == pytest.approx(11.1 + HELD_SECONDS_MAX)
    frames = held.take(11.6)
    assert [(frame.session, frame.held_milliseconds) for frame in frames] == [(1, 500), (2, 400), (3, 300)]
    assert {frame.request for frame in frames} == {BEAT}
    assert held.take(11.7) == [] and held.due is None


def test_a_beat_waits_for_half_of_its_interval_at_most() -> None:
    held = HeldHeartbeats()
    held.hold(1, BEAT, now=10.0)
    held.take(10.0)
    held.hold(1, BEAT, now=10.1)
    assert held.due == pytest.approx(10.15)
    held.take(10.15)
    held.hold(1, BEAT, now=10.1)  # out of turn: the script has entered code between its epochs
    assert held.due == pytest.approx(10.1)


def test_what_another_relay_held_counts() -> None:
    held = HeldHeartbeats()
    held.hold(1, BEAT, now=10.0)
    held.take(10.0)
    held.hold(1, BEAT, now=11.5, held_seconds=0.5)
    assert held.due == 11.5
    assert held.take(11.5)[0].held_milliseconds == 500


def test_a_session_that_is_over_is_forgotten() -> None:
    held = HeldHeartbeats()
    held.hold(1, BEAT, now=10.0)
    held.take(10.0)
    held.forget(1)
    held.hold(1, BEAT, now=20.0)
    assert held.due == 20.0
