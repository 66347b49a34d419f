"""Suspending, resuming and deleting jobs; an unreachable master."""

from __future__ import annotations

import socket

import pytest

from elastane_proto.v1 import job_pb2
from integration.master_support import MasterProcess
from kube.scene import Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")
CHECKPOINTS = {"url": "memory://elastane-test", "timeoutSeconds": 10}


async def phase_at_master(scene: Scene, name: str) -> job_pb2.Job:
    return (await scene.jobs.Get(job_pb2.JobServiceGetRequest(name=name))).job


async def test_a_suspended_job_is_saved_and_goes_on_where_it_was(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 2}, checkpoint=CHECKPOINTS)
    await scene.wait_ready(2)
    await scene.wait(lambda: scene.status.get("step", 0) > 3, "steps")
    await scene.change(suspend=True)
    await scene.wait_phase("Suspended")
    await scene.wait(lambda: not scene.mirror.pods, "its pods gone")
    suspended = await scene.at_master()
    assert suspended.phase == job_pb2.JOB_PHASE_SUSPENDED
    assert suspended.saved_step > 3
    assert suspended.saved_step in scene.script.checkpoints.values()
    assert scene.status["workers"]["desired"] == 0
    assert (scene.status["preemptions"], scene.status["restarts"]) == (0, 0)
    await scene.change(suspend=False)
    await scene.wait_ready(2)
    await scene.wait(
        lambda: scene.status.get("step", 0) > suspended.step, "steps after those that were saved"
    )
    assert scene.status.get("savedStep", -1) >= suspended.saved_step


async def test_a_job_that_is_made_suspended_starts_nothing(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 2}, suspend=True)
    await scene.wait_phase("Suspended")
    await scene.wait_quiet(0.5)
    assert not scene.mirror.pods_seen
    await scene.change(suspend=False)
    await scene.wait_ready(2)


async def test_deleting_cancels_the_job(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 2})
    await scene.wait_ready(2)
    name = scene.status["jobName"]
    await scene.delete()
    await scene.wait_gone()
    assert (await phase_at_master(scene, name)).phase == job_pb2.JOB_PHASE_CANCELLED


async def test_deleting_saves_a_checkpoint_first_if_asked(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 2}, checkpoint=CHECKPOINTS | {"onDelete": "Save"})
    await scene.wait_ready(2)
    await scene.wait(lambda: scene.status.get("step", 0) > 3, "steps")
    name = scene.status["jobName"]
    await scene.delete()
    await scene.wait_gone()
    left = await phase_at_master(scene, name)
    assert left.phase == job_pb2.JOB_PHASE_SUSPENDED
    assert left.saved_step in scene.script.checkpoints.values()


async def test_a_job_made_again_under_its_old_name_is_another_job(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 1})
    await scene.wait_ready(1)
    name = scene.status["jobName"]
    await scene.delete()
    await scene.wait_gone()
    await scene.apply(workers={"min": 1, "max": 1})
    await scene.wait_ready(1)
    assert scene.status["jobName"] != name


async def test_deleting_does_not_hang_on_a_master_that_is_away(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    saving = CHECKPOINTS | {"onDelete": "Save", "timeoutSeconds": 1}
    await scene.apply(workers={"min": 1, "max": 2}, master={"address": address}, checkpoint=saving)
    await scene.wait(lambda: scene.job["metadata"].get("finalizers"), "the finalizer")
    await scene.wait(lambda: scene.condition("MasterReachable").get("status") == "False", "the condition")
    assert address.split(":")[1] in str(scene.status), "the status says which master"
    await scene.delete()
    await scene.wait_gone(seconds=15)


async def test_a_master_that_dies_takes_no_pod_with_it(scene: Scene, master: MasterProcess) -> None:
    await scene.apply(workers={"min": 1, "max": 2})
    await scene.wait_ready(2)
    pods = {pod["metadata"]["uid"] for pod in scene.pods.values()}
    await master.kill()
    try:
        await scene.wait(lambda: scene.condition("MasterReachable").get("status") == "False", "the condition")
        assert {pod["metadata"]["uid"] for pod in scene.pods.values()} == pods
    finally:
        await master.start()
    await scene.wait(lambda: scene.condition("MasterReachable").get("status") == "True", "the master back")
    step = (await scene.at_master()).step
    await scene.wait(lambda: scene.status.get("step", 0) > step, "steps again")
    assert {pod["metadata"]["uid"] for pod in scene.pods.values()} == pods
    assert set(scene.mirror.pods_seen) == pods


async def test_what_a_job_costs_is_in_its_status(scene: Scene) -> None:
    spot = {"provider": "AWS", "price": "3600", "onDemandPrice": "14400", "currency": "EUR"}
    await scene.apply(workers={"min": 1, "max": 1}, spot=spot)
    await scene.wait_ready(1)
    await scene.wait(lambda: float(scene.status.get("cost", {}).get("saved", 0)) > 0.05, "some cents saved")
    cost = scene.status["cost"]
    spent, on_demand = float(cost["spent"]), float(cost["onDemand"])
    assert cost["currency"] == "EUR"
    assert spent < on_demand <= 4 * spent + 0.05, "only useful time counts as what on-demand would have cost"
    assert float(cost["saved"]) == pytest.approx(on_demand - spent, abs=0.011)
    assert 0 < float(cost["savingsPercent"].rstrip("%")) <= 75
    await scene.change(spot={"price": "1800"})
    cheaper = 1_800_000_000
    await scene.eventually(
        scene.at_master, lambda job: job.cost.spot_price_micros == cheaper, "the new price"
    )
