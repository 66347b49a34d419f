"""Requests for tasks over one stream instead of a call each: no answer is lost, no request counts twice.

A stream that breaks (the master was killed, another leads now) is opened again with the next call of
`receive`, and what was not answered is sent again, in order and with its ids: the master gives the answers
it gave before. A master of before StreamTasks is asked call by call.
"""

from __future__ import annotations

import queue
from collections import deque
from typing import Any

import grpc

from elastane.client import MasterClient, StreamEndedError, call_metadata, new_request_id
from elastane_proto.v1 import shard_pb2, shard_pb2_grpc

WAIT_SECONDS = 20.0
"""How long the master keeps a request that it has no tasks for, at most."""


class TaskStream:
    """LeaseTasks requests and their answers, in order. Used from one thread; `close` it."""

    def __init__(self, client: MasterClient) -> None:
        self._client = client
        self._unanswered: deque[shard_pb2.LeaseTasksRequest] = deque()
        self._outgoing: queue.SimpleQueue[shard_pb2.StreamTasksRequest | None] = queue.SimpleQueue()
        self._call: Any = None  # both a call and an iterator
        self._one_by_one = False

    @property
    def unanswered(self) -> tuple[shard_pb2.LeaseTasksRequest, ...]:
        """Requests without an answer, oldest first."""
        return tuple(self._unanswered)

    def send(self, request: shard_pb2.LeaseTasksRequest) -> None:
        """Asks; the answer is that of a later `receive`."""
        request.request_id = request.request_id or new_request_id()
        request.unanswered = len(self._unanswered)
        self._unanswered.append(request)
        if self._call is not None:
            self._outgoing.put(shard_pb2.StreamTasksRequest(request=request))

    def receive(self) -> shard_pb2.LeaseTasksResponse:
        """The answer to the oldest request without one; waits for it, and for a master that is away.

        Raises RequestRefusedError and MasterUnreachableError.
        """
        response = None if self._one_by_one else self._client.retried(self._next, wait_seconds=WAIT_SECONDS)
        if response is None:
            response = self._client.lease_tasks(self._unanswered[0])
        self._unanswered.popleft()
        return response

    def close(self) -> None:
        """Ends the stream; what was not answered may have been decided on or not."""
        self._drop()

    def _next(self, channel: grpc.Channel) -> shard_pb2.LeaseTasksResponse | None:
        """The next answer; None from a master that knows no streams."""
        if self._call is None:
            self._open(channel)
        try:
            response: shard_pb2.LeaseTasksResponse = next(self._call).response
            return response
        except StopIteration:
            self._drop()
            raise StreamEndedError("the master ended the stream") from None
        except grpc.RpcError as error:
            self._drop()
            if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.UNIMPLEMENTED:
                self._one_by_one = True
                return None
            raise

    def _open(self, channel: grpc.Channel) -> None:
        self._outgoing = queue.SimpleQueue()
        for request in self._unanswered:
            self._outgoing.put(shard_pb2.StreamTasksRequest(request=request))
        requests = iter(self._outgoing.get, None)
        self._call = shard_pb2_grpc.ShardServiceStub(channel).StreamTasks(requests, metadata=call_metadata())

    def _drop(self) -> None:
        self._outgoing.put(None)  # lets the thread go that sends
        if self._call is not None:
            self._call.cancel()
        self._call = None
