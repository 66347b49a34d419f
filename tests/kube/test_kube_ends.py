"""Ends of pods and jobs: preemption, exit codes, the budget, time limits, time to live."""

from __future__ import annotations

import pytest

from elastane_proto.v1 import job_pb2
from kube.scene import JOB, Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")
FIRST, SECOND, THIRD = (f"{JOB}-worker-{index}" for index in range(3))


async def stays_over(scene: Scene, phase: str) -> None:
    """Check that a finished job is left alone, even by a restarted operator and with a changed spec."""
    seen = set(scene.mirror.pods_seen)
    scene.operator.kill()
    await scene.operator.ended()
    await scene.change(restartBudget=9, workers={"max": 4})
    scene.operator.start()
    generation = scene.job["metadata"]["generation"]
    await scene.wait(lambda: scene.status["observedGeneration"] >= generation, "a look at the changed spec")
    await scene.wait_quiet(0.5)
    assert scene.status["phase"] == phase
    assert set(scene.mirror.pods_seen) == seen
    assert not scene.pods


async def test_pods_that_are_taken_away_come_again_and_do_not_count(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 3}, restartBudget=0)
    await scene.wait_ready(3)
    kubelet, taken = scene.kubelet, 0
    acts = [
        ("preempted by the scheduler, two at once", lambda: [kubelet.preempt(FIRST), kubelet.preempt(THIRD)]),
        ("evicted", lambda: [kubelet.evict(SECOND)]),
        ("gone with its node", lambda: [kubelet.lose_node_of(FIRST)]),
        ("SIGKILL", lambda: [kubelet.exit(THIRD, 137)]),
        ("SIGTERM", lambda: [kubelet.exit(SECOND, 143)]),
    ]
    for what, act in acts:
        calls = act()
        taken += len(calls)
        for call in calls:
            await call
        await scene.wait(lambda: scene.status["preemptions"] == taken, f"{what}: counted as taken away")  # noqa: B023
        await scene.wait_ready(3)
        assert scene.status["restarts"] == 0, what
        assert len(scene.mirror.pods_seen) == 3 + taken, what
    said = " ".join(event["message"] for event in scene.events())
    assert "Evicted" in said
    assert "137" in said
    assert scene.mirror.pods_most == 3
    assert (await scene.at_master()).step > 0


async def test_a_retryable_exit_is_tried_again_until_the_budget_is_spent(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 2}, restartBudget=1)
    await scene.wait_ready(2)
    await scene.kubelet.exit(SECOND, 200)
    await scene.wait(lambda: scene.status["restarts"] == 1, "a restart that counts")
    await scene.wait_ready(2)
    await scene.kubelet.exit(FIRST, 200)
    status = await scene.wait_phase("Failed")
    assert "budget" in status["reason"].lower()
    assert FIRST in status["reason"]
    await scene.wait(lambda: not scene.pods, "no pod works any more")
    assert (await scene.at_master()).phase == job_pb2.JOB_PHASE_CANCELLED
    await stays_over(scene, "Failed")


async def test_a_permanent_exit_ends_the_job(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 2}, restartBudget=5)
    await scene.wait_ready(2)
    await scene.kubelet.exit(SECOND, 3)
    status = await scene.wait_phase("Failed")
    assert SECOND in status["reason"]
    assert "exit code 3" in status["reason"]
    assert (status["restarts"], len(scene.mirror.pods_seen)) == (0, 2)
    assert status["completionTime"]
    await scene.wait(lambda: not scene.pods, "no pod works any more")
    event = await scene.wait(lambda: [e for e in scene.events() if e["type"] == "Warning"], "a warning")
    assert "exit code 3" in event[0]["message"]


async def test_the_codes_that_are_retryable_can_be_chosen(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 2}, exitCodes={"retryable": ["3", "40-42"]})
    await scene.wait_ready(2)
    await scene.kubelet.exit(SECOND, 41)
    await scene.wait(lambda: scene.status["restarts"] == 1, "a restart")
    await scene.wait_ready(2)
    await scene.kubelet.exit(SECOND, 200)
    await scene.wait_phase("Failed")


async def test_a_job_whose_script_ends_has_succeeded(scene: Scene) -> None:
    scene.script.steps = 10
    await scene.apply(workers={"min": 1, "max": 2})
    status = await scene.wait_phase("Succeeded")
    assert status["completionTime"]
    assert (await scene.at_master()).phase == job_pb2.JOB_PHASE_SUCCEEDED
    await scene.wait(lambda: len(scene.mirror.pods) == 2 and not scene.pods, "its pods stay, ended")
    await stays_over(scene, "Succeeded")


async def test_what_is_left_of_a_finished_job_goes_after_its_time_and_never_comes_again(scene: Scene) -> None:
    scene.script.steps = 5
    await scene.apply(workers={"min": 1, "max": 2}, ttlSecondsAfterFinished=1)
    await scene.wait_phase("Succeeded")
    await scene.wait(lambda: not scene.mirror.pods, "its pods deleted")
    assert scene.job, "the job stays as the record"
    await stays_over(scene, "Succeeded")


async def test_a_job_that_is_active_for_too_long_fails(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 2}, activeDeadlineSeconds=2)
    await scene.wait_ready(2)
    status = await scene.wait_phase("Failed")
    assert "activeDeadlineSeconds" in status["reason"]
    await scene.wait(lambda: not scene.pods, "no pod works any more")


async def test_too_few_workers_for_too_long_are_released(scene: Scene) -> None:
    scene.kubelet.capacity = 1
    await scene.apply(workers={"min": 2, "max": 3}, maxWaitSeconds=1)
    await scene.wait(lambda: len(scene.kubelet.trainers) == 1, "one worker that waits for the second")
    await scene.wait_phase("MaxWaitTimeExceeded")
    await scene.wait(lambda: not scene.pods, "no pod works any more")
    assert len(scene.mirror.pods_seen) == 3
    await stays_over(scene, "MaxWaitTimeExceeded")


async def test_a_fixed_job_waits_for_all_its_workers(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 2}, recoveryPolicy="Fixed")
    await scene.wait_ready(2)
    scene.kubelet.capacity = 1
    await scene.kubelet.preempt(SECOND)
    await scene.wait_phase("Waiting")
    stopped = (await scene.at_master()).step
    scene.kubelet.capacity = 2
    await scene.mirror.changed()
    await scene.wait_ready(2)
    await scene.wait(lambda: scene.status.get("step", 0) > stopped, "steps again")
