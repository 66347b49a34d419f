"""Figures of workers on other hosts: told in lines of their output, kept here until the next scrape. Pure.

A port on every host would have to be opened, found and reached; the way home is there already, and who
scrapes the agent finds all its workers under the names that they have everywhere else.
"""

from __future__ import annotations

from collections.abc import Collection

from elastane.observe.figures import LINE, WorkerFigures, figures_of_line


class HostFigures:
    """The last of each worker. One thread for each worker tells, others read: each value by itself.

    Hosts come and go under ever new names: what is kept is of workers that have a slot, or run.
    """

    def __init__(self) -> None:
        self._told: dict[str, WorkerFigures] = {}

    def take(self, worker: str, line: str) -> bool:
        """Whether the line is one of figures, and not the worker's own output."""
        if not line.startswith(LINE):
            return False
        figures = figures_of_line(line)
        if figures is not None:
            self._told[worker] = figures
        return figures is not None

    def keep(self, workers: Collection[str]) -> None:
        """Forgets all others."""
        self._told = {worker: figures for worker, figures in self._told.items() if worker in workers}

    def all(self) -> dict[str, WorkerFigures]:
        """By worker."""
        return dict(self._told)
