"""Progress figures shared by both queue disciplines, and the throughput estimate behind them."""

from __future__ import annotations

from math import floor

import msgspec

RATE_WINDOW_SECONDS = 30.0


class Progress(msgspec.Struct, frozen=True):
    """Progress of a queue.

    todo, doing, done, failed: tasks of the current epoch; they add up to `total`, except that `total` is 0
    while a stream is open, and todo and doing include reopened tasks of earlier epochs. failed_before: FAILED
    tasks of earlier epochs. requeued, timed_out, samples_done, reopened (DONE tasks made TODO again): since
    the beginning. samples_per_second: over the last 30 s. eta_seconds: until the last epoch ends; None while
    it cannot be estimated.
    """

    epoch: int
    epochs: int
    todo: int
    doing: int
    done: int
    failed: int
    failed_before: int
    total: int
    requeued: int
    timed_out: int
    samples_done: int
    samples_per_second: float
    eta_seconds: float | None
    complete: bool
    reopened: int = 0


class RateWindow(msgspec.Struct):
    """Samples per second over a sliding window; times are passed in by the caller.

    since: when counting began; None before that. buckets: [whole second, samples], ascending, at most one per
    second of the window. If the clock goes back by less than the window, samples count in the newest bucket;
    if by more, counting restarts.
    """

    since: float | None = None
    buckets: list[tuple[int, int]] = []

    def begin(self, now: float) -> None:
        """Start counting unless started.

        Called at the first lease, so that the wait for it does not count.
        """
        if self.since is None:
            self.since = now

    def add(self, now: float, samples: int) -> None:
        """Count samples that became DONE at `now`."""
        self.begin(now)
        second = floor(now)
        buckets = self.buckets
        if buckets and second <= buckets[-1][0]:
            newest, counted = buckets[-1]
            if second > newest - RATE_WINDOW_SECONDS:
                buckets[-1] = (newest, counted + samples)
                return
            buckets.clear()
            self.since = now
        buckets.append((second, samples))
        while buckets[0][0] <= second - RATE_WINDOW_SECONDS:
            del buckets[0]

    def rate(self, now: float) -> float:
        """Samples per second at `now`; 0.0 before anything was counted. Changes nothing."""
        if not self.buckets or self.since is None:
            return 0.0
        now = max(now, self.since, self.buckets[-1][0])
        oldest = now - RATE_WINDOW_SECONDS
        samples = sum(counted for second, counted in self.buckets if second > oldest)
        # Divide by at least one second: a first report right after the start would give an absurd rate.
        return samples / min(RATE_WINDOW_SECONDS, max(now - self.since, 1.0))
