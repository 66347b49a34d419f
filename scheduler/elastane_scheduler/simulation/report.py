"""Figures of a run: completion times, fairness, use of devices, money. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from elastane_scheduler.pool import Pool
from elastane_scheduler.simulation.engine import Outcome
from elastane_scheduler.simulation.fairness import rhos


@dataclass(frozen=True)
class Report:
    """Figures of one policy; seconds unless named otherwise.

    average .. p99, makespan: of completion times, and the time of the last end. rho_max, rho_p95: completion
    times over those of a max-min run of the same trace at the same costs, None without one. use: part of the
    offered device-seconds that jobs had. reallocations: changes of a job's devices after its first start.
    """

    policy: str
    jobs: int
    unfinished: int
    average: float
    p50: float
    p90: float
    p99: float
    makespan: float
    wait: float
    rho_max: float | None
    rho_p95: float | None
    use: float
    reallocations: int
    money: float

    def to_plain(self) -> dict[str, object]:
        """Return the figures by name."""
        return asdict(self)


def quantile(ascending: Sequence[float], part: float) -> float:
    """Return the value that `part` of the values do not exceed (nearest rank)."""
    return ascending[min(len(ascending) - 1, int(part * len(ascending)))] if ascending else 0.0


def report_of(policy: str, outcome: Outcome, pool: Pool, fair: Outcome | None) -> Report:
    """Return the figures of a run; `fair` is the max-min run at the same costs."""
    times = sorted(job.completion_seconds for job in outcome.ended)
    rho = _rho(outcome, fair)
    offered = sum(outcome.offered_seconds)
    money = sum(
        seconds / 3600 * price
        for seconds, price in zip(outcome.device_seconds, pool.prices_per_hour, strict=True)
    )
    count = len(times)
    return Report(
        policy,
        count,
        len(outcome.unfinished),
        sum(times) / count if count else 0.0,
        quantile(times, 0.5),
        quantile(times, 0.9),
        quantile(times, 0.99),
        max((job.finish_seconds for job in outcome.ended), default=0.0),
        sum(job.wait_seconds for job in outcome.ended) / count if count else 0.0,
        rho[-1] if rho else None,
        quantile(rho, 0.95) if rho else None,
        sum(outcome.device_seconds) / offered if offered else 0.0,
        outcome.changes - count,
        money,
    )


def _rho(outcome: Outcome, fair: Outcome | None) -> list[float]:
    if fair is None:
        return []
    seconds, shares = ({job.name: job.completion_seconds for job in run.ended} for run in (outcome, fair))
    return sorted(rhos(seconds, shares).values())
