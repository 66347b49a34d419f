"""Figures of workers on other hosts, received in lines of their output. Pure.

A port on every host would have to be opened, found and reached, whereas the connection that carries the
output exists already. A scrape of the agent then has all its workers, under their usual ids.
"""

from __future__ import annotations

from collections.abc import Collection

from elastane.observe.figures import LINE, WorkerFigures, figures_of_line


class HostFigures:
    """The latest figures of each remote worker.

    Written by one thread per worker, read by others without a lock. Since hosts come and go under new names,
    `keep` must be called to bound it.
    """

    def __init__(self) -> None:
        self._told: dict[str, WorkerFigures] = {}

    def take(self, worker: str, line: str) -> bool:
        """Take a line of output if it carries figures; return False if it is the worker's own output."""
        if not line.startswith(LINE):
            return False
        figures = figures_of_line(line)
        if figures is not None:
            self._told[worker] = figures
        return figures is not None

    def keep(self, workers: Collection[str]) -> None:
        """Drop the figures of all other workers."""
        self._told = {worker: figures for worker, figures in self._told.items() if worker in workers}

    def all(self) -> dict[str, WorkerFigures]:
        """Return a copy of the latest figures, by worker id."""
        return dict(self._told)
