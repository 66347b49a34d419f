"""Parameter servers at a real master: a worker pushes while they come, die and leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from elastane_ps.environment import PsEnvironment
from elastane_ps.process import PsProcess
from integration.master_support import serving_master
from integration.ps_support import SPEC, WAIT_SECONDS, MapWorker, PushingJob

TASKS = 30


class Job(PushingJob):
    """A job, and its parameter servers in this process."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.processes: dict[str, PsProcess] = {}
        self.ended: dict[str, Future[int]] = {}
        self._threads = ThreadPoolExecutor(16)

    def start(self, ps_id: str) -> None:
        process = PsProcess(PsEnvironment(master=self.address, job="job", ps_id=ps_id))
        self.processes[ps_id] = process
        self.ended[ps_id] = self._threads.submit(process.run)

    def close(self) -> None:
        for process in self.processes.values():
            process.die()
        self._threads.shutdown()
        super().close()


def scenario(address: str, folder: Path, copies: int) -> None:
    job = Job(address)
    try:
        job.create(folder, copies)
        job.open(TASKS)
        for number in range(2):
            job.start(f"ps-{number}")
        job.settled(copies)
        job.refresh()
        worker = MapWorker(job)  # type: ignore[arg-type]
        worker.initialise()
        with ThreadPoolExecutor(1) as pool:
            trained = pool.submit(job.train, worker)
            for event in faults(job, copies):
                if trained.done():
                    break
                event()
            trained.result()
        worker.refresh()
        assert worker.applied() == [set(range(TASKS))] * SPEC.slots
        found = job.get()
        assert not found.gate.outstanding and not found.gate.returned
        if copies == 2:
            assert not any(place.life for place in found.map.places)
        worker.close()
    finally:
        job.close()


def faults(job: Job, copies: int) -> Iterator[Callable[[], None]]:
    pause = threading.Event()
    yield lambda: pause.wait(0.5) and None
    yield lambda: job.start("ps-2")
    yield lambda: job.settled(copies)
    yield lambda: job.processes["ps-0"].die()
    yield lambda: job.settled(copies)
    yield lambda: job.start("ps-3")
    yield lambda: job.settled(copies)
    yield lambda: job.processes["ps-1"].leave("asked")
    yield lambda: job.ended["ps-1"].result(WAIT_SECONDS) and None


@pytest.mark.parametrize("copies", [1, 2])
async def test_every_task_is_applied_once(tmp_path: Path, copies: int) -> None:
    async with serving_master(tmp_path / "state") as (master, _):
        address = master.address
        await asyncio.to_thread(scenario, address, tmp_path, copies)


def all_leave(address: str, folder: Path, copies: int) -> list[str]:
    job = Job(address)
    try:
        job.create(folder, copies)
        job.open(TASKS)
        for number in range(3):
            job.start(f"ps-{number}")
        job.settled(copies)
        job.refresh()
        worker = MapWorker(job)  # type: ignore[arg-type]
        worker.initialise()
        for _ in range(5):
            (task,) = job.lease([]).tasks
            job.lease([job.push(worker, task)])
        digests = worker.digests()
        worker.close()
        for process in job.processes.values():
            process.leave("all go")
        for ended in job.ended.values():
            ended.result(WAIT_SECONDS)
        # What they had is in their snapshots, and nothing is done again.
        job.start("ps-9")
        job.settled()
        job.refresh()
        worker = MapWorker(job)  # type: ignore[arg-type]
        worker.refresh()
        assert worker.digests() == digests
        assert not job.get().reopened
        worker.close()
        return digests
    finally:
        job.close()


@pytest.mark.parametrize("copies", [1, 2])
async def test_all_leave_at_once_and_save_what_they_have(tmp_path: Path, copies: int) -> None:
    async with serving_master(tmp_path / "state") as (master, _):
        await asyncio.to_thread(all_leave, master.address, tmp_path, copies)


def begins_with(address: str, folder: Path, digests: list[str]) -> None:
    """Another master, another job, the same folder."""
    job = Job(address)
    try:
        job.create(folder, 1)
        job.open(TASKS)
        job.start("ps-0")
        job.settled()
        job.refresh()
        worker = MapWorker(job)  # type: ignore[arg-type]
        worker.refresh()
        assert worker.digests() == digests
        found = job.get()
        # No answer of the job before counts for this one.
        assert all(place.life for place in found.map.places)
        job.train(worker)
        worker.refresh()
        assert worker.applied() == [set(range(TASKS))] * SPEC.slots
        worker.close()
    finally:
        job.close()


async def test_a_job_begins_with_the_snapshots_of_another(tmp_path: Path) -> None:
    async with serving_master(tmp_path / "state") as (master, _):
        digests = await asyncio.to_thread(all_leave, master.address, tmp_path, 1)
    async with serving_master(tmp_path / "other") as (master, _):
        await asyncio.to_thread(begins_with, master.address, tmp_path, digests)
