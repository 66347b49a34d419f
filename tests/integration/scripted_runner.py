"""A runner whose messages a test sends one by one, over the real stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

import grpc

import patience
from elastane_common.artifact_mark import check_mark
from elastane_proto.v1 import training_pb2, training_pb2_grpc

Request = training_pb2.RunnerServiceAttendRequest
Response = training_pb2.RunnerServiceAttendResponse
RankState = training_pb2.RankStatus.State


class ScriptedRunner:
    """One stream of one runner. received: what the master has sent and nobody has taken."""

    def __init__(self, channel: grpc.aio.Channel, runner_id: str = "runner-1", slots: int = 4) -> None:
        self.hello = training_pb2.RunnerHello(
            runner_id=runner_id, host="here", kind="process", slots=slots, algorithms=["digits"]
        )
        self._channel = channel
        self._outgoing: asyncio.Queue[Request | None] = asyncio.Queue()
        self.received: asyncio.Queue[Response | grpc.aio.AioRpcError | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ScriptedRunner:
        self._outgoing.put_nowait(Request(hello=self.hello))
        self._task = asyncio.create_task(self._attend())
        welcome = await self.next("welcome")
        assert welcome.welcome.lease.seconds > 0
        assert welcome.welcome.artifact_mark
        check_mark(welcome.welcome.artifact_url, welcome.welcome.artifact_mark)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _attend(self) -> None:
        async def messages() -> AsyncIterator[Request]:
            while (message := await self._outgoing.get()) is not None:
                yield message

        try:
            stub = training_pb2_grpc.RunnerServiceStub(self._channel)
            async for response in stub.Attend(messages()):
                self.received.put_nowait(response)
            self.received.put_nowait(None)
        except grpc.aio.AioRpcError as error:
            self.received.put_nowait(error)

    def send(self, **message: object) -> None:
        """Send one message, by its name in the oneof."""
        self._outgoing.put_nowait(Request(**message))

    async def next(self, kind: str) -> Response:
        """Return the next message, which must be of this kind. Raises the error that ended the stream."""
        async with patience.within(30):
            response = await self.received.get()
        if isinstance(response, grpc.aio.AioRpcError):
            raise response
        assert response is not None, "the stream has ended"
        assert response.WhichOneof("message") == kind, response
        return response

    # ---------------------------------------------------------------- whole conversations

    async def prepare(self) -> training_pb2.RunnerPrepare:
        """Answer the next Prepare with a port for each rank."""
        prepare = (await self.next("prepare")).prepare
        self._answer(prepare)
        return prepare

    def _answer(self, prepare: training_pb2.RunnerPrepare) -> None:
        endpoints = [
            training_pb2.RankEndpoint(rank=rank, host="127.0.0.1", port=20_000 + rank)
            for rank in prepare.ranks
        ]
        self.send(prepared=training_pb2.RunnerPrepared(attempt=prepare.attempt, endpoints=endpoints))

    async def launch(self) -> training_pb2.RunnerPrepare:
        """Carry the next launch through until its ranks run; return its Prepare."""
        prepare = await self.prepare()
        start = (await self.next("start")).start
        assert start.attempt == prepare.attempt
        for rank in prepare.ranks:
            self.report(prepare.attempt, rank, "RUNNING")
        return prepare

    async def until_stopped(self) -> tuple[set[int], training_pb2.RunnerStop]:
        """Carry out launches until the first Stop, and confirm that; return the ranks that were started."""
        started: set[int] = set()
        while True:
            async with patience.within(30):
                response = await self.received.get()
            assert isinstance(response, Response), response
            match response.WhichOneof("message"):
                case "prepare":
                    self._answer(response.prepare)
                case "start":
                    for endpoint in response.start.endpoints:
                        started.add(endpoint.rank)
                        self.report(response.start.attempt, endpoint.rank, "RUNNING")
                case "stop":
                    self.stopped(response.stop.attempt)
                    return started, response.stop

    def report(
        self, attempt: training_pb2.AttemptKey, rank: int, state: str, exit_code: int = 0, last_line: str = ""
    ) -> None:
        """Report a rank's state."""
        status = training_pb2.RankStatus(
            rank=rank, state=RankState.Value(f"STATE_{state}"), exit_code=exit_code, last_line=last_line
        )
        report = training_pb2.RankReport(attempt=attempt, status=status)
        self.send(rank_changed=training_pb2.RunnerRankChanged(report=report))

    def stopped(self, attempt: training_pb2.AttemptKey) -> None:
        """Say that nothing of an attempt is left here."""
        self.send(stopped=training_pb2.RunnerStopped(attempt=attempt))
