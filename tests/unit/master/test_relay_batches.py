"""Batches of a relay's stream: order within a session, equal answers once, bounded messages."""

from __future__ import annotations

import pytest

from elastane_proto import relay_batches
from elastane_proto.relay_batches import (
    AnswerBatch,
    FrameBatch,
    metadata_from_proto,
    metadata_to_proto,
    responses_of,
)
from elastane_proto.v1 import ring_pb2


def received(batch: AnswerBatch) -> dict[int, list[bytes | int]]:
    """What each session gets of all that is taken from the batch: responses, and codes of its end."""
    found: dict[int, list[bytes | int]] = {}
    while (message := batch.take()) is not None:
        for answer in message.answers:
            ends = answer.WhichOneof("answer") == "status"
            for session in answer.sessions:
                found.setdefault(session, []).append(answer.status.code if ends else answer.response)
    return found


def test_equal_answers_are_sent_once_and_each_session_keeps_its_order() -> None:
    batch = AnswerBatch()
    for session in (1, 2, 3):
        batch.respond(session, b"prepared")
    batch.respond(2, b"own")
    for session in (1, 2):
        batch.respond(session, b"prepared")
    batch.end(2, ring_pb2.RelayedStatus(code=10))
    batch.respond(3, b"prepared")
    assert batch.unsent[1] == 2 and batch.unsent[2] == 4
    message = batch.take()
    assert message is not None
    assert [list(answer.sessions) for answer in message.answers] == [[1, 2, 3], [2], [1, 2], [2], [3]]
    assert batch.take() is None and not batch.unsent and batch.bytes == 0


def test_nothing_is_added_to_an_answer_that_was_taken() -> None:
    batch = AnswerBatch()
    batch.respond(1, b"prepared")
    first = batch.take()
    batch.respond(2, b"prepared")
    assert first is not None and list(first.answers[0].sessions) == [1]
    assert received(batch) == {2: [b"prepared"]}


def test_messages_are_bounded_and_a_large_part_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_batches, "BATCH_BYTES", 100)
    answers, frames = AnswerBatch(), FrameBatch()
    for number in range(10):
        answers.respond(1, bytes([number]) * 60)
        frames.add(ring_pb2.RelayFrame(session=1, request=bytes([number]) * 60))
    frames.add(ring_pb2.RelayFrame(session=2, request=bytes(1000)))
    first = answers.take()
    assert first is not None and len(first.answers) == 2 and answers.unsent[1] == 8
    assert received(answers)[1] == [bytes([number]) * 60 for number in range(2, 10)]
    sizes = []
    while (request := frames.take()) is not None:
        sizes.append([len(frame.request) for frame in request.frames])
    assert sum(map(len, sizes)) == 11 and sizes[0] == [60, 60] and sizes[-1][-1] == 1000
    assert frames.bytes == 0


def test_an_end_that_answers_have_in_common_is_in_a_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_batches, "BATCH_BYTES", 30)
    batch, members, others = AnswerBatch(), b"members" * 100, b"others" * 100
    for session in (1, 2, 3):
        batch.respond(session, b"go of %d, " % session + bytes(10), members)
    batch.respond(4, b"prepared")
    batch.respond(5, b"prepared", others)  # equal, but for its end
    given, messages = {}, []
    while (message := batch.take()) is not None:
        messages.append(list(message.tails))
        for answer, tail in responses_of(message):
            given |= dict.fromkeys(answer.sessions, answer.response + tail)
    assert given == {
        **{session: b"go of %d, " % session + bytes(10) + members for session in (1, 2, 3)},
        4: b"prepared",
        5: b"prepared" + others,
    }
    assert messages == [[members], [members, others]]


def test_an_answer_without_its_end_is_not_taken_for_whole() -> None:
    cut = ring_pb2.RelayResponse(answers=[ring_pb2.RelayAnswer(sessions=[1], response=b"x", tail=1)])
    with pytest.raises(ValueError, match="ends with part 1"):
        list(responses_of(cut))


def test_metadata_come_back_as_they_were() -> None:
    metadata = [("authorization", "Bearer x"), ("grpc-status-details-bin", b"\x00\xff"), ("again", "1")]
    assert metadata_from_proto(metadata_to_proto(metadata)) == metadata
    odd = [ring_pb2.RelayedMetadatum(key="text", value=b"\xff")]
    assert metadata_from_proto(odd) == [("text", "\\xff")]
