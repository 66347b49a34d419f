"""A master of one's own on this machine: started, started again on the same port, ended cleanly.

`elastane run` without --master, the demo and the tests use it. The master is another program
(`python -m elastane_master`) and speaks through two files of its state directory: `port`, written once it
listens, and `master.log`, everything it says. A restart keeps port and state directory, so workers find
it where it was and the job stands where it stood.

The master keeps a private store server that outlives it on purpose. `stop` ends it too, and `guard.py`
does when our process is killed and cannot.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from elastane.agent.first_checks import room_fault
from elastane.agent.guard import stop_store
from elastane.agent.process import ChildProcess, ExitStatus
from elastane.credentials import speak_plainly
from elastane.errors import ElastaneError

_GUARD = Path(__file__).with_name("guard.py")
#: Between two looks at the port file; the master's exit wakes the wait at once.
_LOOK_SECONDS = 0.01
#: How the line begins in which a master says why it ends.
_VERDICT = "elastane master: "


class MasterStartError(ElastaneError):
    """The embedded master did not come up: why, in its own words, or else the end of its log.

    log: where there is more; None: all is said.
    """

    code = "ELA404"
    log: Path | None = None


class EmbeddedMaster:
    """One master. Start it from a thread that lives as long as the process.

    state_dir: its folder; made if absent. arguments: further options of `python -m elastane_master`.
    on_exit: called from a thread of the master's process when it ended without being asked to.
    environment: further variables of the process.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        arguments: Sequence[str] = (),
        on_exit: Callable[[ExitStatus], None] | None = None,
        start_timeout_seconds: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.state_dir = state_dir.absolute()
        self._host = host
        self._port = port
        self._arguments = list(arguments)
        self._on_exit = on_exit
        self._start_timeout_seconds = start_timeout_seconds
        self._environment = dict(environment or {})
        self._process: ChildProcess | None = None
        self._stopping = False
        self._log_begin = 0
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """ "host:port"; the port is chosen at the first start and kept."""
        assert self._port, "not started yet"
        return f"{self._host}:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.status is None

    @property
    def log_path(self) -> Path:
        return self.state_dir / "master.log"

    def start(self) -> str:
        """Start it, first or again; returns its address once it listens. Raises MasterStartError.

        This process and those it starts speak with this master from now on: if it serves without TLS, the
        certificates in the environment are for another one and are dropped.
        """
        assert not self.running, "already running"
        self._stopping = False
        self.state_dir.mkdir(parents=True, exist_ok=True)
        port_file = self.state_dir / "port"
        port_file.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "elastane_master",
            "--listen", f"{self._host}:{self._port}",
            "--state-dir", str(self.state_dir),
            "--port-file", str(port_file),
            *self._arguments,
        ]  # fmt: skip
        self._log_begin = self.log_path.stat().st_size if self.log_path.exists() else 0
        process = ChildProcess(
            "master",
            command,
            log=self.log_path,
            on_exit=self._exited,
            death_signal=signal.SIGTERM,
            # An HTTP port is served by the master that was asked for one, not by every one started here.
            environment={**os.environ, "PYTHONUNBUFFERED": "1", "ELASTANE_HTTP": "", **self._environment},
        )
        process.start()
        self._process = process
        self._tell_guard(process.pid)
        self._port = self._wait_for_port(process, port_file)
        if "--tls-cert" not in self._arguments and not os.environ.get("ELASTANE_MASTER_TLS_CERT"):
            speak_plainly(os.environ)
        return self.address

    def stop(self, grace_seconds: float = 10.0) -> None:
        """End it in good order, and its store; SIGKILL after the grace time. Idempotent."""
        self._stopping = True
        if self._process is not None:
            self._process.stop(grace_seconds)
        stop_store(self.state_dir, grace_seconds)
        self._dismiss_guard()

    def sigkill(self) -> None:
        """What a fault does to it: SIGKILL to the master alone. `on_exit` follows; the store lives on."""
        assert self._process is not None, "not started"
        self._process.signal(signal.SIGKILL)

    def wait(self, timeout_seconds: float | None = None) -> ExitStatus | None:
        """Until it has ended."""
        assert self._process is not None, "not started"
        return self._process.wait(timeout_seconds)

    def log_tail(self, lines: int = 12) -> str:
        """The end of its log, as far as it is of this start."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(self._log_begin)
                text = file.read().decode(errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:]) or "(nothing logged)"

    # ------------------------------------------------------------------ inside

    def _exited(self, process: ChildProcess, status: ExitStatus) -> None:
        if not self._stopping and self._on_exit is not None:
            self._on_exit(status)

    def _wait_for_port(self, process: ChildProcess, port_file: Path) -> int:
        deadline = time.monotonic() + self._start_timeout_seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                if text := port_file.read_text().strip():
                    return int(text.rpartition(":")[2])
            # A file gives no event without inotify; the child's end is one.
            if process.wait(_LOOK_SECONDS) is not None:
                raise self._start_fault(f"the embedded master ended while starting ({process.status})")
        self._stopping = True
        process.kill_group()
        raise self._start_fault(
            f"the embedded master did not listen within {self._start_timeout_seconds:g} s"
        )

    def _start_fault(self, what: str) -> MasterStartError:
        """In the master's own words where it had some, and in one line; else with the end of its log.

        A disk that is full takes no log either.
        """
        tail = self.log_tail()
        for line in reversed(tail.splitlines()):
            if line.startswith(_VERDICT):
                return MasterStartError(f"the embedded master cannot start: {line.removeprefix(_VERDICT)}")
        if fault := room_fault(self.state_dir):
            return MasterStartError(
                f"the embedded master cannot start: its state directory {self.state_dir}: {fault}",
                hint="free some space there, or name another folder with --state-dir",
            )
        error = MasterStartError(f"{what}:\n{tail}", hint=f"its whole log is {self.log_path}")
        error.log = self.log_path
        return error

    def _tell_guard(self, pid: int) -> None:
        """Have the guard look after this master too; it is started with the first one."""
        if self._guard is None:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), str(self.state_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the kernel's signal remains
            self._guard.stdin.write(f"{pid}\n".encode())
            self._guard.stdin.flush()

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.communicate()
            self._guard = None
