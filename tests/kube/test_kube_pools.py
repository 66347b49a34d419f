"""Pools: two device types, a reclaim, and operators that die between any two writes.

In every case no type ever has more pods than its quota, those that terminate included, a job that is over
gets no pod, and each job has what the pool says.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio

from elastane_proto.v1 import job_pb2
from kube.api import JOBS, ApiError, Object
from kube.gateway import Cut
from kube.operator_process import operator_process
from kube.scene import JOB, Scene
from kube.trainer import Script
from slow import further

pytestmark = pytest.mark.asyncio(loop_scope="session")
Side = Literal["before", "after"]
CHECKPOINTS = {"url": "memory://elastane-test"}
POOLS = f"{JOBS}/elasticpools"
SMALL, OWNER = "small", "owner"
QUOTAS = {"fast": 3, "slow": 1}
#: Upper bound on the writes of any one change.
WRITES_MAX = 10


@dataclass
class PoolScene:
    """A scene with a pool of two device types, of which one queue has a guarantee."""

    scene: Scene
    name: str

    async def apply(self, job: str, *, steps: int = 100_000, queue: str = "spare", **spec: Any) -> None:
        """Create a job of six logical workers in the pool."""
        self.scene.kubelet.scripts[job] = Script(ests=6, steps=steps)
        scheduling = {"pool": self.name, "queue": queue}
        body = self.scene.body(
            job, **({"ests": 6, "checkpoint": CHECKPOINTS, "scheduling": scheduling} | spec)
        )
        path = f"{JOBS}/namespaces/{self.scene.namespace}/elasticjobs"
        self.scene.mirror.jobs[job] = await self.scene.cluster.api.create(path, body)

    async def change_pool(self, **spec: Any) -> Object:
        return await self.scene.cluster.api.patch(f"{POOLS}/{self.name}", {"spec": spec})

    async def pool(self) -> Object:
        return await self.scene.cluster.api.get(f"{POOLS}/{self.name}")

    def status(self, job: str) -> Object:
        return dict(self.scene.mirror.jobs.get(job, {}).get("status") or {})

    def pods(self, job: str) -> dict[str, int]:
        """Pods of a job that neither ended nor terminate, by device type."""
        kinds = [
            self.scene.mirror.device_type(pod)
            for pod in self.scene.pods.values()
            if pod["metadata"]["labels"]["elastane.io/job-name"] == job
        ]
        return {kind: kinds.count(kind) for kind in set(kinds)}

    def trains_on(self, job: str, **devices: int) -> bool:
        """True if the job runs on exactly these devices, all of its workers ready."""
        status = self.status(job)
        workers, count = status.get("workers", {}), sum(devices.values())
        is_whole = workers.get("ready") == workers.get("attending") == workers.get("desired") == count
        return is_whole and status.get("phase") == "Running" and self.pods(job) == devices

    def seen(self, job: str) -> int:
        """Number of pods that the job ever had."""
        labels = [pod["metadata"]["labels"] for pod in self.scene.mirror.pods_seen.values()]
        return sum(each["elastane.io/job-name"] == job for each in labels)

    def events(self, job: str) -> set[str]:
        found = self.scene.mirror.events.values()
        return {event["reason"] for event in found if event["involvedObject"]["name"] == job}

    async def wait_quiet(self) -> None:
        """Wait until the operator has changed neither the pool nor a pod for two seconds."""

        def changes() -> int:
            paths = [write.path for write in self.scene.operator.gateway.writes]
            return sum("/pods" in path or self.name in path for path in paths)

        await self.scene.mirror.wait_quiet(changes, 2.0, self.scene.describe)

    def check_quotas(self) -> None:
        for kind, most in self.scene.mirror.devices_most.items():
            assert most <= QUOTAS[kind], (kind, self.scene.describe())


@pytest_asyncio.fixture(loop_scope="session")
async def pooled(scene: Scene) -> AsyncIterator[PoolScene]:
    name = f"elastane-test-{uuid.uuid4().hex[:8]}"
    types = [{"name": kind, "quota": count, "nodeSelector": {"gpu": kind}} for kind, count in QUOTAS.items()]
    queues = [{"name": "sure", "guaranteed": {"fast": 2}}, {"name": "spare"}]
    body = {
        "apiVersion": "elastane.io/v1alpha1",
        "kind": "ElasticPool",
        "metadata": {"name": name},
        "spec": {"types": types, "queues": queues, "coolDownSeconds": 1},
    }
    await scene.cluster.api.create(POOLS, body)
    try:
        yield PoolScene(scene, name)
    finally:
        with contextlib.suppress(ApiError):
            await scene.cluster.api.delete(f"{POOLS}/{name}")


def on_node(kind: str) -> Object:
    """A template that may only run on nodes of a type."""
    container = {"name": "worker", "image": "registry.invalid/worker:1"}
    return {
        "spec": {
            "schedulerName": "elastane-test",
            "terminationGracePeriodSeconds": 10,
            "containers": [container],
            "nodeSelector": {"gpu": kind},
        }
    }


async def live_through(pooled: PoolScene, cuts: Iterator[tuple[int, Side]]) -> int:
    """Play the life of a pool, killing the operator once in each change; return the number of kills."""
    scene, killed = pooled.scene, 0

    async def survive(act: Callable[[], Awaitable[object]], reached: Callable[[], bool], what: str) -> None:
        nonlocal killed
        cut = Cut(*next(cuts), scene.operator.kill)
        killed += await scene.survive(cut, act, reached, what, 40)
        pooled.check_quotas()

    borrower, owner, small = {"min": 1, "max": 3}, {"min": 2, "max": 2}, {"min": 1, "max": 1}
    await survive(
        lambda: pooled.apply(JOB, workers=borrower, template=on_node("fast")),
        lambda: pooled.trains_on(JOB, fast=3),
        "borrowed",
    )
    await survive(
        lambda: pooled.apply(SMALL, workers=small, template=on_node("slow")),
        lambda: pooled.trains_on(SMALL, slow=1),
        "the other type",
    )
    assert pooled.seen(JOB) == 3, "a job of another type moves nobody"
    first = scene.status["step"]
    await survive(
        lambda: pooled.apply(OWNER, steps=150, queue="sure", workers=owner, template=on_node("fast")),
        lambda: pooled.trains_on(OWNER, fast=2) and pooled.trains_on(JOB, fast=1),
        "reclaimed",
    )
    await survive(
        lambda: asyncio.sleep(0),
        lambda: pooled.status(OWNER).get("phase") == "Succeeded" and pooled.trains_on(JOB, fast=3),
        "given back",
    )
    assert pooled.seen(OWNER) == 2, "a job that is over gets no pod"
    assert pooled.pods(OWNER) == {}
    assert scene.status["step"] >= first, "the borrower has trained on"
    assert (scene.status["restarts"], scene.status["preemptions"]) == (0, 0)
    assert pooled.seen(JOB) == 5
    assert pooled.seen(SMALL) == 1
    return killed


@further  # at each write, of a pool: below; of a job: test_kube_crashes
async def test_an_operator_that_is_killed_in_every_change_of_a_pool_goes_on_where_it_was(
    pooled: PoolScene,
) -> None:
    sides: tuple[Side, Side] = ("after", "before")
    cuts = zip(itertools.cycle((2, 4, 3, 1)), itertools.cycle(sides), strict=False)
    assert await live_through(pooled, cuts) >= 3


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("at", range(1, WRITES_MAX + 1))
async def test_an_operator_is_killed_at_each_write_of_a_pool(pooled: PoolScene, at: int, side: Side) -> None:
    if not pooled.scene.cluster.is_real:
        pytest.skip("minutes long: run by make test-kube; the test above samples it")
    assert await live_through(pooled, itertools.repeat((at, side))) >= 1


async def test_a_job_that_gives_all_its_devices_up_goes_on_where_it_was_saved(pooled: PoolScene) -> None:
    scene = pooled.scene
    await pooled.change_pool(queues=[{"name": "sure", "guaranteed": {"fast": 3}}, {"name": "spare"}])
    await pooled.apply(JOB, workers={"min": 1, "max": 3}, template=on_node("fast"))
    await scene.wait(lambda: pooled.trains_on(JOB, fast=3), "it trains")
    await pooled.apply(OWNER, steps=100, queue="sure", workers={"min": 3, "max": 3}, template=on_node("fast"))
    await scene.wait(lambda: pooled.trains_on(OWNER, fast=3), "the owner has its guarantee")
    assert pooled.pods(JOB) == {}
    assert scene.status["phase"] == "Waiting"
    assert OWNER in scene.status["scheduling"]["reason"] or "fast" in scene.status["scheduling"]["reason"]
    assert scene.condition("Scheduled")["status"] == "False"
    assert (await scene.at_master()).phase == job_pb2.JOB_PHASE_SUSPENDED
    saved = scene.status["savedStep"]
    assert saved > 0
    await scene.wait(lambda: pooled.trains_on(JOB, fast=3), "it goes on", 40)
    assert scene.status["step"] >= saved
    assert scene.condition("Scheduled")["status"] == "True"
    assert {"Granted", "Taken"} <= pooled.events(JOB)
    pooled.check_quotas()


async def test_a_reclaim_waits_for_pods_that_terminate(pooled: PoolScene) -> None:
    scene = pooled.scene
    await pooled.apply(JOB, workers={"min": 1, "max": 3}, template=on_node("fast"))
    await scene.wait(lambda: pooled.trains_on(JOB, fast=3), "it trains")
    scene.kubelet.ends.clear()
    owner = {"min": 2, "max": 2}
    await pooled.apply(OWNER, queue="sure", workers=owner, template=on_node("fast"))

    def scheduled(job: str) -> Object:
        return next((c for c in pooled.status(job).get("conditions", []) if c["type"] == "Scheduled"), {})

    await scene.wait(lambda: pooled.pods(JOB) == {"fast": 1}, "the borrower gives two back")
    await scene.wait(lambda: scheduled(OWNER).get("reason") == "Releasing", "the owner waits for them")
    await pooled.wait_quiet()
    assert pooled.seen(OWNER) == 0
    scene.kubelet.ends.set()
    await scene.wait(lambda: pooled.trains_on(OWNER, fast=2), "the owner has its guarantee")
    pooled.check_quotas()


async def test_an_operator_that_starts_again_moves_no_job(pooled: PoolScene) -> None:
    scene = pooled.scene
    await pooled.apply(JOB, workers={"min": 1, "max": 2})
    await pooled.apply(SMALL, workers={"min": 1, "max": 2})
    await scene.wait(lambda: scene.status.get("phase") == "Running", "the first trains")
    await scene.wait(lambda: pooled.status(SMALL).get("phase") == "Running", "the second trains")
    await pooled.wait_quiet()
    before = (pooled.pods(JOB), pooled.pods(SMALL), len(scene.mirror.pods_seen))
    shares = (await pooled.pool())["status"]["shares"]
    scene.operator.kill()
    await scene.operator.ended()
    scene.operator.gateway.writes.clear()
    scene.operator.start()
    await scene.wait(lambda: scene.operator.gateway.writes, "it works")
    await pooled.wait_quiet()
    assert (pooled.pods(JOB), pooled.pods(SMALL), len(scene.mirror.pods_seen)) == before
    assert (await pooled.pool())["status"]["shares"] == shares


async def test_two_operators_that_decide_at_once_make_no_pod_too_many(
    pooled: PoolScene, tmp_path: Path
) -> None:
    """Without an election: each decision is written on the condition that nobody else has decided."""
    scene = pooled.scene
    async with operator_process(scene.cluster, tmp_path / "second") as second:
        second.start()
        await pooled.apply(JOB, workers={"min": 1, "max": 3}, template=on_node("fast"))
        await scene.wait(lambda: pooled.trains_on(JOB, fast=3), "it trains", 40)
        owner = {"min": 2, "max": 2}
        await pooled.apply(OWNER, steps=150, queue="sure", workers=owner, template=on_node("fast"))
        await scene.wait(lambda: pooled.trains_on(OWNER, fast=2), "the owner has its guarantee", 40)
        await scene.wait(
            lambda: pooled.status(OWNER).get("phase") == "Succeeded" and pooled.trains_on(JOB, fast=3),
            "it is given back",
            40,
        )
        pooled.check_quotas()
        assert (pooled.seen(OWNER), pooled.seen(JOB)) == (2, 5)
        wrote = [
            any(pooled.name in write.path and write.status == 200 for write in each.gateway.writes)
            for each in (scene.operator, second)
        ]
        assert any(wrote)
        assert second.is_running
        assert not second.gateway.refused


async def test_a_job_without_its_pool_waits_and_says_so(pooled: PoolScene) -> None:
    scene = pooled.scene
    await pooled.apply(JOB, scheduling={"pool": "nowhere"}, workers={"min": 1, "max": 1})
    await scene.wait(lambda: scene.condition("Scheduled"), "the condition")
    condition = scene.condition("Scheduled")
    assert (condition["status"], condition["reason"]) == ("False", "PoolMissing")
    assert "nowhere" in condition["message"]
    assert not scene.mirror.pods_seen


async def test_a_pool_that_cannot_keep_its_guarantees_says_so_and_changes_nothing(pooled: PoolScene) -> None:
    scene = pooled.scene
    await pooled.apply(JOB, workers={"min": 1, "max": 3}, template=on_node("fast"))
    await scene.wait(lambda: pooled.trains_on(JOB, fast=3), "it trains")
    types = [{"name": "fast", "quota": 1}, {"name": "slow", "quota": 1}]
    await pooled.change_pool(types=types)

    def ready(pool: Object) -> Object:
        return next(each for each in pool["status"]["conditions"] if each["type"] == "Ready")

    pool = await scene.eventually(
        pooled.pool, lambda found: ready(found)["status"] == "False", "the condition Ready"
    )
    assert "queues guarantee 2 devices of fast" in ready(pool)["message"]
    await scene.wait(lambda: scene.condition("Scheduled").get("reason") == "PoolMissing", "the job is told")
    assert pooled.pods(JOB) == {"fast": 3}


BAD: list[tuple[Object, str]] = [
    ({"types": []}, "types"),
    ({"types": [{"name": "A!", "quota": 1}]}, "name"),
    ({"types": [{"name": "a"}]}, "quota"),
    ({"types": [{"name": "a", "quota": -1}]}, "quota"),
    ({"types": [{"name": "a", "quota": 2**63}]}, "quota"),
    ({"types": [{"name": "a", "quota": 1.5}]}, "quota"),
    ({"policy": "best"}, "policy"),
    ({"coolDownSeconds": 3601}, "coolDownSeconds"),
    ({"queues": [{"name": "q", "weight": 0}]}, "weight"),
    ({"queues": [{"name": "q", "weight": 2**63}]}, "weight"),
    ({"queues": [{"name": "q", "guaranteed": {"a": -1}}]}, "guaranteed"),
]
BAD_JOBS: list[tuple[Object, str]] = [
    ({}, "pool"),
    ({"pool": "p", "weight": 0}, "weight"),
    ({"pool": "p", "weight": 2**63}, "weight"),
    ({"pool": "p", "weight": -1}, "weight"),
    ({"pool": "p", "priority": 2**63}, "priority"),
    ({"pool": "p", "queue": ""}, "queue"),
]


async def test_bad_fields_of_pools_and_of_their_jobs_are_refused_by_name(pooled: PoolScene) -> None:
    for bad, field in BAD:
        with pytest.raises(ApiError) as refused:
            await pooled.change_pool(**bad)
        assert refused.value.status == 422, bad
        assert field in refused.value.message, bad
    for bad, field in BAD_JOBS:
        with pytest.raises(ApiError) as refused:
            await pooled.apply(JOB, scheduling=bad)
        assert refused.value.status == 422, bad
        assert field in refused.value.message, bad
    assert not pooled.scene.mirror.jobs
