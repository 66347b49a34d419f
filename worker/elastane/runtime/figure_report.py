"""Writes a worker's figures once a second to the file that its agent has chosen (ELASTANE_METRICS_FILE)."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from elastane_common.observe.figures import WorkerFigures, write_figures

_log = structlog.get_logger(__name__)

PERIOD_SECONDS = 1.0


class FigureReport:
    """Writer thread in the worker's process, from `start` to `close`. path: empty: write nothing."""

    def __init__(self, figures: WorkerFigures, path: str, period_seconds: float = PERIOD_SECONDS) -> None:
        self._figures = figures
        self._path = Path(path) if path else None
        self._period_seconds = period_seconds
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Call this after data workers are forked, because a fork does not copy threads."""
        if self._path is not None:
            self._thread = threading.Thread(target=self._run, name="elastane-figures", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write the last figures and end the thread. Idempotent."""
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
            except OSError as error:  # training goes on without metrics
                _log.warning("figures cannot be written any more", path=str(self._path), error=str(error))
                return
