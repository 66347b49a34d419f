"""Counters of a parameter server, for display."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from elastane.slots.frames import CODE_UNINITIALISED, VERDICTS
from elastane_proto.v1 import ps_pb2
from elastane_ps.held import Holdings
from elastane_slots.pushes import Verdict
from elastane_slots.staleness_counts import COUNTS, place_of


class Figures:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._verdicts: Counter[str] = Counter()
        self._staleness = [0] * COUNTS
        self._staleness_sum = 0
        self._seconds: Counter[str] = Counter()
        self._frames: Counter[str] = Counter()
        self.bytes_received = 0
        self.bytes_sent = 0
        self.non_finite = 0

    def answered(self, answers: Iterable[tuple[int, int]]) -> None:
        """Count answers of slots by code and staleness, except of slots without initial values."""
        with self._lock:
            for (code, staleness), count in Counter(answers).items():
                if code == CODE_UNINITIALISED:
                    continue
                verdict = VERDICTS[code - 1]
                self._verdicts[verdict.value] += count
                if verdict is Verdict.APPLIED:
                    self._staleness[place_of(staleness)] += count
                    self._staleness_sum += count * staleness

    def frame(self, kind: str, seconds: float, received: int, sent: int) -> None:
        """Count a request. kind: "pull" or "push"."""
        with self._lock:
            self._seconds[kind] += seconds  # type: ignore[assignment]
            self._frames[kind] += 1
            self.bytes_received += received
            self.bytes_sent += sent

    def message(self, holdings: Holdings, saved: dict[int, int]) -> ps_pb2.PsFigures:
        """Return the message with all figures. saved: version of the newest snapshot of each slot."""
        with self._lock:
            figures = ps_pb2.PsFigures(
                verdicts=dict(self._verdicts),
                staleness_counts=self._staleness,
                staleness_sum=self._staleness_sum,
                pull_seconds=float(self._seconds["pull"]),
                pull_frames=self._frames["pull"],
                push_seconds=float(self._seconds["push"]),
                push_frames=self._frames["push"],
                bytes_received=self.bytes_received,
                bytes_sent=self.bytes_sent,
                non_finite=self.non_finite,
            )
        with holdings.lock:
            owned, others = list(holdings.owned.values()), list(holdings.others.values())
        for held in owned:
            with held.lock:
                size = held.weights.bytes
                figures.slots.add(
                    slot=held.slot,
                    version=held.record.version,
                    rows=size.rows,
                    weight_bytes=size.weights,
                    optimizer_bytes=size.optimizer,
                    pushes=held.pushes,
                    pulls=held.pulls,
                    saved_version=saved.get(held.slot, -1),
                )
                figures.memory_bytes_used += size.total
        for held in others:
            with held.lock:
                figures.memory_bytes_used += held.weights.bytes.total
        if holdings.arenas is not None:
            holdings.arenas.collect()
        return figures
