"""Quota accounting per token. Pure: time is an argument.

Requests are counted by a token bucket that holds one second's worth and refills steadily. Sessions are those
open now. Jobs and datasets are counted from those that exist or are being created, so a restart of the master
forgets nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from elastane_master.decisions.events import Rejection
from elastane_master.security.tokens import Principal


class QuotaBook:
    """Accounts of all tokens, by name. Used from one event loop."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}
        self._sessions: dict[str, Counter[tuple[str, str]]] = {}
        self._making: Counter[tuple[str, str]] = Counter()

    def take_request(self, caller: Principal, now: float) -> None:
        """Count a request at `now` seconds of a monotonic clock. Raises Rejection."""
        rate = caller.quotas.requests_per_second
        if not rate:
            return
        size = max(rate, 1.0)
        left, at = self._buckets.get(caller.name, (size, now))
        left = min(size, left + max(now - at, 0.0) * rate)
        if left < 1.0:
            self._buckets[caller.name] = (left, now)
            raise Rejection(
                "rate_limited",
                f"token {caller.name!r} may send {rate:g} requests a second",
                hint="try again a little later",
                token=caller.name,
                retry_after_seconds=round((1.0 - left) / rate, 3),
            )
        self._buckets[caller.name] = (left - 1.0, now)

    @contextmanager
    def session(self, caller: Principal, worker: tuple[str, str]) -> Iterator[None]:
        """Hold one of the token's sessions, for a job's worker. Raises Rejection.

        A reconnecting worker shares the slot of its old stream, which may be dead without anyone knowing.
        """
        held = self._sessions.setdefault(caller.name, Counter())
        if worker not in held:
            _require(caller, "sessions", len(held), caller.quotas.sessions_max)
        held[worker] += 1
        try:
            yield
        finally:
            held[worker] -= 1
            if not held[worker]:
                del held[worker]

    @contextmanager
    def making_job(self, caller: Principal, job: str, jobs: Collection[str]) -> Iterator[None]:
        """Reserve a place for a job that may be created now; `jobs` are all existing ones.

        Raises Rejection.
        """
        if not caller.quotas.jobs_max or job in jobs:
            yield
            return
        making = {name for token, name in self._making if token == caller.name and name != job}
        taken = len(making.union(name for name in jobs if caller.covers(name)))
        _require(caller, "jobs", taken, caller.quotas.jobs_max)
        self._making[caller.name, job] += 1
        try:
            yield
        finally:
            self._making[caller.name, job] -= 1
            if not self._making[caller.name, job]:
                del self._making[caller.name, job]

    def require_dataset(self, caller: Principal, dataset: str, datasets: Collection[str]) -> None:
        """Raise Rejection if the job already has as many other datasets as the token may create."""
        if dataset not in datasets:
            _require(caller, "datasets", len(datasets), caller.quotas.datasets_max)


def require_runs(caller: Principal, alive: int) -> None:
    """Raise Rejection if the token may have no further run beside the `alive` ones that are not over."""
    _require(caller, "runs", alive, caller.quotas.runs_max)


def _require(caller: Principal, what: str, taken: int, most: int) -> None:
    if most and taken >= most:
        raise Rejection(
            "quota_exceeded",
            f"token {caller.name!r} may have at most {most} {what}, and has {taken}",
            hint="end some of them, or have the token's quota raised",
            token=caller.name,
            quota=f"{what}_max",
            most=most,
            taken=taken,
        )
