"""Requests for tasks over one stream; a master older than StreamTasks gets separate calls."""

from __future__ import annotations

from collections.abc import Sequence

from elastane_common.client import MasterClient
from elastane_common.connection import ATTEMPT_SECONDS, new_request_id
from elastane_common.request_stream import RequestStream
from elastane_proto.v1 import shard_pb2, shard_pb2_grpc

WAIT_SECONDS = 20.0
"""Maximum time for which the master holds a request that it has no tasks for."""
REPEATED_UNANSWERED = 63
"""Value of `unanswered` in a repeated request with others after it: the master may know those already."""


class TaskStream(RequestStream[shard_pb2.StreamTasksRequest, shard_pb2.LeaseTasksResponse]):
    """LeaseTasks requests and their answers, in order. Used from one thread; `close` it.

    silence_seconds: time limit of an answer from a master that is connected. reads_ahead: as of
    `RequestStream`.
    """

    def __init__(
        self,
        client: MasterClient,
        *,
        silence_seconds: float = WAIT_SECONDS + ATTEMPT_SECONDS,
        reads_ahead: bool = False,
    ) -> None:
        super().__init__(
            client,
            shard_pb2_grpc.ShardServiceStub,
            "StreamTasks",
            answers_of=lambda message: (message.response, *message.more),
            together=_together,
            one_by_one=lambda message: client.lease_tasks(message.request),
            silence_seconds=silence_seconds,
            wait_seconds=WAIT_SECONDS,
            reads_ahead=reads_ahead,
        )

    @property
    def unanswered(self) -> tuple[shard_pb2.LeaseTasksRequest, ...]:
        """Requests without an answer, oldest first."""
        return tuple(message.request for message in self.waiting)

    def send(self, request: shard_pb2.LeaseTasksRequest) -> None:
        """Send a request; a later `receive` returns its answer."""
        request.request_id = request.request_id or new_request_id()
        request.unanswered = len(self.waiting)
        self.put(shard_pb2.StreamTasksRequest(request=request, reads_more=True))

    def dropped(self) -> None:
        # All but the newest have requests after them, which the master may already have processed.
        for message in list(self.waiting)[:-1]:
            message.request.unanswered = REPEATED_UNANSWERED


def _together(messages: Sequence[shard_pb2.StreamTasksRequest]) -> shard_pb2.StreamTasksRequest:
    joined = shard_pb2.StreamTasksRequest()
    joined.CopyFrom(messages[0])
    joined.more.extend([message.request for message in messages[1:]])
    return joined
