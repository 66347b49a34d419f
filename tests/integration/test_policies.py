"""The supervisor's policies as users meet them: over gRPC, in `elastane run`, with real workers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import grpc
import pytest
from test_agent import TRAINER, Run
from test_matrix import Config, reference

from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_cli.rehearse.cluster import LocalCluster, local_cluster
from elastane_cli.rehearse.results import PARTS, leader_report
from elastane_common.client import MasterClient
from elastane_proto.v1 import common_pb2, job_pb2, job_pb2_grpc, ring_pb2
from integration.master_support import Worker, reason_of, serving_master
from slow import slow_except

CONFIG = Config(4, "adamw", data_workers=0, epochs=3)
TOTAL = CONFIG.epochs * CONFIG.steps_per_epoch
SIGNATURE = ring_pb2.ScriptSignature(dataset_size=8, batch_size=2, steps_per_epoch=2, epochs=2)
GET = job_pb2.JobServiceGetRequest(name="j")


def create(**changes: object) -> job_pb2.JobServiceCreateRequest:
    settings = job_pb2.JobSettings(ests=4, workers_min=2, workers_max=3)
    max_wait_seconds = changes.pop("max_wait_seconds", 0.0)
    settings.max_wait.FromNanoseconds(round(float(str(max_wait_seconds)) * 1e9))
    for name, value in changes.items():
        setattr(settings, name, value)
    return job_pb2.JobServiceCreateRequest(name="j", settings=settings)


async def until(channel: grpc.aio.Channel, phase: int) -> job_pb2.Job:
    """The job once it is in that phase."""
    watch = job_pb2_grpc.JobServiceStub(channel).Watch(job_pb2.JobServiceWatchRequest(name="j"), timeout=30)
    async for response in watch:
        if response.job.phase == phase:
            watch.cancel()
            return response.job
    raise AssertionError("the watch ended")


async def attend(channel: grpc.aio.Channel, name: str, **fields: object) -> Worker:
    worker = Worker(channel, name)
    await worker.hello(ring_pb2.WORKER_ROLE_RING, signature=SIGNATURE, store_address="a:1", **fields)
    return worker


async def test_a_worker_that_waits_too_long_is_sent_away_and_resume_waits_again(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (_, channel):
        jobs = job_pb2_grpc.JobServiceStub(channel)
        await jobs.Create(create(max_wait_seconds=0.8))
        alone = await attend(channel, "w0")
        assert (await alone.receive()).WhichOneof("message") in ("prepare", "drain")
        job = await until(channel, job_pb2.JOB_PHASE_MAX_WAIT_EXCEEDED)
        assert re.fullmatch(r"1 of 2 workers were there after \d+\.\d s: they are released", job.reason)
        late = Worker(channel, "w1")
        await late.hello(ring_pb2.WORKER_ROLE_RING, signature=SIGNATURE)
        done = (await late.receive("done")).done
        assert done.phase == "max_wait_exceeded" and done.reason == job.reason
    # The same store under the next master: the job stays as it is until somebody resumes it.
    async with serving_master(tmp_path) as (_, channel):
        jobs = job_pb2_grpc.JobServiceStub(channel)
        assert (await jobs.Get(GET)).job.phase == job_pb2.JOB_PHASE_MAX_WAIT_EXCEEDED
        await jobs.Resume(job_pb2.JobServiceResumeRequest(name="j", request_id="r"))
        assert (await jobs.Get(GET)).job.phase == job_pb2.JOB_PHASE_WAITING
        await until(channel, job_pb2.JOB_PHASE_MAX_WAIT_EXCEEDED)


async def test_a_job_that_nobody_comes_for_is_not_waited_for_longer(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (_, channel):
        await job_pb2_grpc.JobServiceStub(channel).Create(create(max_wait_seconds=0.2))
        job = await until(channel, job_pb2.JOB_PHASE_MAX_WAIT_EXCEEDED)
        assert job.reason.startswith("0 of 2 workers were there after 0."), job.reason


async def test_prices_cost_and_capacities_over_the_wire(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (_, channel):
        jobs = job_pb2_grpc.JobServiceStub(channel)
        asked = create(spot_price_micros=300_000, on_demand_price_micros=1_000_000, currency="EUR")
        asked.settings.recovery = job_pb2.RECOVERY_POLICY_FIXED
        created = (await jobs.Create(asked)).job
        assert created.settings.recovery == job_pb2.RECOVERY_POLICY_FIXED
        assert created.cost.currency == "EUR" and not created.cost.HasField("savings")
        await attend(channel, "spot")
        await attend(channel, "paid", capacity=common_pb2.CAPACITY_TYPE_ON_DEMAND)
        job = (await jobs.Get(GET)).job
        assert [worker.capacity for worker in job.workers] == [
            common_pb2.CAPACITY_TYPE_SPOT,
            common_pb2.CAPACITY_TYPE_ON_DEMAND,
        ]
        assert job.reason.startswith("2 of all 3 workers are there"), job.reason
        prices = job_pb2.JobServiceSetPricesRequest(name="j", spot_price_micros=450_000, request_id="r")
        changed = (await jobs.SetPrices(prices)).job
        assert (changed.cost.spot_price_micros, changed.cost.on_demand_price_micros) == (450_000, 1_000_000)
        assert changed.settings.spot_price_micros == 450_000
        later = (await jobs.Get(GET)).job.cost
        assert later.worker_seconds > changed.cost.worker_seconds > 0
        assert later.idle_seconds == pytest.approx(later.worker_seconds)
        assert later.spent_micros == later.idle_micros == -later.saved_micros
        for bad in ({"spot_price_micros": -1}, {"currency": "euro"}, {"on_demand_price_micros": 2**62}):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await jobs.SetPrices(job_pb2.JobServiceSetPricesRequest(name="j", **bad))
            assert reason_of(refused.value)[1] == "INVALID_ARGUMENT"
        for hello in ({"capacity": 9}, {}):
            worker = Worker(channel, "w9")
            if hello:
                with pytest.raises(grpc.aio.AioRpcError, match="capacity 9"):
                    await worker.hello(ring_pb2.WORKER_ROLE_RING, signature=SIGNATURE, **hello)


async def test_a_later_create_is_refused_for_other_settings_only(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (_, channel):
        jobs = job_pb2_grpc.JobServiceStub(channel)
        await jobs.Create(create(max_wait_seconds=600, spot_price_micros=300_000))
        await jobs.Scale(job_pb2.JobServiceScaleRequest(name="j", workers_min=1, workers_max=4))
        # As it was created, as it was scaled to, with other prices, and without any.
        for same in (
            {"spot_price_micros": 300_000},
            {"workers_min": 1, "workers_max": 4},
            {"workers_min": 1, "workers_max": 0},
            {"spot_price_micros": 290_000, "currency": "EUR"},
            {},
        ):
            response = await jobs.Create(create(max_wait_seconds=600, **same))
            assert not response.created and response.job.settings.spot_price_micros == 300_000
            assert response.job.settings.workers_max == 4 and response.job.cost.currency == "USD"
        for field, other in (
            ("workers_max", {"workers_max": 2}),
            ("max_wait_seconds", {"max_wait_seconds": 5}),
            ("recovery", {"recovery": job_pb2.RECOVERY_POLICY_FIXED}),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await jobs.Create(create(**{"max_wait_seconds": 600, **other}))
            assert reason_of(refused.value)[2].facts["field"] == field


def test_run_ends_with_a_code_of_its_own_when_the_wait_is_over(tmp_path: Path) -> None:
    master = EmbeddedMaster(tmp_path / "state")
    master.start()
    run = Run(
        *("--ests", "4", "--workers", "2:4", "--local-workers", "1", "--master", master.address),
        *("--job", "j", "--max-wait", "2", "--spot-price", "0.3", "--on-demand-price", "1"),
        *(str(TRAINER), "20", "0.01"),
    )
    try:
        assert run.end() == 5, run.said()
        [line] = run.of("job_max_wait_exceeded")
        # On a busy machine the worker may not have joined by then.
        assert re.match(r"job max wait exceeded: [01] of 2 workers were there after 2\.\d s", line["message"])
        assert "`elastane resume`" in line["message"] and run.of("killing") == []
        with MasterClient(master.address) as client:
            job = client.get_job("j")
            assert job.cost.spent_micros == job.cost.idle_micros >= 0 == len(job.workers)
    finally:
        run.close()
        master.stop()


def trained(cluster: LocalCluster) -> dict[str, object]:
    """The end of the job, and the fingerprint of its result."""
    assert cluster.wait_for_end().phase == job_pb2.JOB_PHASE_SUCCEEDED
    leader = leader_report(cluster.reports)
    assert leader["step"] == TOTAL
    return {part: leader["fingerprint"][part] for part in PARTS}


@pytest.mark.parametrize("recovery", slow_except(["ELASTIC", "FIXED"], "FIXED", further=["ELASTIC"]))
def test_the_bits_are_the_same_with_either_recovery(tmp_path: Path, recovery: str) -> None:
    """One of two workers is killed: the other one goes on at once, or waits for a successor."""
    # Both workers are in the first ring: one alone could train to the end before the other is there.
    settings = job_pb2.JobSettings(ests=4, workers_min=2, workers_max=2, spot_price_micros=360_000_000)
    settings.recovery = getattr(job_pb2, f"RECOVERY_POLICY_{recovery}")
    settings.on_demand_price_micros = 720_000_000  # 0.2 a second
    with local_cluster(tmp_path, settings, [*CONFIG.arguments, "--busy-seconds", "0.03"]) as cluster:
        for _ in range(2):
            cluster.add_worker()
        cluster.wait_for(lambda job: job.generation > 0, what="the first ring")
        cluster.client.scale_job(cluster.job, 1, 2)
        cluster.wait_for(lambda job: job.step >= 3 and sum(w.ests.end > 0 for w in job.workers) == 2)
        cluster.workers["w1"].kill_group()
        if recovery == "FIXED":
            reason = cluster.wait_for(lambda job: job.phase == job_pb2.JOB_PHASE_WAITING).reason
            assert reason.startswith("1 of all 2 workers are there; with fixed recovery"), reason
            cluster.add_worker()
        result = trained(cluster)
        job = cluster.get_job()
        history = list(cluster.client.audit_log(cluster.job))
        events = list(cluster.client.events(cluster.job))
    stock = json.loads((reference(CONFIG) / "ddp-0.json").read_text())
    assert result == {part: stock["fingerprint"][part] for part in PARTS}
    # Those who waited kept what they had: at most the step in flight was done twice, and it counts once.
    assert len({(entry.step, entry.virtual_rank) for entry in history}) == len(history) == 4 * TOTAL
    rings = [len(event.ring_announced.members) for event in events if event.HasField("ring_announced")]
    assert set(rings[rings.index(2) + 1 :]) <= ({0, 2} if recovery == "FIXED" else {1}), rings
    cost = job.cost
    assert cost.replayed_seconds > 0 and cost.spot_worker_seconds == cost.worker_seconds
    assert cost.spent_micros == pytest.approx(cost.worker_seconds * 100_000, abs=1)
    assert cost.on_demand_micros == pytest.approx(cost.useful_seconds * 200_000, abs=1)
    [told] = [event for event in events if event.kind == "job_cost"]
    assert int(told.facts["spent_micros"]) <= cost.spent_micros and told.reason.startswith("job succeeded: ")
