"""The log and the end of one container: copied into the segments that a rank's log is kept in, and recorded.

Engines have no offsets: a log is read from its beginning, and what the file has already is skipped. So
nothing is written twice or missed, whoever wrote what is there, and whenever that one was killed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from elastane_runner.container_client import (
    ContainerClient,
    ContainerMissingError,
    LogStream,
)
from elastane_runner.container_plan import returncode
from elastane_runner.engine import EngineError
from elastane_runner.log_segments import KEPT_SEGMENTS, LogWriter, segment_offsets, segment_path
from elastane_runner.process_records import EXIT, write_record

PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0


class ResumedLog(LogWriter):
    """Writes the log of a rank from where its files end."""

    def __init__(self, folder: Path, cap_bytes: int) -> None:
        super().__init__(folder, cap_bytes)
        offsets = segment_offsets(folder)
        self._head_segments = min(len(offsets), KEPT_SEGMENTS)
        self._tail = [segment_path(folder, offset) for offset in offsets[KEPT_SEGMENTS:]]
        self.offset = log_bytes(folder)


def log_bytes(folder: Path) -> int:
    """Return where the files of a log end."""
    offsets = segment_offsets(folder)
    return offsets[-1] + segment_path(folder, offsets[-1]).stat().st_size if offsets else 0


class End(NamedTuple):
    """How a rank has ended. returncode: None if its container is gone, and nobody knows."""

    returncode: int | None
    ended_at: float | None


class ContainerLog:
    """Copies the log of one container to a rank's folder. For one thread, but `close`."""

    def __init__(self, client: ContainerClient, container: str, folder: Path, cap_bytes: int) -> None:
        self._client = client
        self._container = container
        self._folder = folder
        self._log = ResumedLog(folder, cap_bytes)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._stream: LogStream | None = None

    def follow(self) -> End | None:
        """Copy until the container has ended, and record that; None if it was closed before.

        An engine that does not answer is asked again until it does.
        """
        pause_seconds = PAUSE_SECONDS_MIN
        while not self._closed.is_set():
            before = self._log.offset
            try:
                self._copy(follows=True)
                if (end := self.collect()) is not None:
                    return end
            except EngineError:  # may pass; until it does, the rank is not known to have ended
                pass
            if self._log.offset > before:
                pause_seconds = PAUSE_SECONDS_MIN
            self._closed.wait(pause_seconds)
            pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)
        self._log.close()
        return None

    def collect(self) -> End | None:
        """If the container has ended, copy the rest of its log and record its end; None if it runs.

        Raises EngineError if the engine cannot be asked.
        """
        try:
            state = self._client.state(self._container)
            if state.is_running:
                return None
            self._copy(follows=False)
        except ContainerMissingError:  # somebody has removed it, and its log
            return self._record(End(None, None))
        if self._closed.is_set():
            return None
        return self._record(End(returncode(state.exit_code), state.ended_at))

    def close(self) -> None:
        """End a copy that another thread is making, soon."""
        with self._lock:
            self._closed.set()
            if self._stream is not None:
                self._stream.close()

    def _copy(self, *, follows: bool) -> None:
        try:
            with self._client.log(self._container, follows=follows) as stream:
                with self._lock:
                    if self._closed.is_set():
                        return
                    self._stream = stream
                skip_bytes = self._log.offset
                for data in stream:
                    if skip_bytes < len(data):
                        self._log.write(data[skip_bytes:])
                    skip_bytes = max(0, skip_bytes - len(data))
        except ContainerMissingError:
            return
        finally:
            with self._lock:
                self._stream = None

    def _record(self, end: End) -> End:
        self._log.close()
        record_end(self._folder, end, self._log.offset)
        return end


def record_end(folder: Path, end: End, log_bytes: int) -> None:
    """Record the end of a rank, for the next runner and for readers of its log. Raises OSError."""
    write_record(folder / EXIT, {"returncode": end.returncode, "log_bytes": log_bytes, "ended": end.ended_at})


class LogThread(threading.Thread):
    """Follows a container in a thread of its own, as the SDK blocks. ended: called there with its end."""

    def __init__(self, log: ContainerLog, ended: Callable[[End], None]) -> None:
        super().__init__(name="container-log", daemon=True)
        self._log = log
        self._ended = ended

    def run(self) -> None:
        """Follow until the end, or until `close`."""
        try:
            end = self._log.follow()
        except OSError:  # the disk is full: the next runner records the end
            end = End(None, None)
        if end is not None:
            self._ended(end)

    def close(self) -> None:
        """Stop following."""
        self._log.close()
