"""Counters and durations of events that no state records: calls, store, HTTP port.

Always maintained, with or without scrapes: one observation costs a bisection and two additions. Pure:
durations are passed in. Used from one event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from elastane_slots.staleness_counts import BOUNDS, COUNTS

CALL_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bucket bounds for call durations: a call on loopback takes 0.3 ms, a store that syncs 10 ms."""
STEP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bucket bounds for step durations."""
LONG_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0)
"""Bucket bounds for checkpoint durations."""
BATCH_RECORDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram at one moment. buckets: (upper bound, number of observations up to it)."""

    buckets: list[tuple[str, float]]
    sum: float


class Histogram:
    """Histogram of observations.

    bounds: upper ends of the buckets, ascending; the last bucket is unbounded.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def distribution(self) -> Distribution:
        """Return a snapshot."""
        ends = [*map(str, self._bounds), "+Inf"]
        return Distribution(list(zip(ends, map(float, accumulate(self._counts)), strict=True)), self.sum)


@dataclass(frozen=True, slots=True)
class SlotMeasures:
    """Counters of a job's connected parameter servers.

    verdicts: answers to pushes, one for each slot. staleness_counts: as `elastane_slots.staleness_counts`;
    staleness_sum: of all these pushes. hot: slots with far more bytes than the mean. non_finite: pushes
    refused for a NaN or an infinity. unsaved: parameter servers whose snapshots fail.
    """

    verdicts: Mapping[str, int] = field(default_factory=dict)
    staleness_counts: tuple[int, ...] = ()
    staleness_sum: int = 0
    rows: int = 0
    weight_bytes: int = 0
    optimizer_bytes: int = 0
    hot: int = 0
    non_finite: int = 0
    unsaved: int = 0

    def staleness(self) -> Distribution:
        """Return the histogram of staleness, in tasks."""
        counts = [*self.staleness_counts, *(0,) * COUNTS][:COUNTS]
        ends = [*(f"{bound}.0" for bound in BOUNDS), "+Inf"]
        found = list(zip(ends, map(float, accumulate(counts)), strict=True))
        return Distribution(found, float(self.staleness_sum))


class MethodMeasures:
    """Calls of one rpc. name: "Service.Method". open: number of calls being served."""

    __slots__ = ("_owner", "by_code", "name", "open")

    def __init__(self, name: str, owner: RpcMeasures) -> None:
        self.name = name
        self.open = 0
        self.by_code: dict[str, Histogram] = {}
        self._owner = owner

    def ended(self, code: str, seconds: float) -> None:
        """Record the end of a call. code: name of its gRPC status."""
        histogram = self.by_code.get(code)
        if histogram is None:
            histogram = self.by_code[code] = Histogram(CALL_SECONDS)
        histogram.observe(seconds)

    def refused(self, reason: str) -> None:
        """Record a refused call. reason: as in Rejection.reason."""
        self._owner.refusals[reason] += 1


class RpcMeasures:
    """Calls of all rpcs. unary, streams: by method.

    refusals: by reason, except the gate's, which it counts itself.
    """

    def __init__(self) -> None:
        self.unary: dict[str, MethodMeasures] = {}
        self.streams: dict[str, MethodMeasures] = {}
        self.refusals: Counter[str] = Counter()

    def method(self, name: str, *, streaming: bool) -> MethodMeasures:
        """Return the measures of the rpc "Service.Method", creating them on first use."""
        return (self.streams if streaming else self.unary).setdefault(name, MethodMeasures(name, self))


class StoreMeasures:
    """Writes of all jobs to the store. outages: number of times it stopped answering a job's writes."""

    __slots__ = ("append_seconds", "batch_records", "bytes_written", "outages", "snapshot_seconds")

    def __init__(self) -> None:
        self.append_seconds = Histogram(CALL_SECONDS)
        self.batch_records = Histogram(BATCH_RECORDS)
        self.snapshot_seconds = Histogram(CALL_SECONDS)
        self.bytes_written = 0
        self.outages = 0

    def appended(self, seconds: float, records: int, size_bytes: int) -> None:
        """Record a write that became durable `seconds` after it was sent."""
        self.append_seconds.observe(seconds)
        self.batch_records.observe(records)
        self.bytes_written += size_bytes


class HttpMeasures:
    """Counters of the HTTP port. requests: by (route, status).

    refused: connections over the limit or too slow.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.connections = 0
        self.refused = 0


class MasterMeasures:
    """All measures of one master.

    takeovers: number of takeovers of its jobs; takeover_seconds: the last one's.
    """

    def __init__(self) -> None:
        self.rpcs = RpcMeasures()
        self.store = StoreMeasures()
        self.http = HttpMeasures()
        self.takeovers = 0
        self.takeover_seconds = 0.0
