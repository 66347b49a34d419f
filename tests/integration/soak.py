"""An hour of a busy master in a few minutes: many jobs, workers that come and go, leases, watchers.

    python -m integration.soak [--minutes 60] [--json]          (make soak)

One master in this process with a real store. Each virtual minute new workers join every job and leave it in
good order or by dying, lease and report tasks, train a few steps; watchers come, read slowly and vanish;
operators ask for everything there is to ask. After each minute all of them are gone, and what is left is
counted: memory, file descriptors, asyncio tasks, objects by type, the size of each job's state. It must
not grow. Exits with 1 if it does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import grpc
import psutil
import structlog

import patience
from elastane_master.app import Master
from elastane_master.decisions import datasets as datasets_module
from elastane_master.decisions import operators as operators_module
from elastane_master.jobs import job_server as host_module
from elastane_master.jobs.limits import Limits
from elastane_master.settings import MasterSettings
from elastane_master.store.log import LogOptions
from elastane_proto.contexts import pack_loader
from elastane_proto.v1 import (
    common_pb2,
    context_pb2,
    context_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    ring_pb2,
    ring_pb2_grpc,
    shard_pb2,
    shard_pb2_grpc,
)

JOBS = 5
WORKERS = 4  # of each job that join in a minute, beside one that trains
LEASES = 25  # of each worker
DESCRIPTORS_LATE = 5
OBJECTS_AT_WORK = 10
LOOP_OBJECTS_AT_WORK = 200  # the loop forgets cancelled timers by the hundred
STORE_CONNECTIONS_MAX = Limits().store_reads_max + JOBS + 2
"""Reads under way, each job's other calls, the lease's and one for all jobs."""
STEPS = 6
SILENCE_SECONDS = 120
"""Of a worker, before it counts as lost: more than a busy machine stands still."""
RECENT_NOTES = 10
"""And requests of operators: so that what is kept on purpose is full soon and cannot hide a leak."""

SIGNATURE = ring_pb2.ScriptSignature(dataset_size=10**6, batch_size=1, steps_per_epoch=10**6, epochs=1)


@dataclass
class Sample:
    """Resources that are left after a virtual minute."""

    minute: int
    resident_mebibytes: float
    #: Without those of `store_connections`.
    descriptors: int
    tasks: int
    sessions: int
    watchers: int
    waiters: int
    state_bytes: int
    leases: int
    #: As many as were ever used at once are kept open, which chance decides: bounded, not flat.
    store_connections: int = 0
    objects: Counter[str] = field(default_factory=Counter)


class Load:
    """All users of one master. seed: decides who does what."""

    def __init__(self, master: Master, seed: int) -> None:
        self.master = master
        self.random = random.Random(seed)
        self.leases = 0
        self.names = 0

    @contextlib.asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        """A connection of its own, as every process has."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self.master.address, options=options) as channel:
            yield channel

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}-{self.names}"

    async def prepare(self) -> None:
        async with self.channel() as channel:
            for number in range(JOBS):
                settings = job_pb2.JobSettings(ests=1, workers_max=1)
                settings.join_window.nanos = 1_000_000
                settings.heartbeat_timeout.seconds = SILENCE_SECONDS
                await job_pb2_grpc.JobServiceStub(channel).Create(
                    job_pb2.JobServiceCreateRequest(name=f"job-{number}", settings=settings)
                )
                dataset = shard_pb2.DatasetSettings(task_size=1, max_attempts=1000)
                dataset.range.size = 10**9
                await shard_pb2_grpc.ShardServiceStub(channel).CreateDataset(
                    shard_pb2.CreateDatasetRequest(job=f"job-{number}", dataset="d", settings=dataset)
                )

    async def minute(self) -> None:
        """All who come and go in one virtual minute."""
        callers, watchers = [], []
        for number in range(JOBS):
            job = f"job-{number}"
            callers += [self.leaser(job) for _ in range(WORKERS)]
            callers += [self.trainer(job), self.operator(job), self.stranger(job)]
            watchers += [asyncio.create_task(self.watcher(job)) for _ in range(2)]
        self.random.shuffle(callers)
        await asyncio.gather(*callers)
        for watching in watchers:  # who still waits for news vanishes
            watching.cancel()
        await asyncio.wait(watchers)

    async def leaser(self, job: str) -> None:
        """A worker that leases tasks, fails at some, and leaves with a Bye or without."""
        worker = self.name("w")
        async with self.channel() as channel:
            call = ring_pb2_grpc.RingServiceStub(channel).Attend()
            hello = ring_pb2.Hello(job=job, worker_id=worker, role=ring_pb2.WORKER_ROLE_TASKS)
            await call.write(ring_pb2.AttendRequest(hello=hello))
            await call.read()
            shards = shard_pb2_grpc.ShardServiceStub(channel)
            reports: list[shard_pb2.TaskReport] = []
            for number in range(LEASES):
                request = shard_pb2.LeaseTasksRequest(
                    job=job, dataset="d", worker_id=worker, completed=reports, max_tasks=3,
                    request_id=f"{worker}-{number}", rng=common_pb2.RngStates(torch_cpu=b"r" * 500),
                )  # fmt: skip
                reply = await shards.LeaseTasks(request)
                self.leases += len(reply.tasks)
                reports = [
                    shard_pb2.TaskReport(
                        epoch=task.epoch, index=task.index, attempt=task.attempt,
                        error="it failed" if self.random.random() < 0.05 else "",
                    )
                    for task in reply.tasks
                ]  # fmt: skip
                await call.write(ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat()))
            if self.random.random() < 0.5:
                await self.bye(call)

    async def trainer(self, job: str) -> None:
        """A worker that trains a few steps, from the beginning, and leaves or dies."""
        worker, steps = self.name("t"), 0
        async with self.channel() as channel:
            call = ring_pb2_grpc.RingServiceStub(channel).Attend()
            hello = ring_pb2.Hello(
                job=job, worker_id=worker, role=ring_pb2.WORKER_ROLE_RING, signature=SIGNATURE,
                store_address="h:1", host=worker,
            )  # fmt: skip
            await call.write(ring_pb2.AttendRequest(hello=hello))
            generation = step = 0
            while steps < STEPS:
                message = await call.read()
                kind = message.WhichOneof("message")
                if kind == "prepare":
                    generation = message.prepare.generation
                    answer = ring_pb2.AttendRequest(ready=ring_pb2.Ready(generation=generation))
                elif kind == "load":
                    context = _context(0)
                    loaded = ring_pb2.Loaded(generation=generation, contexts=[context])
                    answer = ring_pb2.AttendRequest(loaded=loaded)
                elif kind in ("go", "prepared"):
                    step = message.go.resume_step if kind == "go" else message.prepared.step + 1
                    steps += 1
                    task = ring_pb2.StepTask(virtual_rank=0, samples=[step], metrics={"loss": 1.0})
                    task.range.start, task.range.end = step, step + 1
                    report = ring_pb2.StepReport(generation=generation, step=step, tasks=[task])
                    report.contexts.append(_context(step + 1))
                    answer = ring_pb2.AttendRequest(step_report=report)
                else:
                    continue
                await call.write(answer)
            if self.random.random() < 0.5:
                await call.write(ring_pb2.AttendRequest(leaving=ring_pb2.Leaving(reason="spot notice")))
                await self.bye(call)

    async def bye(self, call: grpc.aio.StreamStreamCall) -> None:
        await call.write(ring_pb2.AttendRequest(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_DRAINED)))
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass

    async def watcher(self, job: str) -> None:
        """Watches everything, reads some of it, and disconnects."""
        async with self.channel() as channel:
            ring, shards = ring_pb2_grpc.RingServiceStub(channel), shard_pb2_grpc.ShardServiceStub(channel)
            watches = [
                job_pb2_grpc.JobServiceStub(channel).Watch(job_pb2.JobServiceWatchRequest(name=job)),
                ring.WatchEvents(ring_pb2.WatchEventsRequest(job=job, follow=True)),
                shards.WatchProgress(shard_pb2.WatchProgressRequest(job=job)),
            ]
            for _ in range(self.random.randint(1, 3)):
                await asyncio.gather(*[watch.read() for watch in watches])
            if self.random.random() < 0.5:
                for watch in watches:
                    watch.cancel()

    async def operator(self, job: str) -> None:
        """Sends every kind of request that an operator can make."""
        async with self.channel() as channel:
            jobs, shards = job_pb2_grpc.JobServiceStub(channel), shard_pb2_grpc.ShardServiceStub(channel)
            await jobs.Scale(
                job_pb2.JobServiceScaleRequest(
                    name=job, workers_min=1, workers_max=1, request_id=self.name("r")
                )
            )
            await jobs.List(job_pb2.JobServiceListRequest())
            await shards.GetProgress(shard_pb2.GetProgressRequest(job=job))
            await shards.ListTasks(shard_pb2.ListTasksRequest(job=job, dataset="d", page_size=50))
            await shards.GetAuditLog(shard_pb2.GetAuditLogRequest(job=job, page_size=50))
            await context_pb2_grpc.ContextServiceStub(channel).List(
                context_pb2.ContextServiceListRequest(job=job)
            )
            await ring_pb2_grpc.RingServiceStub(channel).GetRing(ring_pb2.GetRingRequest(job=job))

    async def stranger(self, job: str) -> None:
        """Asks for what is not there, sends what is no message, begins a stream and says nothing."""
        async with self.channel() as channel:
            unknown = channel.unary_unary("/elastane.v1.JobService/Get")
            for payload in (b"\xff\xff\xff", b"", b"\x0a\x04none"):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await unknown(payload)
            ring_pb2_grpc.RingServiceStub(channel).Attend()
            with contextlib.suppress(grpc.aio.AioRpcError):
                call = ring_pb2_grpc.RingServiceStub(channel).Attend()
                await call.write(ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat()))
                await call.read()


def _context(step: int) -> common_pb2.EstContext:
    context = common_pb2.EstContext(virtual_rank=0, step=step)
    context.loader.epoch, context.loader.batch, context.loader.base_seed = 0, step, 1
    context.rng.torch_cpu = pack_loader(0, step, 1) * 100
    return context


async def settle(master: Master) -> None:
    """Wait until the master has noticed that all are gone."""
    assert master.jobs is not None
    async with patience.within(120):
        for host in master.jobs.all():
            while host._streams or host.sessions or host.watchers or host.task_waiters.count:
                await asyncio.sleep(0.01)
            await host.log.settled()


async def sample(master: Master, load: Load, minute: int) -> Sample:
    await settle(master)
    assert master.jobs is not None and master._store is not None
    hosts = master.jobs.all()
    for host in hosts:
        # Events are kept until the next stored snapshot; when that is due depends on real time.
        host.log.snapshot_soon()
        await host.log.append(None)
    state_bytes = sum(len(host.machine.snapshot()) for host in hosts)
    gc.collect()
    process = psutil.Process()
    store_connections = sum(count for count, _ in master._store.redis.connection_pool.get_connection_count())
    ours = Counter(
        f"{type(thing).__module__}.{type(thing).__qualname__}"
        for thing in gc.get_objects()
        if str(type(thing).__module__).startswith(("elastane", "asyncio", "_asyncio", "grpc"))
    )
    return Sample(
        minute,
        round(process.memory_info().rss / 2**20, 1),
        process.num_fds() - store_connections,
        len(asyncio.all_tasks()),
        sum(len(host.sessions) for host in hosts),
        sum(host.watchers for host in hosts),
        sum(host.task_waiters.count for host in hosts),
        state_bytes,
        load.leases,
        store_connections,
        ours,
    )


class _Settings(MasterSettings):
    """Nothing is kept for real seconds, of which virtual ones have many."""

    def log_options(self) -> LogOptions:
        return replace(super().log_options(), kept_seconds=0.0)


async def soak(folder: Path, minutes: int, seed: int = 1) -> list[Sample]:
    """Run the load for this many virtual minutes; return what was left after each."""
    host_module.RECENT_NOTES = operators_module.REQUESTS_MAX = RECENT_NOTES
    datasets_module.REMEMBERED_MAX = WORKERS  # 10,000 workers of a data set would come in two days
    settings = _Settings(listen="127.0.0.1:0", state_dir=folder, stop_grace_seconds=0.5)
    master = Master(settings)
    samples = []
    try:
        await master.start()
        load = Load(master, seed)
        await load.prepare()
        for minute in range(minutes):
            await load.minute()
            samples.append(await sample(master, load, minute))
    finally:
        await master.stop()
    return samples


def growth(samples: Sequence[Sample]) -> list[str]:
    """Return what has grown from the first third to the last; empty: nothing."""
    third = max(1, len(samples) // 3)
    early, late = samples[third : 2 * third], samples[-third:]
    minutes = late[-1].minute - early[0].minute or 1
    faults = []
    for name in ("descriptors", "tasks", "sessions", "watchers", "waiters"):
        before = max(getattr(one, name) for one in early)
        after = min(getattr(one, name) for one in late)
        # A connection that broke is closed when somebody looks at it.
        if after > before + (DESCRIPTORS_LATE if name == "descriptors" else 0):
            faults.append(f"{name}: {before} -> {after}")
    most_connections = max(one.store_connections for one in samples)
    if most_connections > STORE_CONNECTIONS_MAX:
        faults.append(f"store connections: {most_connections}")
    before, after = max(one.state_bytes for one in early), min(one.state_bytes for one in late)
    # Numbers grow by a digit here and there, and tasks that failed wait for their turn.
    if after > 1.1 * before + 200 * JOBS:
        faults.append(f"state: {before} -> {after} bytes")
    for kind in late[-1].objects:
        least = min(one.objects[kind] for one in late)
        most = max(one.objects[kind] for one in early)
        at_work = OBJECTS_AT_WORK if kind.startswith("elastane") else LOOP_OBJECTS_AT_WORK
        if least - most > max(minutes, at_work):  # one a minute, or more
            faults.append(f"{kind}: {most} -> {least} objects")
    before_mebibytes = max(one.resident_mebibytes for one in early)
    after_mebibytes = min(one.resident_mebibytes for one in late)
    if after_mebibytes > 1.05 * before_mebibytes + 2:
        faults.append(f"memory: {before_mebibytes} -> {after_mebibytes} MiB")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=int, default=60, help="virtual minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        samples = asyncio.run(soak(Path(folder), arguments.minutes, arguments.seed))
    faults = growth(samples)
    rows = [{key: value for key, value in asdict(one).items() if key != "objects"} for one in samples]
    if arguments.json:
        print(json.dumps({"samples": rows, "faults": faults}))
    else:
        shown = [row for row in rows if row["minute"] % max(1, len(rows) // 12) == 0 or row is rows[-1]]
        print("  ".join(shown[0]))
        for row in shown:
            print("  ".join(str(value).rjust(len(name)) for name, value in row.items()))
        seconds = time.monotonic() - started
        joined = len(samples) * JOBS * (WORKERS + 1)
        print(f"{joined} workers joined and left, {samples[-1].leases} leases, {seconds:.0f} s")
        print("\n".join(f"grows: {fault}" for fault in faults) or "flat: nothing grows")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
