"""Tests that the trainer which the pods run behaves like a worker: ring, drain, checkpoint, end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

import patience
from elastane_proto.v1 import job_pb2, job_pb2_grpc
from integration.master_support import serving_master
from kube.trainer import Script, Trainer


async def test_trainers_form_a_ring_drain_save_and_end(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (master, channel):
        jobs = job_pb2_grpc.JobServiceStub(channel)
        settings = job_pb2.JobSettings(ests=4, workers_min=1, workers_max=3, checkpoint_url="memory://c")
        settings.join_window.FromMilliseconds(20)
        await jobs.Create(job_pb2.JobServiceCreateRequest(name="j", settings=settings))
        script = Script(step_seconds=0.005)
        trainers = [Trainer(master.address, "j", f"w{k}", script) for k in range(3)]
        runs = [asyncio.create_task(trainer.run()) for trainer in trainers]
        await until(jobs, lambda job: len(job.workers) == 3 and job.step > 3)
        trainers[1].leave("spot notice", 30.0)
        assert await patience.wait_for(runs[1], 20) == 0
        runs[2].cancel()
        job = await until(jobs, lambda job: len(job.workers) == 1)
        await until(jobs, lambda now: now.step > job.step + 2)
        saved = await jobs.Checkpoint(job_pb2.JobServiceCheckpointRequest(name="j", request_id="c"))
        assert saved.step in script.checkpoints.values()
        script.steps = trainers[0].protocol.applied_step + 3
        assert await patience.wait_for(runs[0], 20) == 0
        await until(jobs, lambda job: job.phase == job_pb2.JOB_PHASE_SUCCEEDED)


async def until(jobs: job_pb2_grpc.JobServiceStub, condition: object) -> job_pb2.Job:
    watch = jobs.Watch(job_pb2.JobServiceWatchRequest(name="j"))
    job = None
    try:
        async with patience.within(20):
            while True:
                job = (await watch.read()).job
                if condition(job):
                    return job
    except (TimeoutError, grpc.aio.AioRpcError) as error:
        raise AssertionError(f"not reached: {job}") from error
    finally:
        watch.cancel()
