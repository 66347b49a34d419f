"""An agent's metrics: its own counters, its workers' figures, and the port where both are served."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from elastane_common.errors import ElastaneError
from elastane_common.observe.figures import AgentCounts
from elastane_proto.v1 import ring_pb2

if TYPE_CHECKING:
    from elastane_agent.observe.exposition import MetricsPort

Ask = Callable[[Collection[str]], Mapping[str, ring_pb2.WorkerFigures]]
"""Asks the master for the figures of these workers, by id. Raises ElastaneError."""

ASK_SECONDS_MIN = 1.0
"""Minimum interval between two requests to the master: workers send their figures no more often."""


class AgentMetrics:
    """Metrics of one agent. address: host and port to serve them at; None: they are only counted.

    ask: called by the server's threads, one at a time. clock: in seconds.
    """

    def __init__(
        self,
        job: str,
        address: tuple[str, int] | None,
        ask: Ask,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = AgentCounts()
        self._job = job
        self._address = address
        self._ask = ask
        self._clock = clock
        self._asking = threading.Lock()
        self._asked_at = float("-inf")
        self._workers: frozenset[str] = frozenset()
        self._known: dict[str, ring_pb2.WorkerFigures] = {}
        self._port: MetricsPort | None = None

    def serve(self) -> str:
        """Start serving; return the address, or "" if none was configured. Raises MetricsPortError."""
        if self._address is None:
            return ""
        # Imported here so that only agents that serve metrics load prometheus_client.
        from elastane_agent.observe.exposition import AgentCollector, MetricsPort

        self._port = MetricsPort(*self._address, AgentCollector(self._job, self.counts, self.figures))
        return self._port.address

    def figures(self) -> Mapping[str, ring_pb2.WorkerFigures]:
        """Return the figures of this agent's workers, by id; the last known ones while no master answers."""
        with self._asking:
            workers = self._workers
            known = dict(self._known)
            if workers and self._clock() - self._asked_at >= ASK_SECONDS_MIN:
                # No master answers now, or its release does not serve worker metrics.
                with contextlib.suppress(ElastaneError):
                    known.update(self._ask(workers))
                self._asked_at = self._clock()
            self._known = {worker: figures for worker, figures in known.items() if worker in workers}
            return self._known

    def keep(self, workers: Collection[str]) -> None:
        """Set whose figures are served: those that have a slot or run, because host names are unbounded."""
        self._workers = frozenset(workers)

    def close(self) -> None:
        """Close the port. Idempotent."""
        if self._port is not None:
            self._port.close()
            self._port = None
