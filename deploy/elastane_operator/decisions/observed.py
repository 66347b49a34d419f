"""Observed state besides the pods: the job at its master, and the objects of a per-job master."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from elastane_operator.decisions.pods import PodView
from elastane_operator.decisions.pool_status import Share

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

    state: "member" of the ring, or standing by, draining, or awaited (other).
    """

    worker: str
    state: Literal["member", "standby", "draining", "other"]


class CostView(msgspec.Struct, frozen=True):
    """Costs in millionths of the currency's unit. savings: a fraction, None if unknown."""

    currency: str = "USD"
    spent_micros: int = 0
    on_demand_micros: int = 0
    saved_micros: int = 0
    savings: float | None = None
    spot_price_micros: int = 0
    on_demand_price_micros: int = 0


class JobAtMaster(msgspec.Struct, frozen=True, kw_only=True):
    """A job as reported by its master. est_seconds: of one EST's part of a step; None: not measured."""

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
    """The pool of a job. share: None if it has decided nothing for the job. error: why it cannot be used."""

    share: Share | None = None
    error: str = ""


class Observed(msgspec.Struct, frozen=True):
    """All inputs of a decision besides spec and status.

    trouble: the last action that failed. pool: None for a job without one.
    """

    pods: tuple[PodView, ...] = ()
    master: MasterView = MasterView(reachable=False, error="not asked yet")
    objects: Objects = Objects()
    master_address: str = ""
    trouble: str = ""
    pool: PoolView | None = None
