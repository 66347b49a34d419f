"""The status of an ElasticJob: the operator's memory, and what users see.

The operator keeps no other state. Its successor, after a crash or a change of leader, reads the status and
continues; therefore the status is written before the actions it describes (see `reconcile`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from elastane_operator.decisions.pods import Outcome

Phase = Literal[
    "Pending",
    "Waiting",
    "Running",
    "Suspending",
    "Suspended",
    "Succeeded",
    "Failed",
    "Cancelled",
    "MaxWaitTimeExceeded",
]
FINISHED: frozenset[str] = frozenset({"Succeeded", "Failed", "Cancelled", "MaxWaitTimeExceeded"})
"""Final phases. A job in one of them is never started again."""

REASONS_MAX = 10


class _Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Part of the status; field names follow Kubernetes' spelling."""


class Condition(_Part, frozen=True):
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: datetime | None = None


class WorkerCounts(_Part, frozen=True, omit_defaults=False):
    desired: int = 0
    ready: int = 0
    pending: int = 0
    attending: int = 0
    summary: str = "0/0"


class ServerCounts(_Part, frozen=True, omit_defaults=False):
    """Pods of parameter servers. restarts: of containers in existing pods."""

    desired: int = 0
    ready: int = 0
    pending: int = 0
    restarts: int = 0


class CostStatus(_Part, frozen=True, omit_defaults=False):
    """Costs as decimal numbers in strings, because the API has no exact decimals.

    savings_percent: omitted until known, because API servers reject an empty string for it.
    """

    currency: str = "USD"
    spent: str = "0.00"
    on_demand: str = "0.00"
    saved: str = "0.00"
    savings_percent: str | msgspec.UnsetType = msgspec.UNSET


class Ended(_Part, frozen=True):
    """A pod whose end has been counted. replace_after: when its index may be reused."""

    uid: str
    index: int
    outcome: Outcome
    replace_after: datetime | None = None


class Known(_Part, frozen=True):
    """A pod that existed at the last look and whose end has not been counted."""

    uid: str
    index: int


class SchedulingStatus(_Part, frozen=True):
    """The job's share of its pool. devices: allowed now, by type; written before pods change.

    planned: its planned devices. revision: of the share that was read from the pool's status. est_seconds:
    measured seconds of one EST's part of a step, as a decimal number; empty: not measured. est_seconds_on:
    the same by device type on which it has trained.
    """

    pool: str = ""
    devices: dict[str, int] = {}
    planned: dict[str, int] = {}
    reason: str = ""
    predicted_finish: datetime | None = None
    at: datetime | None = None
    revision: int = 0
    est_seconds: str = ""
    est_seconds_on: dict[str, str] = {}


class ScalingStatus(_Part, frozen=True):
    """The master's targets for a job that scales by itself. on_demand: part of `target`.

    predicted_finish: rounded up to a minute. predicted_cost: of the whole job, "12.34 USD"; empty: not known.
    """

    mode: str = ""
    target: int = 0
    on_demand: int = 0
    reason: str = ""
    predicted_finish: datetime | None = None
    predicted_cost: str = ""


class Status(_Part, frozen=True):
    phase: Phase = "Pending"
    reason: str = ""
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    workers: WorkerCounts = WorkerCounts()
    replicas: int = 0
    selector: str = ""
    job_name: str = ""
    master_address: str = ""
    generation: int = 0
    step: int = 0
    steps: int = 0
    epoch: int = 0
    saved_step: int | None = None
    progress: str = ""
    samples_per_second: str = ""
    cost: CostStatus | None = None
    restarts: int = 0
    preemptions: int = 0
    last_reasons: tuple[str, ...] = ()
    ended: tuple[Ended, ...] = ()
    pods: tuple[Known, ...] = ()
    started: bool = False
    settled: bool = False
    prices: str = ""
    start_time: datetime | None = None
    completion_time: datetime | None = None
    suspend_time: datetime | None = None
    cleaned_time: datetime | None = None
    scheduling: SchedulingStatus | None = None
    scaling: ScalingStatus | None = None
    parameter_servers: ServerCounts | None = None

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of a type, or None."""
        return next((each for each in self.conditions if each.type == kind), None)

    def holds(self, kind: str) -> bool:
        """True if the condition of a type is True."""
        found = self.condition(kind)
        return found is not None and found.status == "True"


def read_status(body: Mapping[str, Any]) -> Status:
    """Read the status of an object as returned by the API server. Unreadable fields get their defaults."""
    given = body.get("status") or {}
    try:
        return msgspec.convert(given, Status)
    except msgspec.ValidationError:
        kept = {key: value for key, value in given.items() if _readable(key, value)}
        return msgspec.convert(kept, Status)


def write_status(status: Status) -> dict[str, Any]:
    """Encode the status in the types of a decoded API answer: tuples would never equal its lists."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status))
    # The scale subresource and the printer columns need these fields even at their defaults.
    plain |= {"phase": status.phase, "replicas": status.replicas, "restarts": status.restarts}
    plain |= {"preemptions": status.preemptions, "workers": msgspec.to_builtins(status.workers)}
    return plain


def with_condition(
    conditions: tuple[Condition, ...],
    kind: str,
    holds: bool | None,
    reason: str,
    message: str,
    *,
    now: datetime,
    generation: int,
) -> tuple[Condition, ...]:
    """Return the conditions with one of them set; its time changes only when its status does."""
    status: Literal["True", "False", "Unknown"] = "Unknown" if holds is None else "True" if holds else "False"
    before = next((each for each in conditions if each.type == kind), None)
    since = before.last_transition_time if before is not None and before.status == status else now
    new = Condition(kind, status, reason, message, generation, since)
    if before is None:
        return (*conditions, new)
    return tuple(new if each.type == kind else each for each in conditions)


def with_reasons(kept: tuple[str, ...], new: list[str]) -> tuple[str, ...]:
    """Append decisions in words, newest last, skipping immediate repetitions; keep at most REASONS_MAX."""
    for reason in new:
        if not kept or kept[-1] != reason:
            kept = (*kept, reason)
    return kept[-REASONS_MAX:]


def _readable(key: str, value: Any) -> bool:
    try:
        msgspec.convert({key: value}, Status)
    except msgspec.ValidationError:
        return False
    return True
