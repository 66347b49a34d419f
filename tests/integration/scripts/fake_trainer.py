"""A worker that speaks the ring's protocol and trains nothing: no torch, no all-reduce, a few ms a step.

    fake_trainer.py STEPS STEP_SECONDS [FILE]

It joins with the environment the agent gives, does STEPS steps in its ring, drains on SIGTERM, comes back
to a restarted master, and leaves as a real worker does. The last step waits while somebody has FILE locked.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import grpc

from elastane_proto.contexts import context_to_proto, pack_loader
from elastane_proto.v1 import ring_pb2, ring_pb2_grpc

STEPS, STEP_SECONDS = int(sys.argv[1]), float(sys.argv[2])
LOCKED = Path(sys.argv[3]) if len(sys.argv) > 3 else None
ESTS = int(os.environ["ELASTANE_ESTS"])
WORKER = os.environ["ELASTANE_WORKER_ID"]
DRAINED = int(os.environ["ELASTANE_DRAIN_EXIT_CODE"])
BATCH = 2

Request = ring_pb2.AttendRequest


class Trainer:
    """The state of one worker; all of it belongs to the thread that reads the stream."""

    def __init__(self) -> None:
        self.applied = 0
        self.generation = 0
        self.fenced = 0
        self.holds_state = False
        self.ranks = range(0)
        self.last: Request | None = None
        self.outgoing: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self.leaving = False

    def hello(self) -> Request:
        signature = ring_pb2.ScriptSignature(
            dataset_size=STEPS * ESTS * BATCH, batch_size=BATCH, steps_per_epoch=STEPS, epochs=1
        )
        return Request(
            hello=ring_pb2.Hello(
                job=os.environ["ELASTANE_JOB"], worker_id=WORKER, role=ring_pb2.WORKER_ROLE_RING,
                signature=signature, host="here", pid=os.getpid(), store_address=f"here:{os.getpid()}",
                generation=self.generation, applied_step=self.applied, holds_state=self.holds_state,
            )
        )  # fmt: skip

    def send(self, request: Request, *, keep: bool = False) -> None:
        if keep:
            self.last = request
        self.outgoing.put(request)

    def leave(self) -> None:
        self.leaving = True
        self.send(Request(leaving=ring_pb2.Leaving(reason=self.why_it_leaves())))

    def why_it_leaves(self) -> str:
        """As a worker's environment reads it, without what that imports."""
        try:
            told = json.loads(Path(os.environ["ELASTANE_NOTICE_FILE"]).read_text())
        except OSError:
            return "SIGTERM"
        return str(told.get("workers", {}).get(WORKER, told).get("reason", "SIGTERM"))

    def contexts(self, ranks: range, step: int) -> list:
        return [context_to_proto(rank, step, {"loader": pack_loader(0, step, 1)}) for rank in ranks]

    def report(self) -> None:
        time.sleep(STEP_SECONDS * random.uniform(0.5, 1.5))
        step = self.applied
        if LOCKED is not None and step == STEPS - 1:
            with LOCKED.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH)
        report = ring_pb2.StepReport(generation=self.generation, step=step, epoch=0)
        report.contexts.extend(self.contexts(self.ranks, step + 1))
        for rank in self.ranks:
            start = (step * ESTS + rank) * BATCH
            task = report.tasks.add(virtual_rank=rank, samples=range(start, start + BATCH))
            task.range.start, task.range.end = start, start + BATCH
        self.send(Request(step_report=report), keep=True)

    def ready(self, generation: int) -> None:
        self.fenced = generation
        self.send(
            Request(
                ready=ring_pb2.Ready(
                    generation=generation, applied_step=self.applied, holds_state=self.holds_state
                )
            ),
            keep=True,
        )

    # Each handler returns the exit code that ends the process, or None.

    def welcome(self, message: ring_pb2.Welcome) -> int | None:
        if not message.resumed:
            self.generation = 0
        elif self.last is not None:
            self.send(self.last)
        if self.leaving:
            self.leave()
        return None

    def prepare(self, message: ring_pb2.Prepare) -> int | None:
        if message.generation > self.fenced:
            self.ready(message.generation)
        return None

    def load(self, message: ring_pb2.Load) -> int | None:
        self.holds_state, self.applied = True, 0
        loaded = ring_pb2.Loaded(generation=message.generation, step=0)
        loaded.contexts.extend(self.contexts(range(ESTS), 0))
        self.send(Request(loaded=loaded), keep=True)
        return None

    def go(self, message: ring_pb2.Go) -> int | None:
        if message.generation <= self.generation:
            return None
        mine = next(member.ests for member in message.members if member.worker_id == WORKER)
        self.generation, self.applied = message.generation, message.resume_step
        self.ranks, self.holds_state = range(mine.start, mine.end), True
        return self.next_step()

    def prepared(self, message: ring_pb2.Prepared) -> int | None:
        if message.generation != self.generation or message.step != self.applied:
            return None
        self.applied += 1
        if message.HasField("then_checkpoint"):
            self.save(message.then_checkpoint)
        if message.HasField("then_prepare"):
            return self.prepare(message.then_prepare)
        return self.next_step()

    def next_step(self) -> int | None:
        if self.applied == STEPS:
            return self.bye(ring_pb2.BYE_REASON_FINISHED, 0)
        self.report()
        return None

    def checkpoint(self, message: ring_pb2.Checkpoint) -> int | None:
        if message.manifest:
            saved = ring_pb2.Saved(checkpoint=message.checkpoint, step=message.step, complete=True)
            self.send(Request(saved=saved))
        else:
            self.save(message)
        return None

    def save(self, message: ring_pb2.Checkpoint) -> None:
        saved = ring_pb2.Saved(
            checkpoint=message.checkpoint,
            step=message.step,
            shard=message.shard,
            file="f",
            sha256="0",
            bytes=1,
        )
        self.send(Request(saved=saved))

    def drain(self, message: ring_pb2.Drain) -> int | None:
        return self.bye(ring_pb2.BYE_REASON_DRAINED, DRAINED)

    def done(self, message: ring_pb2.Done) -> int | None:
        return self.bye(ring_pb2.BYE_REASON_DRAINED, 0 if message.phase == "succeeded" else DRAINED)

    def bye(self, reason: ring_pb2.ByeReason, code: int) -> int:
        self.send(Request(bye=ring_pb2.Bye(reason=reason, applied_step=self.applied)))
        self.outgoing.put(None)
        return code


def heartbeats(trainer: Trainer) -> None:
    while True:
        time.sleep(0.5)
        heartbeat = ring_pb2.Heartbeat(generation=trainer.generation, applied_step=trainer.applied)
        heartbeat.phase = ring_pb2.TRAINER_PHASE_STEP
        trainer.outgoing.put(Request(heartbeat=heartbeat))


def attend(trainer: Trainer, address: str) -> int | None:
    """One stream to the master at `address`; the exit code, or None when it broke."""
    outgoing = trainer.outgoing = queue.SimpleQueue()

    def requests() -> Iterator[Request]:
        yield trainer.hello()
        while (request := outgoing.get()) is not None:
            yield request

    code = None
    with grpc.insecure_channel(address) as channel:
        try:
            for response in ring_pb2_grpc.RingServiceStub(channel).Attend(requests()):
                kind = response.WhichOneof("message")
                if code is None:
                    code = getattr(trainer, kind)(getattr(response, kind))
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN):
                print(f"refused: {error.details()}", file=sys.stderr)
                return 82
        finally:
            outgoing.put(None)
    return code


def main() -> None:
    trainer = Trainer()
    signal.signal(signal.SIGTERM, lambda *_: trainer.leave())
    threading.Thread(target=heartbeats, args=(trainer,), daemon=True).start()
    for address in cycle(os.environ["ELASTANE_MASTER"].split(",")):
        code = attend(trainer, address)
        if code is not None:
            print(f"ended at step {trainer.applied}")
            sys.exit(code)
        time.sleep(0.05)


main()
