"""Batches of a relay's stream: whatever is ready at the same time goes in one message. Pure.

Each session keeps its order. Equal answers to several sessions, such as a step's Prepared, are sent once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from elastane_proto.v1 import ring_pb2

BATCH_BYTES: Final = 4 * 2**20
"""Size at which a message is closed; a larger part goes alone."""

Metadata = Sequence[tuple[str, str | bytes]]
"""Metadata of a call as gRPC gives it; values of keys that end in "-bin" are bytes."""


def metadata_to_proto(metadata: Iterable[tuple[str, str | bytes]]) -> list[ring_pb2.RelayedMetadatum]:
    """Return the wire form of a call's metadata."""
    return [
        ring_pb2.RelayedMetadatum(key=key, value=value if isinstance(value, bytes) else value.encode())
        for key, value in metadata
    ]


def metadata_from_proto(entries: Iterable[ring_pb2.RelayedMetadatum]) -> list[tuple[str, str | bytes]]:
    """Inverse of `metadata_to_proto`. Text that is not ASCII, which gRPC would refuse, is escaped."""
    return [
        (entry.key, entry.value)
        if entry.key.endswith("-bin")
        else (entry.key, entry.value.decode("ascii", "backslashreplace"))
        for entry in entries
    ]


def responses_of(response: ring_pb2.RelayResponse) -> Iterator[tuple[ring_pb2.RelayAnswer, bytes]]:
    """Yield the answers in a message, each with its tail: the same object for all that have it.

    Raises ValueError for a tail that is not in the message.
    """
    tails = (b"", *response.tails)
    for answer in response.answers:
        if answer.tail >= len(tails):
            raise ValueError(f"an answer ends with part {answer.tail}, the message has {len(tails) - 1}")
        yield answer, tails[answer.tail]


class FrameBatch:
    """Frames that wait to be sent towards the master. bytes: their size."""

    __slots__ = ("_frames", "bytes")

    def __init__(self) -> None:
        self._frames: list[ring_pb2.RelayFrame] = []
        self.bytes = 0

    def add(self, frame: ring_pb2.RelayFrame) -> None:
        """Append a frame."""
        self._frames.append(frame)
        self.bytes += frame.ByteSize()

    def take(self) -> ring_pb2.RelayRequest | None:
        """Remove and return the frames of the next message; None if there are none."""
        if not self._frames:
            return None
        count = size = 0
        while count < len(self._frames) and (not count or size < BATCH_BYTES):
            size += self._frames[count].ByteSize()
            count += 1
        taken, self._frames = self._frames[:count], self._frames[count:]
        self.bytes -= size
        return ring_pb2.RelayRequest(frames=taken)


class AnswerBatch:
    """Answers that wait to be sent to a relay. unsent: number of them by session. bytes: their size."""

    __slots__ = ("_answers", "_shared", "_tail", "_tails", "bytes", "unsent")

    def __init__(self) -> None:
        self._answers: list[ring_pb2.RelayAnswer] = []
        self._tails: list[bytes] = []
        self._shared: bytes | None = None
        self._tail = b""
        self.unsent: Counter[int] = Counter()
        self.bytes = 0

    def respond(self, session: int, response: bytes, tail: bytes = b"") -> None:
        """Append a serialized AttendResponse; one that is equal to the one before it is not repeated.

        In between no other session has got anything, so none of them gets it out of order. tail: its end, if
        that is the same object for many; a message has it once.
        """
        self.unsent[session] += 1
        if (response is self._shared or response == self._shared) and tail is self._tail:
            self._answers[-1].sessions.append(session)
            return
        self._shared, self._tail = response, tail
        self._answers.append(ring_pb2.RelayAnswer(sessions=[session], response=response))
        self._tails.append(tail)
        self.bytes += len(response)

    def end(self, session: int, status: ring_pb2.RelayedStatus) -> None:
        """Append the end of a session."""
        self._shared = None
        self.unsent[session] += 1
        self._answers.append(ring_pb2.RelayAnswer(sessions=[session], status=status))
        self._tails.append(b"")

    def take(self) -> ring_pb2.RelayResponse | None:
        """Remove and return the answers of the next message; None if there are none."""
        if not self._answers:
            return None
        count = size = 0
        while count < len(self._answers) and (not count or size < BATCH_BYTES):
            size += len(self._answers[count].response)
            count += 1
        taken, self._answers = self._answers[:count], self._answers[count:]
        tails, self._tails = self._tails[:count], self._tails[count:]
        self.bytes -= size
        if not self._answers:
            self._shared = None
            self.unsent.clear()
        else:
            self.unsent.subtract([session for answer in taken for session in answer.sessions])
        places: dict[int, int] = {}
        for answer, tail in zip(taken, tails, strict=True):
            if tail:
                answer.tail = places.setdefault(id(tail), len(places) + 1)
        common = {id(tail): tail for tail in tails}
        return ring_pb2.RelayResponse(answers=taken, tails=[common[place] for place in places])
