"""Operators that die between any two writes, run in pairs, or lose the API must reach the same outcome.

The gateway of an operator kills it at a chosen write, before or after the API has executed it, and a new
operator is started. In every case each worker's pod is created once, and each end is counted once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

import patience
from elastane_proto.v1 import job_pb2
from kube.gateway import Cut
from kube.operator_process import Cluster, operator_process
from kube.scene import JOB, Scene
from slow import slow

pytestmark = pytest.mark.asyncio(loop_scope="session")
FIRST, SECOND, THIRD = (f"{JOB}-worker-{index}" for index in range(3))
Side = Literal["before", "after"]
CHECKPOINTS = {"url": "memory://elastane-test"}
#: Upper bound on the writes of any one change.
WRITES_MAX = 8


async def live_through(scene: Scene, cuts: Iterator[tuple[int, Side]]) -> int:
    """Play the life of a job, killing the operator once in each change; return the number of kills."""
    killed = 0

    async def survive(act: Callable[[], Awaitable[object]], reached: Callable[[], bool], what: str) -> None:
        nonlocal killed
        cut = Cut(*next(cuts), scene.operator.kill)
        killed += await scene.survive(cut, act, reached, what, 30)

    def ready(count: int) -> bool:
        workers = scene.status.get("workers", {})
        same = workers.get("ready") == workers.get("attending") == workers.get("desired") == count
        same = same and len(scene.pods) == len(scene.mirror.pods) == count
        return same and scene.status.get("phase") == "Running"

    def counted() -> tuple[int, int]:
        return scene.status.get("preemptions", 0), scene.status.get("restarts", 0)

    await survive(
        lambda: scene.apply(workers={"min": 1, "max": 2}, restartBudget=1, checkpoint=CHECKPOINTS),
        lambda: ready(2),
        "created",
    )
    await survive(lambda: scene.change(workers={"max": 3}), lambda: ready(3), "scaled up")
    await survive(lambda: scene.kubelet.preempt(FIRST), lambda: ready(3) and counted() == (1, 0), "preempted")
    await survive(
        lambda: scene.kubelet.exit(SECOND, 200), lambda: ready(3) and counted() == (1, 1), "restarted"
    )
    await survive(lambda: scene.scale(1), lambda: ready(1), "scaled down")
    assert set(scene.pods) == {FIRST}
    await survive(
        lambda: scene.change(suspend=True),
        lambda: scene.status.get("phase") == "Suspended" and not scene.mirror.pods,
        "suspended",
    )
    assert (await scene.at_master()).phase == job_pb2.JOB_PHASE_SUSPENDED
    await survive(lambda: scene.change(suspend=False), lambda: ready(1), "resumed")
    assert counted() == (1, 1)
    name = scene.status["jobName"]
    await survive(scene.delete, lambda: not scene.job and not scene.mirror.pods, "deleted")
    assert (
        await scene.jobs.Get(job_pb2.JobServiceGetRequest(name=name))
    ).job.phase == job_pb2.JOB_PHASE_CANCELLED
    # Two at first, a third by scaling, one for the preempted, one for the restarted, one after the pause.
    assert len(scene.mirror.pods_seen) == 6
    assert scene.mirror.pods_most == 3
    return killed


@slow
async def test_an_operator_that_is_killed_in_every_change_of_a_job_goes_on_where_it_was(scene: Scene) -> None:
    sides: tuple[Side, Side] = ("after", "before")
    cuts = zip(itertools.cycle((1, 2, 3, 2)), itertools.cycle(sides), strict=False)
    assert await live_through(scene, cuts) >= 6


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("at", range(1, WRITES_MAX + 1))
async def test_an_operator_is_killed_at_each_write(scene: Scene, at: int, side: Side) -> None:
    if not scene.cluster.is_real:
        pytest.skip("minutes long: run by make test-kube; the test above samples it")
    assert await live_through(scene, itertools.repeat((at, side))) >= 1


@pytest.mark.parametrize(
    "election", [pytest.param("true", id="one-leads"), pytest.param("false", id="both-act", marks=slow)]
)
async def test_two_operators_make_no_pod_twice(
    cluster: Cluster, scene: Scene, tmp_path: Path, election: str
) -> None:
    """With a lease one operator acts and the other takes over; without one they race, without harm."""
    shared, settings = scene.operator, {"ELASTANE_OPERATOR_LEADER_ELECTION": election}
    shared.kill()
    await shared.ended()
    # The service account may only write leases in its own namespace.
    place = cluster.account.split(":")[2] if cluster.account else scene.namespace
    # Long enough for a busy machine: a leader that renews too late would rightly lose the lease.
    settings |= {"ELASTANE_OPERATOR_LEASE_SECONDS": "5", "ELASTANE_OPERATOR_LEASE_NAMESPACE": place}
    async with contextlib.AsyncExitStack() as stack:
        pair = []
        for name in ("a", "b"):
            folder = tmp_path / name
            made = operator_process(cluster, folder, **settings)
            pair.append(await stack.enter_async_context(made))
            pair[-1].start()
        scene.operator = pair[0]
        await scene.apply(workers={"min": 1, "max": 3})
        await scene.wait_ready(3)
        assert (len(scene.mirror.pods_seen), scene.mirror.pods_most) == (3, 3)
        await scene.kubelet.preempt(FIRST)
        await scene.wait(lambda: scene.status["preemptions"] == 1, "a preemption")
        await scene.wait_ready(3)
        await scene.scale(2)
        await scene.wait_ready(2)
        # Kill the operator that acted, or either one if both did.
        acted = [each for each in pair if any("/pods" in write.path for write in each.gateway.writes)]
        assert len(acted) == 1 or election == "false"
        acted[0].kill()
        await acted[0].ended()
        scene.operator = next(each for each in pair if each is not acted[0])
        await scene.scale(4)
        await scene.wait_ready(4)
        assert set(scene.pods) == {f"{JOB}-worker-{index}" for index in range(4)}
        assert (len(scene.mirror.pods_seen), scene.mirror.pods_most) == (6, 4)
        assert (scene.status["preemptions"], scene.status["restarts"]) == (1, 0)
        await scene.delete()
        await scene.wait_gone()


async def test_an_api_that_is_away_for_a_while_is_caught_up_with(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 2})
    await scene.wait_ready(2)
    scene.operator.gateway.close()
    await scene.scale(3)
    await scene.kubelet.preempt(FIRST)
    await scene.wait(lambda: FIRST not in scene.mirror.pods, "the preempted pod gone, unseen")
    scene.operator.gateway.open()
    await scene.wait_ready(3)
    assert len(scene.mirror.pods_seen) == 4
    assert scene.operator.is_running


async def test_an_api_server_that_is_killed_and_started_again(scene: Scene) -> None:
    cluster = scene.cluster
    if not (cluster.is_real and cluster.crash and cluster.start):
        pytest.skip(
            "needs ELASTANE_TEST_APISERVER_CRASH and _START: commands that kill and start the API server"
        )
    await scene.apply(workers={"min": 1, "max": 2})
    await scene.wait_ready(2)
    await command(cluster.crash)
    await command(cluster.start)
    await scene.scale(3)

    async def ready() -> int:
        scene.operator.start()  # if the operator exits because of this, its pod would be restarted
        return int(scene.status.get("workers", {}).get("attending", 0))

    await scene.eventually(ready, lambda count: count == 3, "three workers", 60)
    assert len(scene.mirror.pods_seen) == 3
    # A server that has just started has not loaded the roles yet and refuses requests for a moment.
    scene.operator.gateway.refused.clear()
    await scene.delete()
    await scene.wait_gone()
    await scene.apply(workers={"min": 1, "max": 1})
    await scene.eventually(ready, lambda count: count == 1, "a job that is new since then is seen", 60)


async def command(line: str) -> None:
    process = await asyncio.create_subprocess_shell(line)
    try:
        async with patience.within(90):
            assert await process.wait() == 0, line
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def test_an_operator_stops_in_good_order(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 1})
    await scene.wait_ready(1)
    assert await scene.operator.stop() == 0
    assert len(scene.pods) == 1, "its pods stay"
