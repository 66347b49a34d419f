"""The worker's end of a relayed session: its answers wait here until the worker reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, Protocol

import grpc
from google.rpc import status_pb2

from elastane_proto.relay_batches import metadata_to_proto
from elastane_proto.v1 import errors_pb2, ring_pb2

ANSWERS_MAX: Final = 1000
"""Unread answers of a session; as the master's `session_messages_max`."""


class Downstream(Protocol):
    """Who gets a session's answers: a worker's stream, or that of another relay."""

    def respond(self, response: bytes, tail: bytes) -> bool:
        """Take a serialized AttendResponse, whose end may be the same object for many.

        False if it does not read, and the session is over.
        """

    def end(self, status: ring_pb2.RelayedStatus) -> None:
        """Take the end of the session."""


class WorkerStream:
    """Answers of one session, for the handler that writes them to the worker. Used from one event loop."""

    def __init__(self, answers_max: int = ANSWERS_MAX) -> None:
        self._answers_max = answers_max
        self._answers: deque[tuple[bytes, bytes]] = deque()
        self._news = asyncio.Event()
        self.status: ring_pb2.RelayedStatus | None = None

    def respond(self, response: bytes, tail: bytes = b"") -> bool:
        if self.status is not None:
            return False
        if len(self._answers) >= self._answers_max:
            self._answers.clear()
            text = f"the worker did not read {self._answers_max} messages, and its relay keeps no more"
            self.end(refusal(grpc.StatusCode.ABORTED, errors_pb2.ERROR_REASON_EVICTED, text, "connect again"))
            return False
        self._answers.append((response, tail))
        self._news.set()
        return True

    def end(self, status: ring_pb2.RelayedStatus) -> None:
        if self.status is None:
            self.status = status
            self._news.set()

    async def answers(self) -> AsyncIterator[bytes]:
        """Yield the answers in order; `status` is then set."""
        while True:
            while self._answers:
                yield b"".join(self._answers.popleft())
            if self.status is not None:
                return
            await self._news.wait()
            self._news.clear()


def refusal(
    code: grpc.StatusCode, reason: errors_pb2.ErrorReason, text: str, hint: str = ""
) -> ring_pb2.RelayedStatus:
    """Return the status of a refusal by this relay, in the form of the master's, to be tried again."""
    number: int = code.value[0]
    status = status_pb2.Status(code=number, message=text)
    status.details.add().Pack(errors_pb2.ErrorDetail(reason=reason, hint=hint, retryable=True))
    details = ("grpc-status-details-bin", status.SerializeToString())
    return ring_pb2.RelayedStatus(code=number, message=text, trailing_metadata=metadata_to_proto([details]))


def away(text: str) -> ring_pb2.RelayedStatus:
    """Return the status of a session whose master cannot be reached through this relay now."""
    number: int = grpc.StatusCode.UNAVAILABLE.value[0]
    return ring_pb2.RelayedStatus(code=number, message=text)
