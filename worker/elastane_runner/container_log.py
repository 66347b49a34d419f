"""Copies the log of one container into the segments of a rank's log, and records the container's end.

Engines have no offsets: a log is read from its beginning, and the bytes that the file already has are
skipped. So nothing is written twice or missed, even if the process that wrote them was killed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from elastane_runner.engine import EngineError, EngineUnreachableError
from elastane_runner.log_segments import KEPT_SEGMENTS, LogWriter, log_bytes, segment_offsets, segment_path
from elastane_runner.process_records import EXIT, STOP, write_record
from elastane_runner.rank_client import ContainerMissingError, ContainerState, LogStream, RankClient
from elastane_runner.rank_labels import returncode

PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
#: Failed reads after which the rest of an ended container's log is given up.
LOG_TRIES: Final = 5


class ResumedLog(LogWriter):
    """Writes the log of a rank from where its files end."""

    def __init__(self, folder: Path, cap_bytes: int) -> None:
        super().__init__(folder, cap_bytes)
        offsets = segment_offsets(folder)
        self._head_segments = min(len(offsets), KEPT_SEGMENTS)
        self._tail = [segment_path(folder, offset) for offset in offsets[KEPT_SEGMENTS:]]
        self.offset = log_bytes(folder)


class End(NamedTuple):
    """End of a rank. returncode: None if unknown; reason: why, as far as known."""

    returncode: int | None
    ended_at: float | None
    reason: str = ""


class ContainerLog:
    """Copies the log of one container to a rank's folder. Used by one thread, except for `close`."""

    def __init__(self, client: RankClient, container: str, folder: Path, cap_bytes: int) -> None:
        self._client = client
        self._container = container
        self._folder = folder
        self._log = ResumedLog(folder, cap_bytes)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._stream: LogStream | None = None

    def follow(self) -> End | None:
        """Copy until the container has ended, and record that; None if it was closed before.

        Calls are repeated until the engine answers.
        """
        pause_seconds = PAUSE_SECONDS_MIN
        unread = 0
        while not self._closed.is_set():
            before = self._log.offset
            try:
                try:
                    self._copy(follows=True)
                except EngineUnreachableError:
                    raise
                except EngineError:  # of a container that has ended, the rest of the log may be gone
                    unread += 1
                if (end := self.collect(gives_up=unread >= LOG_TRIES)) is not None:
                    return end
            except EngineError:  # may pass; until it does, the rank is not known to have ended
                pass
            if self._log.offset > before:
                pause_seconds = PAUSE_SECONDS_MIN
            self._closed.wait(pause_seconds)
            pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)
        self._log.close()
        return None

    def collect(self, *, gives_up: bool = False) -> End | None:
        """If the container has ended, copy the rest of its log and record its end; None if it runs.

        gives_up: record the end without the rest of the log if the engine refuses it. Raises EngineError if
        the engine cannot be asked.
        """
        try:
            state = self._client.state(self._container)
            if state.is_running:
                return None
            try:
                self._copy(follows=False)
            except EngineUnreachableError:
                raise
            except EngineError:
                if not gives_up:
                    raise
        except ContainerMissingError:  # somebody has removed it, and its log
            return self._record(End(None, None, "its container was removed by somebody else"))
        if self._closed.is_set():
            return None
        code = self._returncode(state)
        return self._record(End(code, state.ended_at, state.reason if code is None else ""))

    def _returncode(self, state: ContainerState) -> int | None:
        """None: nobody knows, or its end says nothing about the rank, since nobody asked us to stop it."""
        if state.exit_code is None:
            return None
        was_stopped = (self._folder.parents[1] / STOP).exists()
        return None if state.is_disrupted and not was_stopped else returncode(state.exit_code)

    def interrupt(self) -> None:
        """Make the copying thread check the container's state."""
        with self._lock:
            if self._stream is not None:
                self._stream.close()

    def close(self) -> None:
        """Make a copy in another thread end soon."""
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
        with contextlib.suppress(EngineError):  # the next runner does it, or `remove`
            self._client.release(self._container)
        return end


def record_end(folder: Path, end: End, log_bytes: int) -> None:
    """Record the end of a rank, for the next runner and for readers of its log. Raises OSError."""
    record = {"returncode": end.returncode, "log_bytes": log_bytes, "ended": end.ended_at}
    write_record(folder / EXIT, record | ({"reason": end.reason} if end.reason else {}))


class LogThread(threading.Thread):
    """Follows a container in a separate thread, because the SDK blocks. ended: called there with its end."""

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

    def interrupt(self) -> None:
        """Check the container's state, although its log has not ended."""
        self._log.interrupt()

    def close(self) -> None:
        """Stop following."""
        self._log.close()
