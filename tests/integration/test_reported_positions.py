"""Generator states reported as positions: a worker's own code, a master in a process, its death."""

from __future__ import annotations

import random
from pathlib import Path

import grpc
import torch

from elastane.context import EstContext
from elastane.rng import Generators
from elastane.runtime.hosted_contexts import HostedContexts
from elastane_proto.v1 import common_pb2, context_pb2, context_pb2_grpc, job_pb2, job_pb2_grpc, ring_pb2
from integration.master_support import Worker, master_process

RING = ring_pb2.WORKER_ROLE_RING
SIGNATURE = ring_pb2.ScriptSignature(dataset_size=40, batch_size=5, steps_per_epoch=8, epochs=1)


class Est:
    """A worker's only EST, which draws from the real generators and reports with the worker's own code."""

    def __init__(self) -> None:
        random.seed(1)
        torch.manual_seed(1)
        random.random()
        torch.rand(1)
        self.generators = Generators()
        self.hosted = HostedContexts()
        self.context = EstContext.initial(0, self.generators.capture())

    async def join(self, worker: Worker) -> ring_pb2.Go:
        self.takes_positions = (await worker.hello(RING, signature=SIGNATURE, pid=7)).generator_positions
        prepare = (await worker.receive("prepare")).prepare
        await worker.send(ready=ring_pb2.Ready(generation=prepare.generation))
        load = (await worker.receive("load")).load
        await worker.send(
            loaded=ring_pb2.Loaded(generation=load.generation, contexts=[self.context.to_proto()])
        )
        go = (await worker.receive("go")).go
        self.hosted.enter(go)
        return go

    async def step(self, worker: Worker, go: ring_pb2.Go, step: int) -> ring_pb2.StepReport:
        random.gauss(0, 1)
        torch.randn(3)
        torch.randperm(700 if step == 1 else 50)
        after = self.hosted.now[0].next(self.generators.capture())
        task = ring_pb2.StepTask(virtual_rank=0, range=common_pb2.Range(start=5 * step, end=5 * step + 5))
        contexts = self.hosted.reported({0: after}, positions=self.takes_positions)
        report = ring_pb2.StepReport(generation=go.generation, step=step, contexts=contexts, tasks=[task])
        await worker.send(step_report=report)
        assert (await worker.receive("prepared")).prepared.step == step
        self.hosted.applied({0: after})
        self.context = after
        return report


async def test_reported_positions_are_whole_states_after_the_masters_death(tmp_path: Path) -> None:
    est = Est()
    async with master_process(tmp_path / "state") as master:
        async with grpc.aio.insecure_channel(master.address) as channel:
            settings = job_pb2.JobSettings(ests=1)
            await job_pb2_grpc.JobServiceStub(channel).Create(
                job_pb2.JobServiceCreateRequest(name="j", settings=settings)
            )
            worker = Worker(channel, "a")
            go = await est.join(worker)
            reports = [await est.step(worker, go, step) for step in range(3)]
        for step, report in enumerate(reports):
            (context,) = report.contexts
            has_new_words = step == 1
            names = {position.name for position in context.positions}
            assert names == ({"rng/python"} if has_new_words else {"rng/python", "rng/torch_cpu"})
            assert context.HasField("rng") is has_new_words and (report.ByteSize() < 300) is not has_new_words
        await master.kill()
        await master.start()
        async with grpc.aio.insecure_channel(master.address) as channel:
            request = context_pb2.ContextServiceGetRequest(job="j", virtual_rank=0)
            stored = (await context_pb2_grpc.ContextServiceStub(channel).Get(request)).context
    assert EstContext.from_proto(stored) == est.context
