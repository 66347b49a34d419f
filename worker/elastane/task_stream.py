"""Requests for tasks over one stream instead of separate calls: no answer is lost, no request counts twice.

A stream that breaks (the master was killed, another leads now) is reopened by the next call of `receive`, and
unanswered requests are sent again, in order and with their ids: the master repeats its earlier answers. The
same happens if no answer comes, because the master may be cut off. A master older than StreamTasks gets
separate calls.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import Any

import grpc

from elastane_common.client import MasterClient
from elastane_common.client_errors import StreamEndedError
from elastane_common.connection import ATTEMPT_SECONDS, call_metadata, new_request_id
from elastane_proto.v1 import shard_pb2, shard_pb2_grpc

WAIT_SECONDS = 20.0
"""Maximum time for which the master holds a request that it has no tasks for."""
REPEATED_UNANSWERED = 63
"""Value of `unanswered` in a repeated request with others after it: the master may know those already."""


class TaskStream:
    """LeaseTasks requests and their answers, in order. Used from one thread; `close` it.

    silence_seconds: time limit of an answer from a master that is connected.
    """

    def __init__(
        self, client: MasterClient, *, silence_seconds: float = WAIT_SECONDS + ATTEMPT_SECONDS
    ) -> None:
        self._client = client
        self._silence_seconds = silence_seconds
        self._watch: _SilenceWatch | None = None
        self._unanswered: deque[shard_pb2.LeaseTasksRequest] = deque()
        self._outgoing: queue.SimpleQueue[shard_pb2.StreamTasksRequest | None] = queue.SimpleQueue()
        self._call: Any = None  # both a call and an iterator
        self._one_by_one = False

    @property
    def unanswered(self) -> tuple[shard_pb2.LeaseTasksRequest, ...]:
        """Requests without an answer, oldest first."""
        return tuple(self._unanswered)

    def send(self, request: shard_pb2.LeaseTasksRequest) -> None:
        """Send a request; a later `receive` returns its answer."""
        request.request_id = request.request_id or new_request_id()
        request.unanswered = len(self._unanswered)
        self._unanswered.append(request)
        if self._call is not None:
            self._outgoing.put(shard_pb2.StreamTasksRequest(request=request))

    def receive(self) -> shard_pb2.LeaseTasksResponse:
        """Wait for the answer to the oldest unanswered request, reconnecting if the master is unreachable.

        Raises RequestRefusedError and MasterUnreachableError.
        """
        response = None
        if not self._one_by_one:
            stub = shard_pb2_grpc.ShardServiceStub
            response = self._client.retried(stub, self._next, wait_seconds=WAIT_SECONDS)
        if response is None:
            response = self._client.lease_tasks(self._unanswered[0])
        self._unanswered.popleft()
        return response

    def close(self) -> None:
        """End the stream; unanswered requests may or may not have taken effect."""
        self._drop()

    def _next(self, service: shard_pb2_grpc.ShardServiceStub) -> shard_pb2.LeaseTasksResponse | None:
        """Return the next answer, or None if the master does not support streams."""
        if self._call is None:
            self._open(service)
        assert self._watch is not None
        watch = self._watch
        try:
            watch.waiting_since = time.monotonic()
            response: shard_pb2.LeaseTasksResponse = next(self._call).response
            watch.waiting_since = None
            return response
        except StopIteration:
            self._drop()
            raise StreamEndedError("the master ended the stream") from None
        except grpc.RpcError as error:
            self._drop()
            if watch.silent:
                raise StreamEndedError(f"no answer for {self._silence_seconds:g} s") from None
            if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNIMPLEMENTED:
                self._one_by_one = True
                return None
            raise

    def _open(self, service: shard_pb2_grpc.ShardServiceStub) -> None:
        self._outgoing = queue.SimpleQueue()
        for request in self._unanswered:
            self._outgoing.put(shard_pb2.StreamTasksRequest(request=request))
        requests = iter(self._outgoing.get, None)
        self._call = service.StreamTasks(requests, metadata=call_metadata())
        self._watch = _SilenceWatch(self._call, self._silence_seconds)

    def _drop(self) -> None:
        self._outgoing.put(None)  # ends the sending thread
        if self._watch is not None:
            self._watch.close()
        if self._call is not None:
            self._call.cancel()
            # All but the newest have requests after them, which the master may already have processed.
            for request in list(self._unanswered)[:-1]:
                request.unanswered = REPEATED_UNANSWERED
        self._call = self._watch = None


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
        threading.Thread(target=self._run, name="elastane-task-stream", daemon=True).start()

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
