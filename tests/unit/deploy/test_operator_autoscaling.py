"""A job that scales by itself, on a cluster in miniature: pods follow the master's target alone."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest

from elastane_operator.decisions.observed import CostView, Targets
from elastane_operator.edge import translate
from elastane_proto.v1 import job_pb2
from unit.deploy.elastic_jobs import START, Cluster, Killed, spec_of

DEADLINE = "deadline=2026-12-04T18:00+01:00"
ON_DEMAND = {"workers": 2, "nodeSelector": {"capacity": "on-demand"}}


def scaled(**spec: Any) -> Cluster:
    return Cluster(**({"ests": 8, "workers": {"min": 1, "max": 4}, "scaling": {"mode": DEADLINE}} | spec))


def kinds(cluster: Cluster) -> list[str]:
    return sorted(each.kind for each in cluster.live())


def test_pods_follow_the_target_and_the_status_tells_why() -> None:
    cluster = scaled()
    assert cluster.settle().workers.summary == "4/4"
    assert cluster.asked == ["Create"], "the scaling is created with the job"
    finish = datetime(2026, 12, 4, 16, 0, 1, tzinfo=UTC)
    cluster.at_master(targets=Targets(2, 0, "two are as cheap as four", finish, 12_345_678))
    status = cluster.settle()
    assert (status.workers.summary, len(cluster.live())) == ("2/2", 2)
    assert status.scaling is not None
    assert status.scaling.mode == "deadline=2026-12-04T17:00:00Z"
    assert (status.scaling.target, status.scaling.reason) == (2, "two are as cheap as four")
    assert status.scaling.predicted_finish == datetime(2026, 12, 4, 16, 1, tzinfo=UTC)
    assert status.scaling.predicted_cost == "12.35 USD"
    assert status.holds("Scaling") and cluster.said("Scaled")[-1] == "2 workers: two are as cheap as four"
    cluster.at_master(targets=Targets(3, 0, "three"))
    assert cluster.settle().workers.summary == "3/3"
    assert cluster.read().preemptions == cluster.read().restarts == 0


def test_nobody_who_trains_is_released_before_the_master_lets_it_stand_by() -> None:
    cluster = scaled()
    cluster.settle()
    cluster.at_master(targets=Targets(2, 0, "two"))
    cluster.look()  # all four still train
    assert len(cluster.live()) == 4 and cluster.read().workers.desired == 2
    cluster.kubelet()  # the ring changes: two stand by
    cluster.look()
    assert len(cluster.live()) == 2
    names = {worker.worker for worker in cluster.job.workers if worker.state == "member"}  # type: ignore[union-attr]
    assert {f"{each.name}-7-0" for each in cluster.live()} == names


def test_on_demand_pods_come_beside_spot_and_take_its_place() -> None:
    cluster = scaled(scaling={"mode": DEADLINE, "onDemand": ON_DEMAND})
    cluster.settle()
    assert kinds(cluster) == [""] * 4
    cluster.at_master(targets=Targets(4, 2, "the time left requires it"))
    cluster.look()
    assert kinds(cluster) == ["", "", "", "", "on-demand", "on-demand"], "spot trains until they are there"
    cluster.settle()
    assert kinds(cluster) == ["", "", "on-demand", "on-demand"]
    assert cluster.said("Scaled")[-1].startswith("4 workers, 2 of them on demand: ")
    cluster.at_master(targets=Targets(4, 1, "ahead of time"))
    cluster.settle()
    assert kinds(cluster) == ["", "", "", "on-demand"]
    cluster.at_master(targets=Targets(1, 0, "done soon"))
    cluster.settle()
    assert kinds(cluster) == [""]


def test_without_nodes_on_demand_all_pods_are_of_the_template() -> None:
    cluster = scaled()
    cluster.settle()
    cluster.at_master(targets=Targets(4, 2, "set at the master"))
    cluster.settle()
    assert kinds(cluster) == [""] * 4


def test_a_horizontal_pod_autoscaler_beside_is_refused_in_words() -> None:
    cluster = scaled()
    cluster.settle()
    cluster.at_master(targets=Targets(2, 0, "two"))
    cluster.autoscalers = ("digits-hpa",)
    cluster.settle()
    cluster.set_spec(workers=spec_of(ests=8, workers={"min": 1, "max": 7}).workers)  # it writes `scale`
    status = cluster.settle()
    assert cluster.asked == ["Create"], "what it writes does not reach the master"
    assert len(cluster.live()) == 2, "and the target stays"
    condition = status.condition("Scaling")
    assert condition is not None and (condition.status, condition.reason) == ("False", "AutoscalerBeside")
    assert "HorizontalPodAutoscaler digits-hpa" in condition.message and "delete it" in condition.message
    assert len(cluster.said("AutoscalerBeside")) == 1
    cluster.autoscalers = ()
    status = cluster.settle()
    assert status.holds("Scaling") and cluster.asked == ["Create", "Scale"]
    assert len(cluster.live()) == 2, "a wider bound is no target"


def test_another_mode_of_the_spec_is_set_at_the_master_and_off_brings_the_maximum_back() -> None:
    cluster = scaled()
    cluster.settle()
    cluster.at_master(targets=Targets(1, 0, "one"))
    cluster.settle()
    cluster.set_spec(scaling=spec_of(scaling={"mode": "efficiency"}).scaling)
    cluster.settle()
    assert cluster.asked == ["Create", "SetScaling"]
    cluster.set_spec(scaling=spec_of(scaling={"mode": "off"}).scaling)
    status = cluster.settle()
    assert cluster.asked == ["Create", "SetScaling", "SetScaling"]
    assert status.scaling is None and len(cluster.live()) == 4 and not status.holds("Scaling")


def test_a_job_that_only_its_master_scales_is_followed_and_not_overridden() -> None:
    cluster = Cluster(ests=8, workers={"min": 1, "max": 4})
    cluster.settle()
    assert cluster.read().condition("Scaling") is None
    cluster.at_master(targets=Targets(2, 0, "elastane scale --auto"))
    status = cluster.settle()
    assert cluster.asked == ["Create"] and len(cluster.live()) == 2 and status.holds("Scaling")


def test_a_budget_that_is_spent_suspends_and_the_operator_leaves_it() -> None:
    cluster = scaled(scaling={"mode": "budget=5", "overBudget": "Suspend"})
    cluster.settle()
    cluster.at_master(phase="suspended", workers=(), cost=CostView(spent_micros=5_000_001))
    cluster.settle()
    assert cluster.asked == ["Create"] and not cluster.live()
    cluster.set_spec(scaling=spec_of(scaling={"mode": "budget=50", "overBudget": "Suspend"}).scaling)
    cluster.settle()
    assert cluster.asked == ["Create", "SetScaling", "Resume"] and cluster.live()


@pytest.mark.parametrize("until", range(6))
def test_an_operator_that_dies_leaves_a_target_that_the_next_one_follows(until: int) -> None:
    cluster = scaled(scaling={"mode": DEADLINE, "onDemand": ON_DEMAND})
    cluster.settle()
    cluster.at_master(targets=Targets(3, 2, "fewer, and two on demand"))
    with contextlib.suppress(Killed):
        cluster.look(until=until)
    cluster.settle()
    assert kinds(cluster) == ["", "on-demand", "on-demand"] and cluster.most_live <= 6


def test_stages_of_a_pipeline_are_settings_of_the_job() -> None:
    settings = translate.job_settings(spec_of(pipeline={"stagesMin": 2, "stagesMax": 3, "shadows": 1}))
    asked = settings.pipeline_stages_min, settings.pipeline_stages_max, settings.pipeline_shadows
    assert asked == (2, 3, 1)
    assert translate.job_settings(spec_of()).pipeline_stages_max == 0


def test_what_the_master_is_asked_and_what_it_says() -> None:
    spec = spec_of(
        workers={"min": 1, "max": 3},
        scaling={"mode": DEADLINE, "spotPolicy": "Uniform", "coldStartSeconds": 90, "onDemand": ON_DEMAND},
    )
    settings = translate.job_settings(spec)
    assert settings.scaling == "deadline=1796403600" and settings.on_demand_workers == 2
    request = translate.scaling(spec, "j", "r")
    assert (request.workers_max, request.workers_min) == (0, 0), "the bounds stay"
    assert request.scaling == settings.scaling and request.cold_start.seconds == 90
    assert translate.scaling(spec_of(scaling={"mode": "off"}), "j", "r").scaling == "off"
    assert not translate.job_settings(spec_of()).scaling
    job = job_pb2.Job(settings=settings)
    assert translate.job_view(job).targets is None
    job.scaling.workers_target, job.scaling.on_demand_target, job.scaling.reason = 3, 1, "why"
    job.scaling.predicted_finish.FromDatetime(START)
    view = translate.job_view(job)
    assert view.targets == Targets(3, 1, "why", START, None)
    assert view.scaling.mode == settings.scaling and view.scaling.spot_policy == "Uniform"
