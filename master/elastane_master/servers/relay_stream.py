"""Sessions that a relay carries in one stream: each is a call of Attend, made within the master's process.

    relay -> RelayRequest: frames -> RelayedSession: Attend, behind the gate
    relay <- RelayResponse: answers <- of all sessions, as many as are ready

A session passes the gate with its own worker's metadata, so the relay's own rights give nothing to anybody.
Once it is admitted, its messages are decided on as they are read and its answers are taken as they are sent:
no task runs and nothing is written for a single message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn, Protocol

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from elastane_common.cancellation import end_all
from elastane_master.decisions.effects import WorkerMessage
from elastane_master.decisions.events import Rejection
from elastane_master.servers.binding import Malformed
from elastane_master.servers.errors import REFUSALS, status_of
from elastane_master.servers.gate import Gate, LocalContext, LocalHandlers
from elastane_proto.relay_batches import AnswerBatch, metadata_from_proto, metadata_to_proto
from elastane_proto.v1 import ring_pb2

logger = structlog.get_logger(__name__)

ATTEND: Final = "/elastane.v1.RingService/Attend"

REQUESTS_WAITING_MAX: Final = 100
REQUESTS_WAITING_BYTES_MAX: Final = 16 * 2**20
"""Limits of what a session sends before it is admitted: a worker sends Hello and waits for the answer.

A stream of its own is not read meanwhile; a relay's stream must be, for its other sessions.
"""

Encode = Callable[[WorkerMessage], tuple[bytes, bytes]]
"""Serializes a message in two parts; the second is the same object for all that have it in common."""


class Reading(Protocol):
    """Passes a worker's messages to the server of its job."""

    def take(self, request: ring_pb2.AttendRequest | Malformed, held_seconds: float) -> bool:
        """Decide on a message that the relay kept for so long; False once the session has ended.

        Raises the errors of a refusal.
        """

    def refuse(self, error: Exception) -> Awaitable[None]:
        """End the session for the error that `take` raised."""

    def over(self) -> None:
        """Handle the end of the messages."""


class _AbortedError(Exception):
    """The call ended with a status."""


class RelayedAttends:
    """Opens calls of Attend that a relay carries. handlers: as given to the master's server."""

    def __init__(self, gate: Gate, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        self._gate = gate
        self._handlers = LocalHandlers(gate, handlers)

    def origin(self, peer: str) -> str:
        """Return the address of a relay that gRPC calls `peer`, for the log."""
        return self._gate.origin(peer)

    async def handler(self, metadata: Sequence[tuple[str, str | bytes]]) -> Any:
        """Return the handler of a call with this metadata, which refuses whom the gate does not admit."""
        return await self._handlers.guarded(ATTEND, metadata)


class RelayedSession(LocalContext):
    """The context of a relayed call of Attend, and the part of its session that faces the relay.

    unread: number of its answers that have not been written to the relay.
    """

    def __init__(self, stream: RelayStream, number: int, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        self._stream = stream
        self._number = number
        self._metadata = tuple(metadata)
        self._requests: list[ring_pb2.AttendRequest | Malformed] = []
        self._waiting_bytes = 0
        self._surplus: Rejection | None = None
        self._requests_over = False
        self._news = asyncio.Event()
        self._reading: Reading | None = None
        self._encode: Encode | None = None
        self._trailing: list[tuple[str, str | bytes]] = []
        self._status: ring_pb2.RelayedStatus | None = None
        self._refusing: asyncio.Task[None] | None = None
        self.task: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------- for the call

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata

    def peer(self) -> str:
        return f"{self._stream.peer} session {self._number}"

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        self._trailing = list(metadata)

    async def write(self, message: bytes) -> None:
        """Queue an answer; the session is diverted, so there are few."""
        self._stream.respond(self._number, message)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Sequence[Any] = ()) -> NoReturn:
        """End the call with a status."""
        number: int = code.value[0]
        metadata = metadata_to_proto([*self._trailing, *trailing])
        self._status = ring_pb2.RelayedStatus(code=number, message=details, trailing_metadata=metadata)
        raise _AbortedError

    def read_by(self, reading: Reading, encode: Encode) -> None:
        """Give the requests to `reading` from now on; answers are taken with `encode`."""
        self._reading, self._encode = reading, encode
        waiting, self._requests = self._requests, []
        for request in waiting:
            self._take(request, 0.0)
        if self._surplus is not None:
            self._refuse(self._surplus)
        elif self._requests_over:
            self.requests_over()

    @property
    def unread(self) -> int:
        return self._stream.batch.unsent[self._number]

    def take(self, message: WorkerMessage) -> None:
        assert self._encode is not None
        try:
            self._stream.respond(self._number, *self._encode(message))
        except Exception:  # it must not end the decisions, of which it is an effect
            logger.exception("a message of a relayed session could not be sent", session=self._number)
            self.cancel()

    # ---------------------------------------------------------------- for the relay's stream

    def start(self, attends: RelayedAttends) -> None:
        """Begin the call."""
        self.task = asyncio.create_task(self._serve(attends))

    def request(self, payload: bytes, held_seconds: float) -> None:
        """Take a serialized request, which the relay kept for so long."""
        try:
            request: ring_pb2.AttendRequest | Malformed = ring_pb2.AttendRequest.FromString(payload)
        except DecodeError:
            request = Malformed("AttendRequest", len(payload))
        if self._reading is not None:
            self._take(request, held_seconds)
            return
        self._waiting_bytes += len(payload)
        if self._surplus is not None:
            return
        is_bytes = bool(self._requests) and self._waiting_bytes > REQUESTS_WAITING_BYTES_MAX
        if is_bytes or len(self._requests) >= REQUESTS_WAITING_MAX:
            self._surplus = Rejection(
                "limit_exceeded",
                f"the session sent more than {REQUESTS_WAITING_MAX} messages, or "
                f"{REQUESTS_WAITING_BYTES_MAX:,} bytes, before it was admitted",
                hint="send Hello, and wait for the answer",
                limit="messages before the answer to Hello",
                maximum=REQUESTS_WAITING_MAX,
            )
        else:
            self._requests.append(request)
        self._news.set()

    def requests_over(self) -> None:
        """The worker sends nothing more."""
        self._requests_over = True
        self._news.set()
        if self._reading is not None and self._refusing is None:
            self._reading.over()

    def cancel(self) -> None:
        """The worker's stream broke."""
        if self.task is not None:
            self.task.cancel()

    def _take(self, request: ring_pb2.AttendRequest | Malformed, held_seconds: float) -> None:
        assert self._reading is not None
        if self._refusing is not None or self._requests_over:
            return
        try:
            self._reading.take(request, held_seconds)
        except REFUSALS as error:
            self._refuse(error)
        except Exception:  # a bug costs this session, not the relay's others
            logger.exception("a message of a relayed session could not be handled", session=self._number)
            self.cancel()

    def _refuse(self, error: Exception) -> None:
        assert self._reading is not None
        if self._refusing is None:
            self._refusing = asyncio.create_task(self._refused(self._reading, error))

    async def _refused(self, reading: Reading, error: Exception) -> None:
        try:
            await reading.refuse(error)
        except Exception:  # a bug costs this session, as in `_take`
            logger.exception("a relayed session could not be refused", session=self._number)
            self.cancel()

    async def _serve(self, attends: RelayedAttends) -> None:
        status = ring_pb2.RelayedStatus(
            code=grpc.StatusCode.UNKNOWN.value[0], message="it ended unexpectedly"
        )
        try:
            handler = await attends.handler(self._metadata)
            await handler.stream_stream(self._messages(), self)
            metadata = metadata_to_proto(self._trailing)
            status = ring_pb2.RelayedStatus(code=0, trailing_metadata=metadata)
        except _AbortedError:
            assert self._status is not None
            status = self._status
        except asyncio.CancelledError:
            status = ring_pb2.RelayedStatus(code=grpc.StatusCode.CANCELLED.value[0], message="cancelled")
            raise
        except Exception:  # gRPC does the same for a call of its own: the worker gets UNKNOWN
            logger.exception("a relayed session ended unexpectedly", session=self._number)
        finally:
            self._stream.ended(self._number, status)

    async def _messages(self) -> AsyncIterator[ring_pb2.AttendRequest | Malformed]:
        while True:
            while self._requests:
                yield self._requests.pop(0)
            if self._surplus is not None:
                raise self._surplus
            if self._requests_over:
                return
            await self._news.wait()
            self._news.clear()


class RelayStream:
    """One relay's stream. Used from one event loop. peer: the relay. batch: answers to be written."""

    def __init__(self, attends: RelayedAttends, peer: str, sessions_max: int) -> None:
        self.peer = peer
        self.batch = AnswerBatch()
        self._attends = attends
        self._sessions_max = sessions_max
        self._sessions: dict[int, RelayedSession] = {}
        self._newest = 0
        self._over = False
        self._failure: Exception | None = None
        self._news = asyncio.Event()

    async def read(self, requests: AsyncIterator[ring_pb2.RelayRequest | Malformed]) -> None:
        """Take the relay's messages until it sends nothing more."""
        try:
            async for request in requests:
                if isinstance(request, Malformed):
                    raise request.rejection()
                for frame in request.frames:
                    self._take(frame)
        except Rejection as refusal:
            self._failure = refusal
        except Exception:  # its sessions must not wait for a relay that nobody reads
            logger.exception("a relay's stream could not be read", relay=self.peer)
            self._failure = Rejection("internal", "the relay's stream could not be read", hint="open another")
        finally:
            self._over = True
            self._news.set()

    async def responses(self) -> AsyncIterator[bytes]:
        """Yield the messages for the relay until it has ended its side and its sessions are over.

        Raises Rejection for a message that no relay sends.
        """
        while True:
            while (response := self.batch.take()) is not None:
                yield response.SerializeToString()
            if self._failure is not None:
                raise self._failure
            if self._over and not self._sessions:
                return
            await self._news.wait()
            self._news.clear()

    async def close(self) -> None:
        """End all sessions as broken streams."""
        await end_all([session.task for session in self._sessions.values() if session.task is not None])

    def respond(self, session: int, response: bytes, tail: bytes = b"") -> None:
        """Send a serialized AttendResponse with whatever else is ready."""
        self.batch.respond(session, response, tail)
        self._news.set()

    def ended(self, session: int, status: ring_pb2.RelayedStatus) -> None:
        """Report the end of a session."""
        self._sessions.pop(session, None)
        self.batch.end(session, status)
        self._news.set()

    def _take(self, frame: ring_pb2.RelayFrame) -> None:
        part = frame.WhichOneof("part")
        if part == "open":
            self._open(frame)
            return
        session = self._sessions.get(frame.session)
        if session is None:
            return  # it has ended here, and the relay did not know yet
        if part == "request":
            session.request(frame.request, frame.held_milliseconds / 1000)
        elif frame.end == ring_pb2.RELAYED_END_REQUESTS_OVER:
            session.requests_over()
        else:
            session.cancel()

    def _open(self, frame: ring_pb2.RelayFrame) -> None:
        if frame.session <= self._newest:
            raise Rejection(
                "invalid_argument",
                f"session {frame.session} is opened after session {self._newest}",
                hint="number the sessions of a stream in the order in which they are opened, from 1",
                field="session",
            )
        self._newest = frame.session
        if len(self._sessions) >= self._sessions_max:
            refusal = Rejection(
                "busy",
                f"the relay already carries {len(self._sessions)} sessions",
                hint="ELASTANE_SESSIONS_PER_RELAY_MAX of the master raises the limit; see docs/limits.md",
                limit="sessions_per_relay_max",
                maximum=self._sessions_max,
            )
            self.batch.end(frame.session, _status_of(refusal))
            self._news.set()
            return
        session = RelayedSession(self, frame.session, metadata_from_proto(frame.open.metadata))
        self._sessions[frame.session] = session
        session.start(self._attends)


def _status_of(refusal: Rejection) -> ring_pb2.RelayedStatus:
    """Return the typed error of a session that is not opened."""
    status = rpc_status.to_status(status_of(refusal))
    number: int = status.code.value[0]
    metadata = metadata_to_proto(status.trailing_metadata)
    return ring_pb2.RelayedStatus(code=number, message=status.details, trailing_metadata=metadata)
