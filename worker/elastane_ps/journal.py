"""The journal of a process: written in the background, once a second and when a segment is full."""

from __future__ import annotations

import threading
from typing import Final

import structlog

from elastane.tables.journal_file import JournalEntry, JournalError, JournalWriter
from elastane_common.storage import Folder

_log = structlog.get_logger(__name__)

_WRITE_SECONDS: Final = 1.0


class Journal:
    """Thread-safe. process: a name that no other process ever has."""

    def __init__(self, url: str, process: str) -> None:
        self._folder = Folder(url, JournalError)
        self._writer = JournalWriter(self._folder, process)
        self._lock = threading.Lock()
        self._full = threading.Event()
        self._closing = False
        #: Segments that could not be written yet; nothing may be missing in between.
        self._segments: list[tuple[str, bytes]] = []
        self._thread = threading.Thread(target=self._run, name="elastane-ps-journal", daemon=True)
        self._thread.start()

    def add(self, entry: JournalEntry) -> None:
        """Write a push down; called under its slot's lock."""
        with self._lock:
            self._writer.add(entry)
            if self._writer.full:
                self._full.set()

    def close(self) -> None:
        """Write what there is, and end."""
        self._closing = True
        self._full.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._full.wait(_WRITE_SECONDS)
            self._full.clear()
            self._write()
        self._write()

    def _write(self) -> None:
        with self._lock:
            segment = self._writer.take()
        if segment is not None:
            self._segments.append(segment)
        try:
            while self._segments:
                name, content = self._segments[0]
                self._folder.write(name, [content])
                del self._segments[0]
        except JournalError as error:
            _log.error("the journal could not be written; it is tried again", error=str(error))
