"""Polls one source of spot notices in a separate thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from elastane_agent.supervisor.notices.notice import Notice, NoticeFormatError
from elastane_agent.supervisor.notices.sources import Source

FAILED_POLLS_MAX: Final = 5
"""The polling interval of a failing source grows with each failure, up to this multiple."""

DETECT_ATTEMPTS: Final = 3
"""Attempts to find a source: the metadata service of a machine that has just started may not answer yet."""


class NoticeWatch:
    """Polls for notices from `start` until `stop`, or until a reclaim was announced.

    find: returns the source, or None if there is none; may take seconds. All callbacks run in the watch's
    thread. on_notice: called once for a reclaim, at most once for a rebalance. on_trouble: called with a
    message each time the source begins to fail. poll_seconds: polling interval; 0: the source's own.
    on_source: called once with the source that was found.
    """

    def __init__(
        self,
        find: Callable[[], Source | None],
        on_notice: Callable[[Notice], None],
        on_trouble: Callable[[str], None],
        poll_seconds: float = 0.0,
        on_source: Callable[[Source], None] = lambda source: None,
    ) -> None:
        self._find = find
        self._on_notice = on_notice
        self._on_trouble = on_trouble
        self._poll_seconds = poll_seconds
        self._on_source = on_source
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spot notices", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling; does not wait for a request in flight."""
        self._over.set()

    def _run(self) -> None:
        source = self._find_source()
        if source is None:
            return
        self._on_source(source)
        failures, rebalance_notified = 0, False
        while not self._over.is_set():
            wait_seconds = self._poll_seconds or source.poll_seconds
            try:
                notice = source.look()
            except (OSError, NoticeFormatError) as error:
                if failures == 0 and not self._over.is_set():
                    self._on_trouble(f"spot notices of {source.name} cannot be read: {error}")
                failures += 1
                wait_seconds *= min(failures, FAILED_POLLS_MAX)
            else:
                failures = 0
                if notice is not None and notice.kind == "reclaim":
                    self._tell(notice)
                    return
                if notice is not None and not rebalance_notified:
                    rebalance_notified = True
                    self._tell(notice)
            self._over.wait(wait_seconds)

    def _find_source(self) -> Source | None:
        for attempt in range(DETECT_ATTEMPTS):
            if self._over.is_set():
                return None
            source = self._find()
            if source is not None:
                return source
            self._over.wait(2.0**attempt)
        return None

    def _tell(self, notice: Notice) -> None:
        if not self._over.is_set():
            self._on_notice(notice)
