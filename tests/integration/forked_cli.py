"""`python -m integration.forked_cli ...`: the command line, its scripts forked off a server of the test.

The commands of the documentation start a dozen processes that train for a second or two; the imports of each
take longer. They are started by many commands, one after the other, so the server is not a command's: the
test has one (`shared_server`, or the session's by `ForkedCommands`), and the commands inherit its socket.

What a command starts is its server's child, and outlives a command that is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from elastane_common.determinism import Level, process_environment
from elastane_common.processes.child import ChildProcess
from integration import forkserver
from integration.forkserver import ForkServer, ForkServers, fixed_variables, start_forked

#: Of the workers of a job with no other options than the pages have.
FIXED_VARIABLES = {**process_environment(Level.D1, 1), "PYTHONUNBUFFERED": "1"}
TESTS = Path(__file__).parents[1]
_SOCKET, _LOCK = "FORKED_CLI_SOCKET", "FORKED_CLI_LOCK"


@contextlib.contextmanager
def shared_server(
    folder: Path, environment: Mapping[str, str], script: str = forkserver.__file__
) -> Iterator[tuple[dict[str, str], ForkServer]]:
    """What commands have besides `environment` to use the server, and the server, whose socket they inherit.

    script: what the server runs. This process may use it as well, at the same time.
    """
    server = ForkServer({**environment, **FIXED_VARIABLES}, script)
    lock = folder / "fork-server.lock"
    lock.touch()
    server._lock = _LockBetweenProcesses(lock)
    with contextlib.closing(server):
        yield {_SOCKET: str(server.fileno()), _LOCK: str(lock)}, server


class ForkedCommands:
    """Starts commands whose workers are forked off a server of the test session, at determinism D0 or D1.

    folder: for the lock that keeps the commands' requests apart.
    """

    def __init__(self, servers: ForkServers, folder: Path) -> None:
        self._server = servers.server_for({**os.environ, **FIXED_VARIABLES})
        lock = folder / "fork-server.lock"
        lock.touch()
        self._server._lock = _LockBetweenProcesses(lock)
        self._variables = {_SOCKET: str(self._server.fileno()), _LOCK: str(lock)}

    def popen(
        self, *arguments: str, environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start `elastane ARGUMENTS`. environment: changes to this process's."""
        start = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
        start += "from integration.forked_cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-u", "-c", start, *arguments],
            env={**os.environ, **(environment or {}), **self._variables},
            pass_fds=[self._server.fileno()],
            text=True,
            **options,
        )

    def run(
        self, *arguments: str, timeout_seconds: float, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end; return its output."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.popen(*arguments, environment=environment, **pipes) as process:
            try:
                out, err = process.communicate(timeout=timeout_seconds)
            except subprocess.TimeoutExpired:
                process.terminate()  # it ends what it started
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class _LockBetweenProcesses:
    """Gives each request its own answer: threads of this process, and other commands, take turns."""

    def __init__(self, path: Path) -> None:
        self._threads = threading.Lock()
        self._file = path.open("rb")

    def __enter__(self) -> None:
        self._threads.acquire()
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._threads.release()


class _InheritedServer(ForkServer):
    """The test's server, as seen by a command."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=int(os.environ[_SOCKET]))
        self._socket.set_inheritable(False)  # the server ends when nobody has it any more
        self._lock = _LockBetweenProcesses(Path(os.environ[_LOCK]))
        self._fixed = fixed_variables({**os.environ, **FIXED_VARIABLES})

    def server_for(self, environment: Mapping[str, str], module: str) -> ForkServer | None:
        """Return None for a module, or a process that needs other variables than the server's."""
        return self if not module and fixed_variables(environment) == self._fixed else None


def main() -> None:
    server, start_afresh = _InheritedServer(), ChildProcess.start

    def start(child: ChildProcess) -> None:
        if not start_forked(child, server.server_for):
            start_afresh(child)

    ChildProcess.start = start  # type: ignore[method-assign]
    runpy.run_module("elastane_cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
