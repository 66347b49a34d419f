"""A job in a pool, on a cluster in miniature: it follows its share, also when its operator dies."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest

from elastane_operator.decisions.observed import PoolView
from elastane_operator.decisions.pool_jobs import read_pool_job
from elastane_operator.decisions.pool_spec import read_pool_spec
from elastane_operator.decisions.pool_status import Share
from unit.deploy.elastic_jobs import START, Cluster, Killed, job_body
from unit.deploy.pool_worlds import pool_body

POOLED: dict[str, Any] = {"checkpoint": {"url": "s3://bucket/digits"}, "scheduling": {"pool": "gpus"}}


def share(revision: int = 1, **granted: int) -> PoolView:
    """What the pool says of the job."""
    reason = f"ml/digits has {granted or 'no devices'}, for 5 s"
    given: dict[str, Any] = {"planned": granted, "granted": granted, "reason": reason, "revision": revision}
    return PoolView(Share("ml", "digits", "0123456789abcdef", at=START, **given))


def pooled(view: PoolView | None = None) -> Cluster:
    cluster = Cluster(**POOLED)
    cluster.pool = view or share(l4=2)
    return cluster


def kinds(cluster: Cluster) -> list[str]:
    return sorted(each.device_type for each in cluster.live())


def test_a_job_has_the_pods_of_its_share_and_not_its_maximum() -> None:
    cluster = pooled()
    status = cluster.settle()
    assert kinds(cluster) == ["l4", "l4"]
    assert (status.phase, status.workers.summary) == ("Running", "2/2")
    assert status.scheduling is not None
    assert (status.scheduling.devices, status.scheduling.revision) == ({"l4": 2}, 1)
    assert status.holds("Scheduled")
    assert cluster.said("Granted") == ["2 l4 granted: ml/digits has {'l4': 2}, for 5 s"]


def test_growth_keeps_the_pods_that_train() -> None:
    cluster = pooled()
    cluster.settle()
    before = {each.uid for each in cluster.live()}
    cluster.pool = share(2, l4=3)
    cluster.settle()
    assert before < {each.uid for each in cluster.live()}
    assert kinds(cluster) == ["l4"] * 3


def test_a_smaller_share_is_acknowledged_before_a_pod_goes() -> None:
    cluster = pooled(share(l4=3))
    cluster.settle()
    cluster.pool = share(2, l4=1)
    with pytest.raises(Killed):
        cluster.look(until=1)
    assert cluster.read().scheduling.devices == {"l4": 1}  # type: ignore[union-attr]
    assert kinds(cluster) == ["l4"] * 3
    status = cluster.settle()
    assert kinds(cluster) == ["l4"]
    assert status.preemptions == 0
    assert any(reason.startswith("2 l4 taken: ") for reason in status.last_reasons)


def test_a_new_pod_waits_for_one_that_terminates() -> None:
    cluster = pooled(share(l4=3))
    cluster.settle()
    cluster.pool = share(2, l4=1)
    cluster.look()
    terminating = [each for each in cluster.pods.values() if each.deleted is not None]
    assert len(terminating) == 2
    cluster.pool = share(3, l4=2)
    cluster.look()
    assert kinds(cluster) == ["l4"]
    cluster.settle()
    assert kinds(cluster) == ["l4", "l4"]


def test_a_pod_that_vanished_is_replaced_only_once_there_is_room() -> None:
    """Otherwise its device could be another job's by now."""
    cluster = Cluster(**POOLED, workers={"min": 1, "max": 4})
    cluster.pool = share(l4=4)
    cluster.settle()
    cluster.pool = share(2, l4=2)
    cluster.look()
    del cluster.pods["digits-worker-0"]
    cluster.look()
    assert sorted(each.index for each in cluster.pods.values()) == [1, 2, 3]
    cluster.settle()
    assert cluster.indexes() == [0, 1]


def test_pods_follow_the_grant_and_not_the_plan() -> None:
    view = share(l4=1)
    assert view.share is not None
    planned = msgspec.structs.replace(view.share, planned={"l4": 3})
    cluster = pooled(PoolView(planned))
    status = cluster.settle()
    assert kinds(cluster) == ["l4"]
    assert status.scheduling is not None
    assert (status.scheduling.devices, status.scheduling.planned) == ({"l4": 1}, {"l4": 3})


def test_without_its_pool_no_pod_is_made_for_one_that_vanished() -> None:
    cluster = pooled()
    cluster.settle()
    cluster.pool = PoolView(error="there is no ElasticPool gpus")
    del cluster.pods["digits-worker-1"]
    cluster.settle()
    assert kinds(cluster) == ["l4"]
    cluster.pool = share(l4=2)
    cluster.settle()
    assert kinds(cluster) == ["l4", "l4"]


def test_a_job_that_loses_all_is_saved_waits_and_goes_on() -> None:
    cluster = pooled()
    cluster.settle()
    cluster.at_master(step=70)
    cluster.pool = share(2)
    status = cluster.settle()
    assert not cluster.pods
    assert cluster.asked == ["Create", "Suspend"]
    assert (status.phase, status.workers.desired) == ("Waiting", 0)
    assert "goes on at step 70" in status.reason
    condition = status.condition("Scheduled")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "Waiting")
    assert condition.message
    cluster.pool = share(3, l4=1)
    assert cluster.settle().phase == "Running"
    assert cluster.asked[-1] == "Resume"
    assert (status.restarts, status.preemptions) == (0, 0)


def test_a_job_that_is_declined_makes_nothing_and_says_so_once() -> None:
    cluster = pooled(share())
    status = cluster.settle()
    assert not cluster.pods
    assert not cluster.asked
    assert status.phase == "Waiting"
    assert cluster.said("Declined") == ["ml/digits has no devices, for 5 s"]


@pytest.mark.parametrize("view", [PoolView(), PoolView(error="there is no ElasticPool gpus")])
def test_of_a_pool_that_cannot_be_read_the_job_keeps_what_it_has(view: PoolView) -> None:
    cluster = pooled()
    cluster.settle()
    cluster.pool = view
    assert cluster.settle().phase == "Running"
    assert kinds(cluster) == ["l4", "l4"]
    assert cluster.read().scheduling.devices == {"l4": 2}  # type: ignore[union-attr]


def test_a_job_that_is_over_gets_no_pod_whatever_its_share() -> None:
    cluster = pooled()
    cluster.settle()
    cluster.at_master(phase="succeeded", workers=())
    for each in cluster.live():
        cluster.fail(each.index, 0)
    cluster.settle()
    made = cluster.made
    cluster.pool = share(2, l4=3)
    status = cluster.settle()
    assert (status.phase, cluster.made) == ("Succeeded", made)


def test_a_measured_speed_is_kept_with_two_digits() -> None:
    cluster = pooled()
    cluster.settle()
    cluster.at_master(est_seconds=0.012345)
    assert cluster.settle().scheduling.est_seconds == "0.012"  # type: ignore[union-attr]
    cluster.at_master(est_seconds=None)
    assert cluster.settle().scheduling.est_seconds == "0.012"  # type: ignore[union-attr]


def test_what_workers_measure_is_kept_by_the_type_of_their_pods() -> None:
    cluster = pooled(share(l4=1, t4=1))
    cluster.settle()
    assert cluster.job is not None
    seconds = {"l4": 0.1, "t4": 0.25}
    kinds_of = {pod.name: pod.kind for pod in cluster.live()}
    told = tuple(
        msgspec.structs.replace(worker, est_seconds=seconds[kinds_of[worker.worker.rsplit("-", 2)[0]]])
        for worker in cluster.job.workers
    )
    cluster.at_master(est_seconds=0.175, workers=told)
    cluster.look()
    status = cluster.read().scheduling
    assert status is not None and status.est_seconds_on == {"l4": "0.1", "t4": "0.25"}
    cluster.at_master(est_seconds=0.1, workers=told[:1])
    cluster.look()
    assert cluster.read().scheduling.est_seconds_on["t4"] == "0.25"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("determinism", "limits", "mixes"),
    [("D1", {}, False), ("D2", {"cpu": "4"}, True), ("D2", {"nvidia.com/gpu": 1}, False), ("D0", {}, False)],
)
def test_which_jobs_may_have_unlike_processors(determinism: str, limits: Any, mixes: bool) -> None:
    container = {"name": "worker", "image": "i", "resources": {"limits": limits}}
    body = job_body(**POOLED, determinism=determinism, template={"spec": {"containers": [container]}})
    found = read_pool_job(body, read_pool_spec(pool_body()))
    assert found.active and found.mixes is mixes


@pytest.mark.parametrize("until", range(7))
def test_an_operator_that_dies_at_any_write_of_a_change_is_followed_by_one_that_ends_it(until: int) -> None:
    cluster = pooled(share(l4=3))
    for revision, view in enumerate((share(1, l4=3), share(2, l4=1), share(3), share(4, l4=2)), start=1):
        cluster.pool = view
        with contextlib.suppress(Killed):
            cluster.look(until=until)
        cluster.settle()
        granted = view.share.granted if view.share is not None else {}
        assert kinds(cluster) == ["l4"] * granted.get("l4", 0)
        assert cluster.read().scheduling.revision == revision  # type: ignore[union-attr]
    assert cluster.most_live == 3
    assert (cluster.read().restarts, cluster.read().preemptions) == (0, 0)


def test_without_a_pool_nothing_of_it_is_in_the_status() -> None:
    status = Cluster().settle()
    assert status.scheduling is None
    assert status.condition("Scheduled") is None
    assert "scheduling" not in msgspec.json.decode(msgspec.json.encode(status))
