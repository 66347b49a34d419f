"""A worker that does not read its answers: its session ends, with a typed error."""

from __future__ import annotations

import grpc
from google.rpc import status_pb2

from elastane_agent.relay.downstream import WorkerStream, away
from elastane_proto.v1 import errors_pb2


async def test_answers_come_in_order_before_the_end() -> None:
    stream = WorkerStream()
    assert stream.respond(b"one") and stream.respond(b"two")
    stream.end(away("the master left"))
    assert not stream.respond(b"three"), "it is over"
    assert [answer async for answer in stream.answers()] == [b"one", b"two"]
    assert stream.status is not None and stream.status.code == grpc.StatusCode.UNAVAILABLE.value[0]


async def test_a_worker_that_does_not_read_is_ended_in_words() -> None:
    stream = WorkerStream(answers_max=3)
    assert all(stream.respond(b"x") for _ in range(3))
    assert not stream.respond(b"x")
    assert [answer async for answer in stream.answers()] == []
    assert stream.status is not None and stream.status.code == grpc.StatusCode.ABORTED.value[0]
    status, detail = status_pb2.Status(), errors_pb2.ErrorDetail()
    status.ParseFromString(stream.status.trailing_metadata[0].value)
    assert status.details[0].Unpack(detail)
    assert detail.reason == errors_pb2.ERROR_REASON_EVICTED and detail.retryable
