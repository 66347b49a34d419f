"""Observed state besides the pods: the job at its master, and the objects of a per-job master."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from elastane_operator.decisions.pods import PodView
from elastane_operator.decisions.pool_status import Share
from elastane_proto.job_settings import DEFAULTS
from elastane_scheduler.autoscaling.modes import OFF

MasterPhase = Literal[
    "waiting",
    "running",
    "suspended",
    "succeeded",
    "failed",
    "cancelled",
    "max_wait_exceeded",
    "damaged",
    "too_new",
]


class WorkerView(msgspec.Struct, frozen=True):
    """A worker known to the master.

    state: "member" of the ring, or standing by, draining, or awaited (other). est_seconds: measured seconds
    of one EST's part of a step; None: not yet.
    """

    worker: str
    state: Literal["member", "standby", "draining", "other"]
    est_seconds: float | None = None


class CostView(msgspec.Struct, frozen=True):
    """Costs in millionths of the currency's unit. savings: a fraction, None if unknown."""

    currency: str = "USD"
    spent_micros: int = 0
    on_demand_micros: int = 0
    saved_micros: int = 0
    savings: float | None = None
    spot_price_micros: int = 0
    on_demand_price_micros: int = 0


class ScalingSettings(msgspec.Struct, frozen=True):
    """Autoscaling settings of a job. mode: as the master stores it; empty: off."""

    mode: str = ""
    over_budget: Literal["Cheapest", "Suspend"] = "Cheapest"
    spot_policy: Literal["Wide", "Uniform"] = "Wide"
    cold_start_seconds: float = DEFAULTS.cold_start_seconds
    on_demand_workers: int = 0

    @property
    def text(self) -> str:
        """The mode in the form of a request."""
        return self.mode or OFF


class Targets(msgspec.Struct, frozen=True):
    """The master's targets for a job that scales by itself. on_demand: part of `workers`."""

    workers: int
    on_demand: int = 0
    reason: str = ""
    predicted_finish: datetime | None = None
    predicted_cost_micros: int | None = None


class Tasks(msgspec.Struct, frozen=True):
    """Tasks of a job's datasets. over: all are DONE or FAILED, and none will be added."""

    done: int
    total: int
    over: bool


class JobAtMaster(msgspec.Struct, frozen=True, kw_only=True):
    """A job as reported by its master.

    est_seconds: of one EST's part of a step; None: not measured. targets: None if it does not scale by
    itself. tasks: requested if it has parameter servers; None: no dataset yet, or not known.
    """

    phase: MasterPhase
    reason: str = ""
    ests: int = 1
    seed: int | None = None
    workers_min: int = 1
    workers_max: int = 1
    generation: int = 0
    step: int = 0
    steps: int = 0
    epoch: int = 0
    saved_step: int = -1
    samples_per_second: float = 0.0
    est_seconds: float | None = None
    workers: tuple[WorkerView, ...] = ()
    cost: CostView = CostView()
    scaling: ScalingSettings = ScalingSettings()
    targets: Targets | None = None
    tasks: Tasks | None = None

    @property
    def over(self) -> bool:
        return self.phase in ("succeeded", "failed", "cancelled", "max_wait_exceeded")


class MasterView(msgspec.Struct, frozen=True):
    """Answer of a master.

    reachable: whether it answered. job: None if it has no job of that name. error: why it is not reachable.
    refused: its message when it last refused a request, refused_what: the AskMaster that it refused.
    """

    reachable: bool
    job: JobAtMaster | None = None
    error: str = ""
    refused: str = ""
    refused_what: str = ""


class Objects(msgspec.Struct, frozen=True):
    """Objects of a per-job master.

    present: (kind, name) of existing ones; missing: bodies of those to create; foreign: "kind name" of those
    whose names are taken by objects of another owner.
    """

    present: tuple[tuple[str, str], ...] = ()
    missing: tuple[dict[str, Any], ...] = ()
    foreign: tuple[str, ...] = ()


class PoolView(msgspec.Struct, frozen=True):
    """The pool of a job. share: None if not decided yet. error: why the pool cannot be used."""

    share: Share | None = None
    error: str = ""


class Observed(msgspec.Struct, frozen=True):
    """All inputs of a decision besides spec and status.

    trouble: the last action that failed. pool: None for a job without one. autoscalers: names of
    HorizontalPodAutoscalers that target the job, listed if it scales by itself; autoscalers_error: why they
    could not be listed.
    """

    pods: tuple[PodView, ...] = ()
    master: MasterView = MasterView(reachable=False, error="not asked yet")
    objects: Objects = Objects()
    master_address: str = ""
    trouble: str = ""
    pool: PoolView | None = None
    autoscalers: tuple[str, ...] = ()
    autoscalers_error: str = ""
