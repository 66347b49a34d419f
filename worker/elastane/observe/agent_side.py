"""An agent's figures: what it counts, where its workers write theirs, and the port where both are served."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from elastane.observe.figures import AgentCounts, figures_file

if TYPE_CHECKING:
    from elastane.observe.exposition import MetricsPort

VARIABLE = "ELASTANE_METRICS_FILE"


class AgentMetrics:
    """The figures of one agent. address: host and port to serve them at; None: they are only counted."""

    def __init__(self, job: str, address: tuple[str, int] | None) -> None:
        self.counts = AgentCounts()
        self._job = job
        self._address = address
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._port: MetricsPort | None = None

    def serve(self) -> str:
        """Serves from now on; returns where, empty if nowhere. Raises MetricsPortError."""
        if self._address is None:
            return ""
        # prometheus_client is loaded by those who serve figures.
        from elastane.observe.exposition import AgentCollector, MetricsPort

        self._folder = tempfile.TemporaryDirectory(prefix="elastane-figures-")
        collector = AgentCollector(self._job, self.counts, Path(self._folder.name))
        self._port = MetricsPort(*self._address, collector)
        return self._port.address

    def variables(self, worker: str) -> dict[str, str]:
        """What a worker of this machine is told: where to write its figures, if anywhere."""
        if self._folder is None:
            return {VARIABLE: ""}
        return {VARIABLE: str(figures_file(Path(self._folder.name), worker))}

    def close(self) -> None:
        """Ends the port and forgets what workers wrote. Idempotent."""
        if self._port is not None:
            self._port.close()
            self._port = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
