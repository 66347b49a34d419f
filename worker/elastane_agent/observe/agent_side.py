"""An agent's metrics: its own counters, its workers' files, and the port where both are served."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from elastane_common.observe.figures import AgentCounts, HostFigures, figures_file
from elastane_common.processes.output import Stream

if TYPE_CHECKING:
    from elastane_agent.observe.exposition import MetricsPort

VARIABLE = "ELASTANE_METRICS_FILE"


class AgentMetrics:
    """Metrics of one agent. address: host and port to serve them at; None: they are only counted."""

    def __init__(self, job: str, address: tuple[str, int] | None) -> None:
        self.counts = AgentCounts()
        self._from_hosts = HostFigures()
        self._job = job
        self._address = address
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._port: MetricsPort | None = None

    def serve(self) -> str:
        """Start serving; return the address, or "" if none was configured. Raises MetricsPortError."""
        if self._address is None:
            return ""
        # Imported here so that only agents that serve metrics load prometheus_client.
        from elastane_agent.observe.exposition import AgentCollector, MetricsPort

        self._folder = tempfile.TemporaryDirectory(prefix="elastane-figures-")
        collector = AgentCollector(self._job, self.counts, Path(self._folder.name), self._from_hosts.all)
        self._port = MetricsPort(*self._address, collector)
        return self._port.address

    def variables(self, worker: str) -> dict[str, str]:
        """Return the variable that tells a local worker where to write its figures; empty value: nowhere."""
        if self._folder is None:
            return {VARIABLE: ""}
        return {VARIABLE: str(figures_file(Path(self._folder.name), worker))}

    @property
    def wanted(self) -> bool:
        """True if metrics are served, so that workers on other hosts have to send their figures."""
        return self._folder is not None

    def without_figures(
        self, write: Callable[[str, Stream, str], None]
    ) -> Callable[[str, Stream, str], None]:
        """Wrap `write` for the output of a remote worker: lines with figures are taken out."""

        def take(worker: str, stream: Stream, text: str) -> None:
            if not self._from_hosts.take(worker, text):
                write(worker, stream, text)

        return take if self.wanted else write

    def keep(self, workers: Collection[str]) -> None:
        """Drop the figures of all remote workers except these, which have a slot or run."""
        self._from_hosts.keep(workers)

    def close(self) -> None:
        """Close the port and remove the workers' files. Idempotent."""
        if self._port is not None:
            self._port.close()
            self._port = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
