"""The program of a pod: a worker that connects to a real master and trains nothing.

It uses the product's `WorkerProtocol`, so drains, checkpoints and ring changes are those of a real job; its
steps are empty. It needs neither torch nor a process, so dozens fit into a test.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import grpc

from elastane.runtime.protocol import Outcome, WorkerProtocol
from elastane.runtime.session_machine import PERMANENT_CODES
from elastane_proto import contexts
from elastane_proto.v1 import ring_pb2, ring_pb2_grpc

EXIT_DONE, EXIT_RAISED, EXIT_UNREACHABLE, EXIT_KILLED = 0, 1, 4, 137
STEPS_PER_EPOCH = 1000
RECONNECT_SECONDS = 0.05


@dataclass
class Script:
    """The script of all workers of a job.

    ests: logical workers; steps: total number; step_seconds: duration of one; checkpoints: step by name, the
    contents of the job's checkpoint URL.
    """

    ests: int = 4
    steps: int = 10 * STEPS_PER_EPOCH
    step_seconds: float = 0.02
    checkpoints: dict[str, int] = field(default_factory=dict)


class Trainer:
    """One worker. `run` returns the exit code of its process; cancelling it emulates a SIGKILL."""

    def __init__(self, address: str, job: str, worker_id: str, script: Script) -> None:
        self.address, self.job, self.worker_id, self.script = address, job, worker_id, script
        self.protocol = WorkerProtocol()
        self.ranks: range = range(0)
        self._out: asyncio.Queue[ring_pb2.AttendRequest] = asyncio.Queue()
        self._step: asyncio.Task[None] | None = None
        self._exit_code: int | None = None

    async def run(self) -> int:
        """Stay connected to the master until the worker is finished or drained; return the exit code."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub = ring_pb2_grpc.RingServiceStub(channel)
            try:
                while self._exit_code is None:
                    try:
                        await self._attend(stub)
                    except grpc.aio.AioRpcError as error:
                        # When a connection is reset during a write, grpc.aio calls that INTERNAL.
                        if error.code().name in PERMANENT_CODES:
                            return EXIT_RAISED
                        await asyncio.sleep(RECONNECT_SECONDS)
                return self._exit_code
            finally:
                if self._step is not None:
                    self._step.cancel()

    def leave(self, reason: str, notice_seconds: float) -> None:
        """Ask to be drained at the next step boundary, as after SIGTERM or a spot notice."""
        message = ring_pb2.Leaving(reason=reason)
        message.notice.FromMilliseconds(int(notice_seconds * 1000))
        self.protocol.leaving = message
        self._send(ring_pb2.AttendRequest(leaving=message))

    # ------------------------------------------------------------------ session

    async def _attend(self, stub: ring_pb2_grpc.RingServiceStub) -> None:
        call = stub.Attend()
        self._out = asyncio.Queue()
        hello = self.protocol.hello(
            job=self.job,
            worker_id=self.worker_id,
            role=ring_pb2.WORKER_ROLE_RING,
            signature=ring_pb2.ScriptSignature(
                dataset_size=STEPS_PER_EPOCH * self.script.ests,
                batch_size=1,
                steps_per_epoch=STEPS_PER_EPOCH,
                epochs=10,
            ),
            host=self.worker_id,
            store_address=f"{self.worker_id}:1",
        )
        with contextlib.suppress(asyncio.InvalidStateError):  # the call has ended; handled below
            await call.write(ring_pb2.AttendRequest(hello=hello))
        writer = asyncio.create_task(self._write(call))
        beats = asyncio.create_task(self._beat())
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                self._receive(message)
            if self._exit_code is None and await call.code() != grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(await call.code(), None, None, details=await call.details())
        finally:
            writer.cancel()
            beats.cancel()
            call.cancel()

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                message = await self._out.get()
                await call.write(message)
                if message.HasField("bye"):
                    await call.done_writing()
                    return

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self._send(self.protocol.heartbeat())

    def _send(self, *messages: ring_pb2.AttendRequest) -> None:
        for message in messages:
            self._out.put_nowait(message)

    def _receive(self, message: ring_pb2.AttendResponse) -> None:
        outcome = self.protocol.receive(message)
        self._tell(outcome)
        if outcome.manifest is not None:
            self._complete(outcome.manifest)
        if message.HasField("prepared"):
            self._apply()
        self._settle()

    def _tell(self, outcome: Outcome) -> None:
        self._send(*outcome.send)
        if outcome.abort and self._step is not None:
            self._step.cancel()
            self._step = None
            self.protocol.lose_step()

    # ------------------------------------------------------------------ between two steps

    def _settle(self) -> None:
        protocol = self.protocol
        self._save()
        if self._exit_code is not None:
            return
        if protocol.done is not None or protocol.drain is not None:
            succeeded = protocol.done is not None and protocol.done.phase == "succeeded"
            self._bye(ring_pb2.BYE_REASON_FINISHED if succeeded else ring_pb2.BYE_REASON_DRAINED)
            return
        if protocol.load is not None:
            self._load(protocol.load)
        if protocol.go is not None:
            self._enter(protocol.go)
        if protocol.generation == 0 or protocol.changing:
            return
        if protocol.applied_step >= self.script.steps:
            self._bye(ring_pb2.BYE_REASON_FINISHED)
        elif self._step is None:
            self._step = asyncio.create_task(self._run_step(protocol.begin_step().step))

    def _load(self, load: ring_pb2.Load) -> None:
        protocol = self.protocol
        if not protocol.begin_replace(load.generation):
            return
        name, step = max(self.script.checkpoints.items(), key=lambda item: item[1], default=("", 0))
        loaded = ring_pb2.Loaded(generation=load.generation, step=step, checkpoint=name)
        loaded.contexts.extend(self._context(rank, step, delta=False) for rank in range(self.script.ests))
        self._tell(protocol.loaded(loaded))

    def _context(self, rank: int, step: int, *, delta: bool) -> contexts.common_pb2.EstContext:
        parts = {"rng/python": b"%d of %d" % (step, rank), "loader": contexts.pack_loader(0, step, 7)}
        return contexts.context_to_proto(rank, step, parts, delta=delta)

    def _enter(self, go: ring_pb2.Go) -> None:
        if self.protocol.fenced != go.generation:
            return
        mine = next(member for member in go.members if member.worker_id == self.worker_id)
        self.ranks = range(mine.ests.start, mine.ests.end)
        self.protocol.lose_step()
        self.protocol.entered(go.generation, go.resume_step, list(go.extra.ready_order))

    # ------------------------------------------------------------------ the step

    async def _run_step(self, step: int) -> None:
        await asyncio.sleep(self.script.step_seconds)
        report = ring_pb2.StepReport(
            generation=self.protocol.generation, step=step, epoch=step // STEPS_PER_EPOCH
        )
        for rank in self.ranks:
            report.contexts.append(self._context(rank, step + 1, delta=True))
            position = (step % STEPS_PER_EPOCH) * self.script.ests + rank
            task = report.tasks.add(virtual_rank=rank, samples=[position])
            task.range.start, task.range.end = position, position + 1
        if step == 0 and 0 in self.ranks:
            report.extra.ready_order.append(0)
        self._tell(self.protocol.report(report))

    def _apply(self) -> None:
        protocol, step = self.protocol, self.protocol.applied_step
        if protocol.may_apply(step) and protocol.begin_apply(step):
            self._step = None
            self._tell(protocol.end_apply(step))

    def _save(self) -> None:
        message, self.protocol.checkpoint = self.protocol.checkpoint, None
        if message is None:
            return
        if message.step != self.protocol.applied_step:
            self.protocol.checkpoint = message if message.step > self.protocol.applied_step else None
            return
        saved = ring_pb2.Saved(checkpoint=message.checkpoint, step=message.step, shard=message.shard)
        saved.file, saved.sha256, saved.bytes = "shard", "0" * 64, 8
        self._tell(self.protocol.saved(saved))

    def _complete(self, message: ring_pb2.Checkpoint) -> None:
        self.script.checkpoints[message.checkpoint] = message.step
        saved = ring_pb2.Saved(checkpoint=message.checkpoint, step=message.step, complete=True)
        self._tell(self.protocol.saved(saved))

    def _bye(self, reason: ring_pb2.ByeReason) -> None:
        self._exit_code = EXIT_DONE
        bye = ring_pb2.Bye(reason=reason, applied_step=self.protocol.applied_step)
        self._send(ring_pb2.AttendRequest(bye=bye))
