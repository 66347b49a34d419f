"""What is there, beside the pods: the job at its master, and the objects of a master of its own."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from elastane_operator.decisions.pods import PodView

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
    """A worker that attends. member: it is in the ring; else it stands by, drains, or is awaited."""

    worker: str
    state: Literal["member", "standby", "draining", "other"]


class CostView(msgspec.Struct, frozen=True):
    """In millionths of the currency's unit. savings: a fraction, None where nothing is known."""

    currency: str = "USD"
    spent_micros: int = 0
    on_demand_micros: int = 0
    saved_micros: int = 0
    savings: float | None = None
    spot_price_micros: int = 0
    on_demand_price_micros: int = 0


class JobAtMaster(msgspec.Struct, frozen=True, kw_only=True):
    """A job as its master has it."""

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
    workers: tuple[WorkerView, ...] = ()
    cost: CostView = CostView()

    @property
    def over(self) -> bool:
        return self.phase in ("succeeded", "failed", "cancelled", "max_wait_exceeded")


class MasterView(msgspec.Struct, frozen=True):
    """What a master answered. reachable: it did. job: None where it has none of that name. error: why it is
    not reachable. refused: what it said when it last refused something, refused_what: which AskMaster that
    was."""

    reachable: bool
    job: JobAtMaster | None = None
    error: str = ""
    refused: str = ""
    refused_what: str = ""


class Objects(msgspec.Struct, frozen=True):
    """The objects of a job's own master. present: (kind, name) of those there; missing: bodies of those to be
    made; foreign: "kind name" of those whose names somebody else has taken."""

    present: tuple[tuple[str, str], ...] = ()
    missing: tuple[dict[str, Any], ...] = ()
    foreign: tuple[str, ...] = ()


class Observed(msgspec.Struct, frozen=True):
    """All that a decision is made of, beside spec and status. trouble: what could not be done last."""

    pods: tuple[PodView, ...] = ()
    master: MasterView = MasterView(reachable=False, error="not asked yet")
    objects: Objects = Objects()
    master_address: str = ""
    trouble: str = ""
