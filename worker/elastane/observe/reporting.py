"""Writes a worker's figures once a second, where its agent asked for them (ELASTANE_METRICS_FILE)."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from elastane.observe.figures import WorkerFigures, write_figures

_log = structlog.get_logger(__name__)

PERIOD_SECONDS = 1.0


class FigureReport:
    """A thread of the worker's process, between `start` and `close`. path: empty: nothing is written."""

    def __init__(self, figures: WorkerFigures, path: str, period_seconds: float = PERIOD_SECONDS) -> None:
        self._figures = figures
        self._path = Path(path) if path else None
        self._period_seconds = period_seconds
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Not before data workers are forked: a fork takes no thread along."""
        if self._path is not None:
            self._thread = threading.Thread(target=self._run, name="elastane-figures", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Writes the last figures and ends the thread. Idempotent."""
        thread, self._thread = self._thread, None
        self._closed.set()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        assert self._path is not None
        ended = False
        while not ended:
            ended = self._closed.wait(self._period_seconds)
            try:
                write_figures(self._path, self._figures)
            except OSError as error:  # training goes on without
                _log.warning("figures cannot be written any more", path=str(self._path), error=str(error))
                return
