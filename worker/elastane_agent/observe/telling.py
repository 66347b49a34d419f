"""Used on other hosts: reads the figures that the worker writes, and sends them as lines of output."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from elastane_agent.observe.agent_side import VARIABLE
from elastane_common.observe.figures import figures_file, figures_line

PERIOD_SECONDS = 2.0
"""Well below Prometheus's usual scrape interval of 15 s or more; a line has half a kilobyte."""


class FigureTelling:
    """Sender of one worker's figures, from `start` to `close`. tell: writes a line; called from a thread."""

    def __init__(
        self, worker: str, tell: Callable[[str], None], period_seconds: float = PERIOD_SECONDS
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="elastane-figures-")
        self._file = figures_file(Path(self._folder.name), worker)
        self._tell = tell
        self._period_seconds = period_seconds
        self._told = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastane-figures", daemon=True)

    def variables(self) -> dict[str, str]:
        """Return the variable that tells the worker where to write its figures."""
        return {VARIABLE: str(self._file)}

    def start(self) -> None:
        """Start sending. Call this once the worker is started."""
        self._thread.start()

    def close(self) -> None:
        """Send the last figures and stop. Call this once the worker has ended."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._folder.cleanup()

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._closed.wait(self._period_seconds)
            try:
                text = self._file.read_text()
            except (OSError, ValueError):
                continue  # the worker has not begun to train
            if text != self._told:
                self._told = text
                self._tell(figures_line(text))
