"""Every transition of an ElasticJob, on a cluster in miniature."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from elastane_operator.decisions.reconcile import refuse
from elastane_operator.decisions.spec import Workers
from elastane_operator.decisions.status import Status
from unit.deploy.elastic_jobs import Cluster, identity


def running(**spec: Any) -> Cluster:
    cluster = Cluster(**spec)
    assert cluster.settle().phase == "Running"
    return cluster


def test_a_new_job_gets_its_finalizer_its_job_and_its_pods_in_that_order() -> None:
    cluster = Cluster()
    assert cluster.look() and cluster.finalizers and cluster.job is not None and not cluster.pods
    status = cluster.settle()
    assert cluster.asked == ["Create"] and cluster.indexes() == [0, 1, 2]
    assert (status.phase, status.replicas, status.workers.summary) == ("Running", 3, "3/3")
    assert status.holds("Accepted") and status.holds("MasterReachable") and status.holds("WorkersReady")
    assert status.job_name == "ml.digits-01234567" and status.started


def test_no_pod_is_made_while_the_master_cannot_be_asked() -> None:
    cluster = Cluster()
    cluster.reachable = False
    status = cluster.settle()
    assert not cluster.pods and status.phase == "Pending" and "no answer" in status.reason
    condition = status.condition("MasterReachable")
    assert condition is not None and condition.status == "False"
    cluster.reachable = True
    assert cluster.settle().phase == "Running"


def test_pods_stay_as_they_are_when_a_master_goes_away() -> None:
    cluster = running()
    cluster.reachable = False
    cluster.set_spec(workers=Workers(1))
    assert cluster.settle().phase == "Running" and cluster.indexes() == [0, 1, 2]
    cluster.reachable = True
    cluster.settle()
    assert cluster.indexes() == [0]


def test_scaling_out_and_in_tells_the_master_and_takes_the_newest_first() -> None:
    cluster = running()
    cluster.set_spec(workers=Workers(5, 2))
    status = cluster.settle()
    assert cluster.indexes() == [0, 1, 2, 3, 4] and status.replicas == 5
    assert cluster.job is not None and (cluster.job.workers_min, cluster.job.workers_max) == (2, 5)
    cluster.set_spec(workers=Workers(2))
    status = cluster.settle()
    assert cluster.indexes() == [0, 1] and status.preemptions == 0 and status.restarts == 0
    assert cluster.asked == ["Create", "Scale", "Scale"]


def test_a_pod_that_was_scaled_in_is_no_preemption_while_it_drains() -> None:
    cluster = running()
    cluster.set_spec(workers=Workers(1))
    for _ in range(3):
        cluster.look()
        assert [each.index for each in cluster.pods.values() if each.deleted is not None] == [1, 2]
    cluster.change("digits-worker-2", phase="Failed", exit_code=143)
    cluster.look()
    assert cluster.read().preemptions == 0
    assert cluster.settle().preemptions == 0 and cluster.indexes() == [0]


def test_scaling_in_takes_pods_that_do_not_train_before_those_that_do() -> None:
    cluster = running()
    cluster.change("digits-worker-0", phase="Pending", scheduled=False, ready=False)
    cluster.set_spec(workers=Workers(2))
    cluster.look()
    assert cluster.indexes() == [1, 2]


def test_scaling_in_takes_who_stands_by_before_members_of_the_ring() -> None:
    cluster = running()
    assert cluster.job is not None
    from elastane_operator.decisions.observed import WorkerView

    states = ("standby", "member", "member")
    cluster.at_master(workers=tuple(WorkerView(f"digits-worker-{k}-9-0", s) for k, s in enumerate(states)))  # type: ignore[arg-type]
    cluster.set_spec(workers=Workers(2))
    cluster.look()
    assert cluster.indexes() == [1, 2]


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        ({"deleted": True}, "preempted"),
        ({"phase": "Failed", "reason": "Evicted", "exit_code": None}, "preempted"),
        ({"phase": "Failed", "exit_code": 1, "disruption": "EvictionByEvictionAPI"}, "preempted"),
        ({"phase": "Failed", "exit_code": 143}, "preempted"),
        ({"phase": "Failed", "exit_code": 137}, "preempted"),
        ({"phase": "Failed", "reason": "NodeLost"}, "preempted"),
        ({"phase": "Failed", "reason": "OutOfcpu"}, "preempted"),
        ({"phase": "Failed", "exit_code": 137, "exit_reason": "OOMKilled"}, "retryable"),
        ({"phase": "Failed", "exit_code": 128}, "retryable"),
        ({"phase": "Failed", "exit_code": 255}, "retryable"),
        ({"phase": "Failed", "exit_code": 1}, "permanent"),
        ({"phase": "Failed", "exit_code": 127}, "permanent"),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, "permanent"),
        ({"phase": "Pending", "waiting": "InvalidImageName"}, "permanent"),
        ({"phase": "Succeeded", "exit_code": 0}, "left"),
        # Seen only once it was over: it drained and ended in good order, but it was taken away.
        ({"phase": "Succeeded", "exit_code": 0, "deleted": True}, "preempted"),
        ({"phase": "Succeeded", "exit_code": 0, "disruption": "PreemptionByScheduler"}, "preempted"),
        ({"phase": "Failed", "exit_code": 204}, "left"),
        ({"phase": "Failed", "exit_code": 206}, "left"),
    ],
)
def test_an_end_has_its_outcome_and_is_counted_once(ended: dict[str, Any], outcome: str) -> None:
    cluster = running()
    cluster.wait(60)
    if ended.pop("deleted", False):
        ended["deleted"] = cluster.now
    cluster.change("digits-worker-1", ready=False, **ended)
    cluster.look()
    status = cluster.settle()
    cluster.wait(600)
    status = cluster.settle()
    counts = (status.preemptions, status.restarts, status.phase)
    assert (
        counts
        == {
            "preempted": (1, 0, "Running"),
            "retryable": (0, 1, "Running"),
            "left": (0, 0, "Running"),
            "permanent": (0, 0, "Failed"),
        }[outcome]
    )
    if outcome != "permanent":
        assert cluster.indexes() == [0, 1, 2]


def test_a_preempted_pod_is_made_again_at_once_and_a_failed_one_after_its_backoff() -> None:
    cluster = running(restartBackoffSeconds=10)
    cluster.wait(60)
    cluster.fail(0, 143)
    cluster.fail(1, 200)
    cluster.look()
    cluster.look()
    assert cluster.indexes() == [0, 2]
    decision = cluster.decide()
    assert decision.next_look is not None and 9 < decision.next_look <= 10
    cluster.wait(10)
    cluster.settle()
    assert cluster.indexes() == [0, 1, 2] and "does not count" in cluster.said("Preempted")[0]


def test_backoff_doubles_and_the_budget_ends_the_job() -> None:
    cluster = running(restartBudget=2, restartBackoffSeconds=4)
    for restart, wait in enumerate((4.0, 8.0), start=1):
        cluster.fail(0, 200)
        cluster.look()
        assert cluster.read().restarts == restart
        cluster.look()
        looked = cluster.decide().next_look
        assert looked == wait
        cluster.wait(wait)
        cluster.settle()
    cluster.fail(0, 200)
    status = cluster.settle()
    assert status.phase == "Failed" and "restartBudget" in status.reason
    condition = status.condition("Failed")
    assert condition is not None and condition.reason == "RestartBudgetExhausted"
    assert cluster.asked[-1] == "Cancel" and not cluster.live()


def test_preemptions_without_end_never_use_up_the_budget() -> None:
    cluster = running(restartBudget=0)
    for _ in range(20):
        cluster.wait(60)
        cluster.fail(2, 137)
        cluster.settle()
    status = cluster.read()
    assert (status.phase, status.preemptions, status.restarts) == ("Running", 20, 0)


def test_other_exit_codes_can_be_made_retryable() -> None:
    cluster = running(exitCodes={"retryable": ["3", "10-12"]}, restartBackoffSeconds=0)
    cluster.fail(0, 11)
    assert cluster.settle().restarts == 1
    cluster.fail(0, 200)
    assert cluster.settle().phase == "Failed"


@pytest.mark.parametrize(
    ("phase", "shown"),
    [
        ("succeeded", "Succeeded"),
        ("failed", "Failed"),
        ("cancelled", "Cancelled"),
        ("max_wait_exceeded", "MaxWaitTimeExceeded"),
    ],
)
def test_what_the_master_decides_is_carried_out_and_stays(phase: Any, shown: str) -> None:
    cluster = running()
    cluster.at_master(phase=phase, reason="2 of 3 workers were there after 600 s", workers=())
    status = cluster.settle()
    assert status.phase == shown and status.settled and status.completion_time is not None
    assert status.reason == "2 of 3 workers were there after 600 s"
    cluster.wait(60)
    cluster.settle()
    assert not cluster.live() and cluster.asked == ["Create"]
    cluster.set_spec(workers=Workers(5), suspend=False)
    cluster.job = None
    assert cluster.settle().phase == shown and not cluster.live(), "a finished job came back"


def test_workers_of_a_job_that_succeeded_may_end_by_themselves() -> None:
    cluster = running()
    cluster.at_master(phase="succeeded")
    cluster.look()
    assert cluster.read().phase == "Succeeded" and len(cluster.live()) == 3
    cluster.wait(31)
    cluster.settle()
    assert not cluster.live()


def test_suspending_waits_for_the_checkpoint_and_resuming_makes_pods_again() -> None:
    cluster = running(checkpoint={"url": "s3://bucket/digits"})
    cluster.at_master(step=7)
    cluster.set_spec(suspend=True)
    cluster.look()
    assert (
        cluster.read().phase == "Suspending" and cluster.asked[-1] == "Suspend" and len(cluster.live()) == 3
    )
    status = cluster.settle()
    assert status.phase == "Suspended" and not cluster.pods and status.holds("Suspended")
    assert "step 7" in status.reason and status.workers.desired == 0
    cluster.set_spec(suspend=False)
    status = cluster.settle()
    assert status.phase == "Running" and cluster.asked[-1] == "Resume" and cluster.indexes() == [0, 1, 2]
    assert (status.restarts, status.preemptions, status.suspend_time) == (0, 0, None)


def test_a_job_that_is_suspended_from_the_beginning_starts_nothing() -> None:
    cluster = Cluster(suspend=True)
    assert cluster.settle().phase == "Suspended"
    assert not cluster.pods and not cluster.asked
    cluster.set_spec(suspend=False)
    assert cluster.settle().phase == "Running"


def test_suspending_gives_up_on_a_master_that_does_not_answer() -> None:
    cluster = running(checkpoint={"url": "s3://b/d", "timeoutSeconds": 60})
    cluster.reachable = False
    cluster.set_spec(suspend=True)
    cluster.settle()
    assert len(cluster.live()) == 3
    assert cluster.decide().next_look == 60
    cluster.wait(60)
    cluster.settle()
    assert not cluster.live()


def test_the_deadline_counts_active_time_only() -> None:
    cluster = running(activeDeadlineSeconds=100, checkpoint={"url": "s3://b/d"})
    cluster.wait(90)
    cluster.set_spec(suspend=True)
    cluster.settle()
    cluster.wait(1000)
    cluster.set_spec(suspend=False)
    assert cluster.settle().phase == "Running"
    cluster.wait(100)
    status = cluster.settle()
    condition = status.condition("Failed")
    assert status.phase == "Failed" and condition is not None and condition.reason == "DeadlineExceeded"
    assert cluster.asked[-1] == "Cancel"


def test_after_its_time_to_live_a_job_leaves_nothing_and_does_not_come_back() -> None:
    cluster = running(
        ttlSecondsAfterFinished=300, master={"perJob": {"image": "master:1"}}, restartBackoffSeconds=0
    )
    assert len(cluster.objects) == 3
    cluster.fail(0, 0)
    cluster.at_master(phase="succeeded")
    cluster.settle()
    assert cluster.pods and cluster.objects
    cluster.wait(300)
    status = cluster.settle()
    assert not cluster.pods and not cluster.objects and status.cleaned_time is not None
    cluster.job = None
    cluster.wait(3600)
    assert cluster.settle().phase == "Succeeded" and not cluster.pods and not cluster.objects


def test_a_master_of_its_own_is_made_before_the_job() -> None:
    cluster = Cluster(master={"perJob": {}})
    cluster.reachable = False
    cluster.settle()
    assert {kind for kind, _ in cluster.objects} == {"NetworkPolicy", "Service", "StatefulSet"}
    cluster.reachable = True
    assert cluster.settle().phase == "Running"


def test_a_master_that_lost_the_job_gets_it_again() -> None:
    cluster = running()
    cluster.job = None
    assert cluster.settle().phase == "Running"
    assert cluster.asked == ["Create", "Create"] and cluster.said("JobLost")


@pytest.mark.parametrize("on_delete", ["Save", "Skip"])
def test_deleting_asks_the_master_first(on_delete: str) -> None:
    cluster = running(checkpoint={"url": "s3://b/d", "onDelete": on_delete})
    cluster.deleted = cluster.now
    for _ in range(4):
        cluster.look()
    assert cluster.gone and not cluster.live()
    assert cluster.asked[-1] == {"Save": "Suspend", "Skip": "Cancel"}[on_delete]


@pytest.mark.parametrize(("on_delete", "seconds"), [("Save", 40), ("Skip", 10)])
def test_deleting_never_waits_longer_than_told_for_a_master_that_is_away(
    on_delete: str, seconds: int
) -> None:
    cluster = running(checkpoint={"url": "s3://b/d", "onDelete": on_delete, "timeoutSeconds": 40})
    cluster.reachable = False
    cluster.deleted = cluster.now
    cluster.look()
    assert not cluster.gone
    cluster.wait(seconds)
    cluster.look()
    assert cluster.gone
    assert cluster.said({"Save": "NotSaved", "Skip": "LeftAtMaster"}[on_delete])


def test_an_operator_that_comes_late_to_a_deletion_still_cancels_the_job() -> None:
    cluster = running(checkpoint={"url": "s3://b/d", "onDelete": "Skip"})
    cluster.deleted = cluster.now
    cluster.wait(60)
    for _ in range(3):
        cluster.look()
    assert cluster.gone and cluster.asked[-1] == "Cancel" and not cluster.said("LeftAtMaster")


def test_a_wrong_spec_begins_nothing_and_touches_nothing() -> None:
    problems = ["workers.min (4) must be at most workers.max (2)"]
    decision = refuse(identity(), Status(), problems, Cluster().now)
    assert decision.status.phase == "Pending" and not decision.actions
    condition = decision.status.condition("Accepted")
    assert condition is not None and condition.status == "False" and condition.message == problems[0]
    again = refuse(identity(), decision.status, problems, Cluster().now + timedelta(seconds=5))
    assert not again.notes and again.status == decision.status
    gone = refuse(identity(deleted=Cluster().now), decision.status, problems, Cluster().now)
    assert len(gone.actions) == 1


def test_prices_are_told_once_so_that_a_later_change_at_the_master_stays() -> None:
    from elastane_operator.decisions.observed import CostView

    cluster = Cluster(spot={"price": "0.35", "onDemandPrice": "1.20"})
    cluster.look()
    assert cluster.job is not None
    cluster.at_master(cost=CostView(spot_price_micros=350_000, on_demand_price_micros=1_200_000))
    cluster.settle()
    cluster.at_master(cost=CostView(spot_price_micros=500_000, on_demand_price_micros=1_200_000))
    cluster.settle()
    assert cluster.asked == ["Create"]
    cluster.set_spec(spot=Cluster(spot={"price": "0.4"}).spec.spot)
    cluster.look()
    assert cluster.asked == ["Create", "SetPrices"]


def test_pods_of_an_earlier_job_of_the_same_name_are_not_ours() -> None:
    cluster = Cluster()
    from unit.deploy.elastic_jobs import pod

    old = pod(1, uid="old", owner_uid="an earlier one", deleted=cluster.now)
    cluster.pods[old.name] = old
    cluster.look()
    cluster.look()
    assert sorted(cluster.pods) == ["digits-worker-0", "digits-worker-1", "digits-worker-2"]
    assert cluster.pods[old.name].uid == "old", "its name is waited for"
    status = cluster.settle()
    assert cluster.indexes() == [0, 1, 2] and status.preemptions == 0


def test_a_permanent_exit_ends_the_job_also_while_its_workers_are_sent_away() -> None:
    cluster = Cluster(checkpoint={"url": "s3://b/d"})
    cluster.settle()
    cluster.set_spec(suspend=True)
    cluster.fail(0, 1)
    cluster.look()
    assert cluster.read().phase == "Failed" and "exit code 1" in cluster.read().reason
    assert cluster.said("PermanentExit")
