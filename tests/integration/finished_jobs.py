"""Finished jobs by the thousand, written into a store as a master would have left them.

PYTHONPATH=tests python -m integration.finished_jobs 100000    what a start-up and a list of so many cost
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import grpc
import msgspec

from elastane_master.decisions.events import CancelRequested
from elastane_master.decisions.machine import VERSION, JobMachine
from elastane_master.decisions.retention import Record, read_record, record_of
from elastane_master.store.connection import Store
from elastane_master.store.format import FORMAT
from elastane_master.store.keys import JOBS_KEY, STORED_JOBS_KEY, JobKeys
from elastane_proto.job_settings import JobSettings
from elastane_proto.v1 import job_pb2, job_pb2_grpc
from integration.master_support import MasterProcess, master_process, private_store

_AT_ONCE = 1000


def name_of(number: int) -> str:
    return f"job-{number:06d}"


def _record() -> Record:
    """Of a job that was cancelled."""
    machine = JobMachine.create("job", JobSettings(ests=4), 0.0)
    machine.handle(CancelRequested(""), 1.0)
    record = read_record(record_of(machine, 2.0))
    assert record is not None
    return record


def records(count: int) -> Iterator[tuple[str, bytes]]:
    """Of so many jobs the name, and the record that is stored of it."""
    record = _record()
    encode = msgspec.msgpack.Encoder().encode
    for name in map(name_of, range(count)):
        view = msgspec.structs.replace(record.view, name=name)
        yield name, encode(msgspec.structs.replace(record, view=view))


async def plant(store: Store, count: int) -> None:
    """Write this many closed jobs. They are listed and reported, but cannot be opened."""
    fence: dict[str, bytes | int] = {
        "token": 1,
        "sequence": 1,
        "format": FORMAT,
        "state": VERSION,
        "closed": 1,
    }
    planted = records(count)
    while some := list(islice(planted, _AT_ONCE)):
        pipeline = store.redis.pipeline(transaction=False)
        for name, record in some:
            pipeline.hset(JobKeys.of(name).fence, mapping={**fence, "record": record})
        names = [name for name, _ in some]
        pipeline.sadd(JOBS_KEY, *names)
        pipeline.sadd(STORED_JOBS_KEY, *names)
        await pipeline.execute()


def memory_bytes(master: MasterProcess, what: str = "VmHWM") -> int:
    """Return the memory of the process: its peak (VmHWM), or its current size (VmRSS)."""
    assert master.process is not None
    lines = Path(f"/proc/{master.process.pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{what}:")]
    return int(line.split()[1]) * 1024


async def pages(channel: grpc.aio.Channel, page_size: int) -> list[list[str]]:
    """The names on each page."""
    found, token = [], ""
    while True:
        request = job_pb2.JobServiceListRequest(page_size=page_size, page_token=token)
        answer = await job_pb2_grpc.JobServiceStub(channel).List(request)
        found.append([job.name for job in answer.jobs])
        token = answer.next_page_token
        if not token:
            return found


async def _measure(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        async with private_store(state) as store:
            await plant(store, count)
        started = time.monotonic()
        async with master_process(state) as master:
            print(f"ready after {time.monotonic() - started:.1f} s, {memory_bytes(master) / 2**20:.0f} MiB")
            options = [("grpc.max_receive_message_length", -1)]
            async with grpc.aio.insecure_channel(master.address, options) as channel:
                for size in (2000, 0):
                    started = time.monotonic()
                    found = await pages(channel, size)
                    seconds = time.monotonic() - started
                    print(
                        f"List, page_size {size}: {sum(map(len, found))} jobs on {len(found)} pages,"
                        f" {seconds:.1f} s, {1000 * seconds / len(found):.0f} ms a page,"
                        f" {memory_bytes(master) / 2**20:.0f} MiB at most"
                    )
    print(f"this client: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    asyncio.run(_measure(parser.parse_args().count))
