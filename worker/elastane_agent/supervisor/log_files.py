"""Files with all that the workers of an agent write (`elastane run --log-dir`), in a folder or below a URL.

A file has every byte that its worker wrote, as if the shell had redirected stdout and stderr to it: long
lines, carriage returns and invalid UTF-8 are as they were. `log_assembly` keeps the streams' lines apart.

A file on this machine is appended to. An object store has no such operation, so the output goes to segments
in a temporary folder first: the newest is uploaded again as it grows, and a full one once.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import uuid
from pathlib import Path
from typing import IO, Final

from elastane_agent.supervisor.log_assembly import LogAssembly
from elastane_common.errors import ElastaneError, RefusedError
from elastane_common.processes.output import Output, Stream
from elastane_common.storage import Folder

SEGMENT_BYTES: Final = 8 * 2**20
UPLOAD_SECONDS: Final = 30.0
_LOCAL: Final = "file://"


class LogFilesError(RefusedError):
    """The output of workers cannot be written where `--log-dir` says."""

    code = "ELA319"


class LogFiles:
    """Files of one agent. Thread-safe. A failed write loses its bytes, is reported once, and stops nothing.

    Once a worker's output can be written again, a line in its file says how many bytes are missing there.

    location: a folder of this machine, or an fsspec URL. segment_bytes: size of a full segment. Raises
    LogFilesError if nothing can be written there.
    """

    def __init__(self, location: str, output: Output, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._location, self._output = location, output
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._open: dict[str, IO[bytes]] = {}
        self._assemblies: dict[str, LogAssembly] = {}
        #: By worker: bytes that could not be written since its last successful write.
        self._lost: dict[str, int] = {}
        #: Reason of the first failed write; "": none has failed.
        self.failure = ""
        self._spool: tempfile.TemporaryDirectory[str] | None = None
        self._changed: set[str] = set()
        self._segments: dict[str, int] = {}
        self._closing = threading.Event()
        local = location.removeprefix(_LOCAL)
        if "://" in local:
            self._spool = tempfile.TemporaryDirectory(prefix="elastane-logs-")
            self._folder = Path(self._spool.name)
            self._remote = Folder(location, LogFilesError)
            self._remote.write("README", [b"Output of workers, written by elastane run --log-dir.\n"])
            #: Names of an agent's objects are its own: another must not overwrite them.
            self._tag = f"-{uuid.uuid4().hex[:8]}"
            self._thread = threading.Thread(target=self._upload_regularly, name="upload logs", daemon=True)
            self._thread.start()
        else:
            self._folder = Path(local)
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                (probe := self._folder / f".probe-{uuid.uuid4().hex}").touch()
                probe.unlink()
            except OSError as error:
                hint = "give a folder that can be written to, or a URL"
                raise LogFilesError(f"--log-dir {location}: {error.strerror or error}", hint=hint) from error

    @property
    def location(self) -> str:
        """The folder or URL, without credentials."""
        scheme, separator, rest = self._location.rpartition("://")
        return scheme + separator + (rest.rpartition("@")[2] if separator else rest)

    def write(self, worker: str, stream: Stream, data: bytes) -> None:
        """Append the bytes read from a worker's stream; b"": the stream has ended."""
        with self._lock:
            ready = self._assemblies.setdefault(worker, LogAssembly()).take(stream, data)
            if ready:
                self._append(worker, ready)

    def close(self) -> None:
        """Close all files, and upload what is left."""
        with self._lock:
            for worker, assembly in self._assemblies.items():
                if rest := assembly.end():
                    self._append(worker, rest)
            for file in self._open.values():
                with contextlib.suppress(OSError):
                    file.close()
            self._open.clear()
        if self._spool is not None:
            self._closing.set()
            self._thread.join()
            self._spool.cleanup()

    def _append(self, worker: str, data: bytes) -> None:
        lost = self._lost.get(worker, 0)
        note = f"\n[elastane: {lost} bytes are missing here]\n".encode() if lost else b""
        whole, written = memoryview(note + data), 0
        try:
            file = self._open.get(worker) or self._begin(worker)
            while written < len(whole):  # a disk that is filling up writes only a part
                written += file.write(whole[written:])
            self._lost.pop(worker, None)
            if self._spool is not None:
                self._changed.add(Path(file.name).name)
                if file.tell() >= self._segment_bytes:
                    self._open.pop(worker).close()
        except OSError as error:
            self._lost[worker] = lost + len(data) - max(0, written - len(note))
            self._say_once(str(error.strerror or error))

    def _begin(self, worker: str) -> IO[bytes]:
        name = f"{worker.replace('/', '_')}.log"
        if self._spool is not None:
            number = self._segments[worker] = self._segments.get(worker, -1) + 1
            name = f"{name.removesuffix('.log')}{self._tag}.{number:04d}.log"
        file = self._open[worker] = (self._folder / name).open("ab", buffering=0)
        return file

    def _say_once(self, why: str) -> None:
        if not self.failure:
            self.failure = why
            text = f"output of workers is missing in {self.location}: {why}; the training goes on"
            self._output.say(text, "warning", "log_files_incomplete")

    # ------------------------------------------------------------------ the uploading thread

    def _upload_regularly(self) -> None:
        while not self._closing.wait(UPLOAD_SECONDS):
            self._upload()
        self._upload()

    def _upload(self) -> None:
        """Upload the segments that have grown; those that fail are tried again the next time."""
        with self._lock:
            changed, self._changed = self._changed, set()
            growing = {Path(file.name).name for file in self._open.values()}
        for name in sorted(changed):
            path = self._folder / name
            try:
                self._remote.write(name, [path.read_bytes()])
                if name not in growing:
                    path.unlink()
            except (OSError, ElastaneError) as error:
                with self._lock:
                    self._changed.add(name)
                self._say_once(str(error.args[0]))
