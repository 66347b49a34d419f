"""Simulates many workers in one process: Attend sessions with a connection each.

attend_sessions.py ADDRESS JOB FIRST COUNT ESTS BYTES CHANGED PERIOD STEPS SEED RELAYED [DRAWS FORM]

Simulates COUNT workers, numbered from FIRST, of a job of ESTS, each with a context of BYTES in three parts,
of which CHANGED (1 to 3) are sent each step. With DRAWS the parts are instead the states of Python's and
torch's generators, each of which draws as many values a step; FORM is "whole", or "positions" where the words
stay the same. Workers send Hello and answer Prepare and Load as real ones do. When all have received Go it
prints "go" and waits for a line with a time (CLOCK_MONOTONIC). From then on all report their steps together,
every PERIOD seconds or as soon as the previous step is prepared, and send heartbeats at the interval of
Welcome. RELAYED: 0, or the number of workers on a host, whose sessions share a relay's stream; each host
sends the reports of its workers in one message. Prints JSON: for each step, when its last report was sent and
when each session received its Prepared.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import sys
import time
from itertools import pairwise

from bare_http2 import BareStream

from elastane_agent.relay.held_heartbeats import HeldHeartbeats
from elastane_proto.generator_positions import find_position
from elastane_proto.v1 import common_pb2, ring_pb2

CONNECTING_MAX = 100
"""Maximum number of connections opened at a time, because the kernel's backlog is short."""


class Worker:
    """One simulated worker and its session."""

    def __init__(self, group: Group, number: int) -> None:
        self.group = group
        self.number = number
        self.generation = 0
        self.ranks = range(0)
        self.bodies: list[bytes] = []
        self.prepared = -1
        self.stream: BareStream | None = None
        self.host: Host | None = None

    async def connect(self, host: str, port: int) -> None:
        if self.host is not None:
            await self.host.open(self, host, port)
        else:
            self.stream = BareStream("/elastane.v1.RingService/Attend", self.received, self.lost)
            await asyncio.get_running_loop().create_connection(lambda: self.stream, host, port)
        hello = ring_pb2.Hello(
            job=self.group.job,
            worker_id=f"w{self.number}",
            role=ring_pb2.WORKER_ROLE_RING,
            host=f"host{self.number}",
            pid=1 + self.number,
            store_address=f"10.0.{self.number >> 8}.{self.number & 255}:29500",
        )
        hello.signature.dataset_size = 1 << 40
        hello.signature.batch_size = 1
        hello.signature.steps_per_epoch = 1 << 20
        hello.signature.epochs = 1
        self.send(ring_pb2.AttendRequest(hello=hello))

    def send(self, message: ring_pb2.AttendRequest) -> None:
        self.send_bytes(message.SerializeToString())
        if self.host is not None:
            self.host.flush()

    def send_bytes(self, payload: bytes) -> None:
        """Send a serialized message, behind a relay with the host's next flush."""
        if self.host is not None:
            self.host.frame(self, payload)
        else:
            assert self.stream is not None
            self.stream.send(payload)

    def lost(self, why: str) -> None:
        if not self.group.over:
            self.group.fail(f"worker {self.number}: {why}")

    def received(self, payload: bytes) -> None:
        # Thousands of these arrive at once, so parse only the field number in the first byte (the tag).
        kind = payload[0] >> 3
        if kind == ring_pb2.AttendResponse.PREPARED_FIELD_NUMBER:
            prepared = ring_pb2.AttendResponse.FromString(payload).prepared
            assert prepared.generation == self.generation, "a Prepared of another generation"
            self.prepared = prepared.step
            self.group.got_prepared(prepared.step)
        elif kind == ring_pb2.AttendResponse.PREPARE_FIELD_NUMBER:
            generation = _first_number(payload)
            ready = ring_pb2.Ready(generation=generation, applied_step=0, holds_state=False)
            self.send(ring_pb2.AttendRequest(ready=ready))
        elif kind == ring_pb2.AttendResponse.LOAD_FIELD_NUMBER:
            self.load(ring_pb2.AttendResponse.FromString(payload).load.generation)
        elif kind == ring_pb2.AttendResponse.GO_FIELD_NUMBER:
            self.go(ring_pb2.Go.FromString(_nested(payload)))
        elif kind == ring_pb2.AttendResponse.WELCOME_FIELD_NUMBER:
            welcome = ring_pb2.AttendResponse.FromString(payload).welcome
            self.group.heartbeat_seconds = welcome.heartbeat_interval.ToTimedelta().total_seconds()
            self.group.welcomed.release()

    def load(self, generation: int) -> None:
        """Answer Load as the leader: send small initial contexts, which are not measured."""
        loaded = ring_pb2.Loaded(generation=generation, step=0)
        for rank in range(self.group.ests):
            loaded.contexts.add(virtual_rank=rank).rng.python = b"initial"
        self.send(ring_pb2.AttendRequest(loaded=loaded))

    def go(self, go: ring_pb2.Go) -> None:
        self.generation = go.generation
        self.ranks = range(go.contexts[0].virtual_rank, go.contexts[-1].virtual_rank + 1)
        if self.group.states is None:
            self.bodies = [self.group.body(self.generation, self.ranks, variant) for variant in (0, 1)]
        self.group.got_go()

    def report(self, step: int) -> None:
        if self.group.states is not None:
            body = self.group.drawn_body(self.generation, self.ranks, step)
        else:
            body = self.bodies[step % 2] if step else self.group.first_body(self.generation, self.ranks)
        # Serialized fields can be concatenated: append the step to the rest, which was serialized before.
        body += _tag(ring_pb2.StepReport.STEP_FIELD_NUMBER, 0) + _number(step)
        tag = _tag(ring_pb2.AttendRequest.STEP_REPORT_FIELD_NUMBER, 2)
        self.send_bytes(tag + _number(len(body)) + body)

    def beat(self) -> None:
        beat = ring_pb2.Heartbeat(
            generation=self.generation, applied_step=self.prepared + 1, phase=ring_pb2.TRAINER_PHASE_STEP
        )
        request = ring_pb2.AttendRequest(heartbeat=beat)
        if self.host is not None:
            self.host.beat(self, request.SerializeToString())
        else:
            self.send(request)


class Host:
    """The stream of a simulated relay, which carries the sessions of its workers."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = dict(enumerate(workers, 1))
        self.numbers = {worker: number for number, worker in self.workers.items()}
        self.stream = BareStream("/elastane.v1.RingService/Relay", self.received, workers[0].lost)
        self.frames: list[ring_pb2.RelayFrame] = []
        self.heartbeats = HeldHeartbeats()
        self.timer: asyncio.TimerHandle | None = None
        self.connected: asyncio.Task[object] | None = None
        for worker in workers:
            worker.host = self

    async def open(self, worker: Worker, host: str, port: int) -> None:
        """Open a worker's session; the first one connects."""
        if self.connected is None:
            loop = asyncio.get_running_loop()
            self.connected = loop.create_task(loop.create_connection(lambda: self.stream, host, port))
        await self.connected
        number = self.numbers[worker]
        # Numbers grow in the order in which sessions are opened, whichever worker comes first.
        if number != self.opened + 1:
            self.swap(worker, self.opened + 1)
        self.opened += 1
        self.frames.append(ring_pb2.RelayFrame(session=self.opened, open=ring_pb2.RelayedCall()))

    opened = 0

    def swap(self, worker: Worker, number: int) -> None:
        """Give a worker another's number, and that one its."""
        other, own = self.workers[number], self.numbers[worker]
        self.workers[number], self.workers[own] = worker, other
        self.numbers[worker], self.numbers[other] = number, own

    def frame(self, worker: Worker, payload: bytes) -> None:
        self.frames.append(ring_pb2.RelayFrame(session=self.numbers[worker], request=payload))

    def beat(self, worker: Worker, payload: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.heartbeats.hold(self.numbers[worker], payload, loop.time())
        assert self.heartbeats.due is not None
        if self.heartbeats.due <= loop.time():
            self.flush()
        elif self.timer is None:
            self.timer = loop.call_at(self.heartbeats.due, self.flush)

    def flush(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.frames[:0] = self.heartbeats.take(asyncio.get_running_loop().time())
        if self.frames:
            self.stream.send(ring_pb2.RelayRequest(frames=self.frames).SerializeToString())
            self.frames = []

    def received(self, payload: bytes) -> None:
        # The members of a ring, in a tail that all have in common, are not looked at.
        for answer in ring_pb2.RelayResponse.FromString(payload).answers:
            for number in answer.sessions:
                if answer.HasField("status"):
                    self.workers[number].lost(answer.status.message)
                else:
                    self.workers[number].received(answer.response)


class Group:
    """All workers of this process."""

    def __init__(
        self, job: str, first: int, count: int, ests: int, size: int, changed: int, seed: int, relayed: int
    ) -> None:
        self.job = job
        self.ests = ests
        self.over = False
        self.heartbeat_seconds = 1.0
        self.welcomed = asyncio.Semaphore(0)
        self.missing_go = count
        self.all_go = asyncio.Event()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.workers = [Worker(self, number) for number in range(first, first + count)]
        self.hosts = (
            [Host(self.workers[at : at + relayed]) for at in range(0, count, relayed)] if relayed else []
        )
        self.prepared_at: dict[int, list[float]] = {}
        self.sent_at: list[float] = []
        self.step_over = asyncio.Event()
        draw = random.Random(seed)
        # Parts as in a real context: generators of Python and NumPy (a quarter each) and torch (half).
        sizes = (size // 2, size // 4, size - size // 2 - size // 4)
        self.parts = [[draw.randbytes(length) for length in sizes] for _ in range(2)]
        self.changed = changed
        #: Generator states at the start of each step, the same for all ESTs; None: parts are random bytes.
        self.states: list[dict[str, bytes]] | None = None
        #: What is sent of them, by step.
        self.deltas: list[common_pb2.EstContext] = []

    def draw(self, draws: int, steps: int, form: str) -> None:
        """Compute the states of real generators for all steps. form: "whole" or "positions"."""
        assert form in ("whole", "positions"), form
        engine = random.Random(1)
        engine.getrandbits(32)
        self.states = []
        for _ in range(steps + 1):
            version, (*words, drawn), _ = engine.getstate()
            python = struct.pack("<I624II9s", version, *words, drawn, b"")
            torch = struct.pack("<QiiQ624Q40s", 1, 625 - drawn, 1, drawn, *words, b"")
            self.states.append({"python": python, "torch_cpu": torch})
            engine.getrandbits(32 * draws)
        for step, (before, after) in enumerate(pairwise(self.states)):
            delta = common_pb2.EstContext(delta=True)
            for name, state in after.items():
                part = f"rng/{name}"
                found = find_position(part, before[name], state) if step and form == "positions" else None
                if found is None:
                    setattr(delta.rng, name, state)
                else:
                    delta.positions.add(name=part, beside_words=found.beside_words, checksum=found.checksum)
            self.deltas.append(delta)

    def drawn_body(self, generation: int, ranks: range, step: int) -> bytes:
        """Serialize the StepReport of a step, with the generators' states after it."""
        report = ring_pb2.StepReport(generation=generation)
        for rank in ranks:
            context = report.contexts.add()
            context.CopyFrom(self.deltas[step])
            context.virtual_rank = rank
            report.tasks.add(virtual_rank=rank).range.CopyFrom(common_pb2.Range(start=rank, end=rank + 1))
        return report.SerializeToString()

    def fail(self, why: str) -> None:
        if not self.failed.done():
            self.failed.set_exception(RuntimeError(why))

    def body(self, generation: int, ranks: range, variant: int, changed: int | None = None) -> bytes:
        """Serialize a StepReport without its step. changed: number of parts of each context to include."""
        count = self.changed if changed is None else changed
        report = ring_pb2.StepReport(generation=generation)
        for rank in ranks:
            rng = common_pb2.RngStates()
            for name, part in list(zip(("torch_cpu", "numpy", "python"), self.parts[variant], strict=True))[
                :count
            ]:
                setattr(rng, name, part)
            report.contexts.add(virtual_rank=rank, delta=count < 3).rng.CopyFrom(rng)
            report.tasks.add(virtual_rank=rank).range.CopyFrom(common_pb2.Range(start=rank, end=rank + 1))
        return report.SerializeToString()

    def first_body(self, generation: int, ranks: range) -> bytes:
        """Serialize the first report, which has the whole context."""
        return self.body(generation, ranks, 0, 3)

    def got_go(self) -> None:
        self.missing_go -= 1
        if not self.missing_go:
            self.all_go.set()

    def got_prepared(self, step: int) -> None:
        times = self.prepared_at.setdefault(step, [])
        times.append(time.monotonic())
        if len(times) == len(self.workers):
            self.step_over.set()

    async def join(self, host: str, port: int) -> None:
        gate = asyncio.Semaphore(CONNECTING_MAX)

        async def connect(worker: Worker) -> None:
            async with gate:
                await worker.connect(host, port)
                await self.welcomed.acquire()

        await asyncio.gather(*[connect(worker) for worker in self.workers])

    async def run(self, began: float, period: float, steps: int) -> None:
        beats = asyncio.create_task(self.keep_beating())
        at, count = began, len(self.workers)
        for step in range(steps):
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            self.step_over.clear()
            for number, worker in enumerate(self.workers):
                worker.report(step)
                if (
                    worker.host is not None
                    and number + 1 < count
                    and self.workers[number + 1].host is worker.host
                ):
                    continue
                if worker.host is not None:
                    worker.host.flush()
                if number % 50 == 49:
                    await asyncio.sleep(0)  # let the event loop read answers
            self.sent_at.append(time.monotonic())
            if len(self.prepared_at.get(step, ())) < len(self.workers):
                await self.step_over.wait()
            # The next multiple of the common period that is not past.
            at = began + period * max(step + 1, -(-(time.monotonic() - began) // period))
        beats.cancel()

    async def keep_beating(self) -> None:
        """Send each worker's heartbeats at the requested interval, spread evenly over it."""
        while True:
            began = time.monotonic()
            for number, worker in enumerate(self.workers):
                due = began + self.heartbeat_seconds * number / len(self.workers)
                if (late := due - time.monotonic()) > 0:
                    await asyncio.sleep(late)
                elif number % 50 == 49:
                    await asyncio.sleep(0)
                worker.beat()
            await asyncio.sleep(max(0.0, began + self.heartbeat_seconds - time.monotonic()))


def _tag(field: int, wire_type: int) -> bytes:
    return _number(field << 3 | wire_type)


def _number(value: int) -> bytes:
    """Encode a number as a protobuf varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _nested(payload: bytes) -> bytes:
    """Return the message nested in `payload`, which begins with its tag and length; it may be cut."""
    place = 1
    while payload[place] & 128:
        place += 1
    return payload[place + 1 :]


def _first_number(payload: bytes) -> int:
    """Return field 1, a varint, of the message nested in `payload`, skipping the nested message's length."""
    place = 1
    while payload[place] & 128:
        place += 1
    place += 1
    assert payload[place] == 0x08, "the message does not begin with its generation"
    value = shift = 0
    for byte in payload[place + 1 :]:
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            break
    return value


async def main() -> None:
    address, job = sys.argv[1:3]
    first, count, ests, size, changed = map(int, sys.argv[3:8])
    period, steps, seed = float(sys.argv[8]), int(sys.argv[9]), int(sys.argv[10])
    relayed = int(sys.argv[11])
    host, _, port = address.rpartition(":")
    group = Group(job, first, count, ests, size, changed, seed, relayed)
    if len(sys.argv) > 12:
        group.draw(int(sys.argv[12]), steps, sys.argv[13])

    async def work() -> None:
        await group.join(host, int(port))
        print("joined", flush=True)
        await group.all_go.wait()
        print("go", flush=True)
        loop = asyncio.get_running_loop()
        began = float(await loop.run_in_executor(None, sys.stdin.readline))
        await group.run(began, period, steps)

    task = asyncio.create_task(work())
    await asyncio.wait({task, group.failed}, return_when=asyncio.FIRST_COMPLETED)
    group.over = True
    if group.failed.done():
        task.cancel()
        raise group.failed.exception() or AssertionError
    await task
    prepared = [group.prepared_at[step] for step in range(steps)]
    print(json.dumps({"sent": group.sent_at, "prepared": prepared}), flush=True)
    sys.stdin.readline()  # keep the sessions: other processes may still be measuring
    for worker in group.workers:
        if worker.stream is not None:
            worker.stream.close()
    for relay in group.hosts:
        relay.stream.close()


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(main())
    except ImportError:
        asyncio.run(main())
