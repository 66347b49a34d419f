"""Requests over one stream instead of separate calls: no answer is lost, no request counts twice.

A stream that breaks (the master was killed, another leads now) is reopened by the next call of `receive`, and
unanswered requests are sent again, in order and with their ids: the master repeats its earlier answers. The
same happens if no answer comes, because the master may be cut off.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf import message as protobuf

from elastane_common.client_errors import StreamEndedError
from elastane_common.connection import MasterConnection, call_metadata

Message = TypeVar("Message", bound=protobuf.Message)
Answer = TypeVar("Answer")

TOGETHER_MAX = 32
"""Limit on requests in one message: the master begins with the first while others are still on their way."""
TOGETHER_BYTES_MAX = 64 * 1024
"""Size limit of such a message; a larger request is sent by itself."""


class RequestStream(Generic[Message, Answer]):
    """Messages of one bidirectional streaming rpc and their answers, in order.

    stub, method: of the rpc. answers_of: returns the answers in a message from the master. together: merges
    messages that are waiting to be sent into one; used only if the master reads such messages (`reads_more`
    in its first answer). one_by_one: gets an answer from a master that does not have the rpc yet.
    silence_seconds: time limit for an answer from a connected master; wait_seconds: the part of it for which
    the master may hold an answer back. waiting: unanswered messages, oldest first. reads_ahead: a thread
    reads answers as they arrive, so that `ready` can tell whether there is one. Used from one thread; `close`
    it.
    """

    def __init__(
        self,
        client: MasterConnection,
        stub: Callable[[grpc.Channel], Any],
        method: str,
        *,
        answers_of: Callable[[Any], Iterable[Answer]],
        together: Callable[[Sequence[Message]], Message],
        one_by_one: Callable[[Message], Answer],
        silence_seconds: float,
        wait_seconds: float = 0.0,
        reads_ahead: bool = False,
    ) -> None:
        self._client, self._stub, self._method = client, stub, method
        self._answers_of, self._together, self._ask = answers_of, together, one_by_one
        self._silence_seconds = silence_seconds
        self._wait_seconds = wait_seconds
        self._reads_ahead = reads_ahead
        self._reader: _Reader[Any] | None = None
        self._watch: _SilenceWatch | None = None
        self.waiting: deque[Message] = deque()
        self._answers: deque[Answer] = deque()
        self._outgoing = _Outgoing(together)
        self._call: Any = None  # both a call and an iterator
        self._one_by_one = False

    def put(self, message: Message) -> None:
        """Send a message; a later `receive` returns its answer."""
        self.waiting.append(message)
        if self._call is not None:
            self._outgoing.put(message)

    def receive(self) -> Answer:
        """Wait for the answer to the oldest waiting message, reconnecting if the master is unreachable.

        Raises RequestRefusedError and MasterUnreachableError.
        """
        if not self._answers and not self._one_by_one:
            self._client.retried(self._stub, self._read, wait_seconds=self._wait_seconds)
        answer = self._answers.popleft() if self._answers else self._ask(self.waiting[0])
        self.waiting.popleft()
        return answer

    @property
    def ready(self) -> bool:
        """True if `receive` will not wait; with `reads_ahead`, or where several answers came together."""
        return bool(self._answers) or (self._reader is not None and self._reader.ready)

    def close(self) -> None:
        """End the stream; unanswered requests may or may not have taken effect."""
        self._drop()

    def dropped(self) -> None:
        """Called when a stream has ended and waiting messages will be sent again. To be overridden."""

    def _read(self, service: Any) -> None:
        """Read the next answers, or note that the master does not know the rpc."""
        if self._call is None:
            self._open(service)
        assert self._watch is not None
        watch = self._watch
        try:
            watch.waiting_since = time.monotonic()
            message = next(self._reader or self._call)
            watch.waiting_since = None
            if message.reads_more:
                self._outgoing.joins = True
            self._answers.extend(self._answers_of(message))
        except StopIteration:
            self._drop()
            raise StreamEndedError("the master ended the stream") from None
        except grpc.RpcError as error:
            self._drop()
            if watch.silent:
                raise StreamEndedError(f"no answer for {self._silence_seconds:g} s") from None
            if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNIMPLEMENTED:
                self._one_by_one = True
                return
            raise

    def _open(self, service: Any) -> None:
        self._outgoing = _Outgoing(self._together)
        for message in self.waiting:
            self._outgoing.put(message)
        self._call = getattr(service, self._method)(iter(self._outgoing), metadata=call_metadata())
        self._watch = _SilenceWatch(self._call, self._silence_seconds)
        self._reader = _Reader(self._call) if self._reads_ahead else None

    def _drop(self) -> None:
        self._outgoing.end()
        if self._watch is not None:
            self._watch.close()
        if self._call is not None:
            self._call.cancel()
            self.dropped()
        self._call = self._watch = self._reader = None


class _Outgoing(Generic[Message]):
    """Queue of messages for the thread that sends those of one call.

    joins: whatever is queued when that thread takes a message is sent together with it. So a client that is
    faster than its connection sends fewer messages, and no message waits for others.
    """

    def __init__(self, together: Callable[[Sequence[Message]], Message]) -> None:
        self.joins = False
        self._together = together
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def put(self, message: Message) -> None:
        self._queue.put(message)

    def end(self) -> None:
        """End the iteration, and with it the sending thread, after the messages queued so far."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[Message]:
        held: list[Message | None] = []  # taken from the queue, but sent after the messages before it
        while (first := held.pop() if held else self._queue.get()) is not None:
            messages, size_bytes = [first], first.ByteSize()
            while self.joins and len(messages) < TOGETHER_MAX and not self._queue.empty():
                message = self._queue.get()
                size_bytes += message.ByteSize() if message is not None else 0
                if message is None or size_bytes > TOGETHER_BYTES_MAX:
                    held.append(message)
                    break
                messages.append(message)
            yield first if len(messages) == 1 else self._together(messages)


class _Reader(Generic[Answer]):
    """Iterates over a call in a thread of its own, which ends with the call."""

    def __init__(self, call: Iterable[Answer]) -> None:
        self._call = call
        self._read: deque[Answer] = deque()
        self._end: BaseException | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="elastane-request-reader", daemon=True).start()

    @property
    def ready(self) -> bool:
        """True if there is a message that `next` has not returned."""
        return bool(self._read)

    def __next__(self) -> Answer:
        with self._changed:
            self._changed.wait_for(lambda: self._read or self._end is not None)
            if self._read:
                return self._read.popleft()
            assert self._end is not None
            raise self._end

    def _run(self) -> None:
        end: BaseException = StopIteration()
        try:
            for message in self._call:
                with self._changed:
                    self._read.append(message)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - raised where the next message is asked for
            end = error
        with self._changed:
            self._end = end
            self._changed.notify_all()


class _SilenceWatch:
    """Cancels a call whose answer takes too long: a stream has no deadline for one message.

    waiting_since: on time.monotonic's clock; None: nobody is waiting. silent: the call was cancelled for
    this.
    """

    def __init__(self, call: Any, seconds: float) -> None:
        self.waiting_since: float | None = None
        self.silent = False
        self._call = call
        self._seconds = seconds
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="elastane-request-stream", daemon=True).start()

    def close(self) -> None:
        """Stop watching: the call has ended."""
        self._closed.set()

    def _run(self) -> None:
        left = self._seconds
        while not self._closed.wait(left):
            since = self.waiting_since
            left = self._seconds if since is None else since + self._seconds - time.monotonic()
            if left <= 0:
                self.silent = True
                self._call.cancel()
                return
