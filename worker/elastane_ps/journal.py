"""Writes a process's journal: on a disk each record at once, in an object store once per second."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from typing import Final

import structlog

from elastane.slots.frames import Replicate
from elastane.tables.journal_file import FOLDER, MAGIC, MODEL, SEGMENT_BYTES, segment_path
from elastane.tables.journal_records import JournalEntry, JournalError, Record, encode_record, push_digest
from elastane_common.storage import Folder

_log = structlog.get_logger(__name__)

_WRITE_SECONDS: Final = 1.0


class Journal:
    """Thread-safe. process: a unique name, never reused. model: written next to the segments."""

    def __init__(self, url: str, process: str, model: bytes) -> None:
        self._folder = Folder(url, JournalError)
        self._process = process
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._number = 0
        self._file: FileIO | None = None
        #: Number of bytes of the segment already written, and the bytes still to write.
        self._size, self._pending = 0, bytearray()
        #: Whole files not written yet; kept in order, because the journal must have no gaps.
        self._files: list[tuple[str, bytes]] = [(f"{FOLDER}/{process}/{MODEL}", model)]
        self._appends = True
        self._write()
        self._thread = threading.Thread(target=self._run, name="elastane-ps-journal", daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        """Write a record; called under its slot's lock, before the push becomes visible."""
        with self._lock:
            self._pending += encode_record(record)
            self._append()
            if len(self._pending) >= SEGMENT_BYTES:
                self._wake.set()

    def close(self) -> None:
        """Write what is pending, and end."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        with self._lock:
            if self._file is not None:
                self._file.close()

    def _run(self) -> None:
        while not self._closing:
            self._write()
            self._wake.wait(_WRITE_SECONDS)
            self._wake.clear()
        self._write()

    def _append(self) -> None:
        """Append pending bytes to the segment; the rest is retried later."""
        if not self._pending or not self._appends:
            return
        try:
            if self._file is None or self._size >= SEGMENT_BYTES:
                if self._file is not None:
                    self._file.close()
                self._file = self._folder.appending(segment_path(self._process, self._number + 1))
                if self._file is None:
                    self._appends = False
                    return
                self._number, self._size = self._number + 1, 0
                self._pending[:0] = MAGIC
            if (self._file.write(self._pending) or 0) < len(self._pending):
                raise OSError("a part was written")
            self._size += len(self._pending)
            self._pending.clear()
        except (OSError, JournalError) as error:
            _log.error("the journal could not be written; it is tried again", error=str(error))
            if self._file is not None and not self._file.closed:
                with suppress(OSError):
                    self._file.truncate(self._size)
                    self._file.seek(self._size)

    def _write(self) -> None:
        with self._lock:
            self._append()
            if self._pending and not self._appends:
                self._number += 1
                segment = segment_path(self._process, self._number)
                self._files.append((segment, MAGIC + bytes(self._pending)))
                self._pending.clear()
        try:
            while self._files:
                name, content = self._files[0]
                self._folder.write(name, [content])
                del self._files[0]
        except JournalError as error:
            _log.error("the journal could not be written; it is tried again", error=str(error))


def entry_of(push: Replicate, sections: Sequence[memoryview]) -> JournalEntry:
    """Return the record of an applied push. sections: its gradients, as received."""
    return JournalEntry(
        slot=push.slot,
        life=push.life,
        version=push.version,
        dataset=push.dataset,
        epoch=push.epoch,
        task=push.task,
        attempt=push.attempt,
        lease=push.lease,
        pulls=push.pulls,
        rates=push.rates,
        scale=push.scale,
        generation=push.generation,
        later=push.later,
        digest=push_digest(push.blocks, push.rows, sections),
    )
