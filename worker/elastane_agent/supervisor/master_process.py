"""Starts, restarts and stops an embedded master on this machine.

Used by `elastane run` without --master, the demo and the tests. The master is a separate program
(`python -m elastane_master`) that writes two files into its state directory: `port`, once it listens, and
`master.log`, all its output. A restart keeps port and state directory, so that workers find the master at
the same address and the job continues from its stored state.

The master starts a private store server that is meant to outlive it. `stop` stops that too, and
`guard.py` does so if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from elastane_agent.supervisor.first_checks import room_fault
from elastane_agent.supervisor.guard import stop_store
from elastane_agent.supervisor.port_file import wait_for_address
from elastane_common.credentials import speak_plainly
from elastane_common.errors import ElastaneError
from elastane_common.processes.child import ChildProcess, ExitStatus

_GUARD = Path(__file__).with_name("guard.py")
#: Prefix of the log line in which a master says why it exits.
_VERDICT = "elastane master: "


class MasterStartError(ElastaneError):
    """The embedded master did not start; the text is its own message, or else the end of its log.

    log: the log file, if it says more than the text; None: it does not.
    """

    code = "ELA404"
    log: Path | None = None


class EmbeddedMaster:
    """One embedded master. Start it from a thread that lives as long as the process: processes/launch.py.

    state_dir: its state directory; created if absent. port: 0: any free one. arguments: additional options of
    `python -m elastane_master`. on_exit: called when the master ended without `stop`, from the thread that
    watches its process. environment: additional variables of the process.
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
        """Its "host:port"; the port is chosen at the first start and kept."""
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
        """Start or restart it; return its address once it listens. Raises MasterStartError.

        From now on this process and its children connect to this master. If it serves without TLS, the
        certificates in the environment belong to another master and are removed from it.
        """
        assert not self.running, "already running"
        self._stopping = False
        self.state_dir.mkdir(parents=True, exist_ok=True)
        port_file = self.state_dir / "port"
        port_file.unlink(missing_ok=True)
        command = [
            sys.executable, "-P", "-m", "elastane_master",
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
            # Do not inherit the HTTP port: only a master that was asked for one serves it.
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
        """Stop the master and its store; SIGKILL after the grace time. Idempotent."""
        self._stopping = True
        if self._process is not None:
            self._process.stop(grace_seconds)
        stop_store(self.state_dir, grace_seconds)
        self._dismiss_guard()

    def sigkill(self) -> None:
        """Inject a fault: SIGKILL the master alone. `on_exit` is called; the store server keeps running."""
        assert self._process is not None, "not started"
        self._process.signal(signal.SIGKILL)

    def wait(self, timeout_seconds: float | None = None) -> ExitStatus | None:
        """Wait until it has ended and return how; None after the timeout."""
        assert self._process is not None, "not started"
        return self._process.wait(timeout_seconds)

    def log_tail(self, lines: int = 12) -> str:
        """Return the last lines of its log since the last start."""
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
        if address := wait_for_address(process, port_file, self._start_timeout_seconds):
            return int(address.rpartition(":")[2])
        if process.status is not None:
            raise self._start_fault(f"the embedded master ended while starting ({process.status})")
        self._stopping = True
        process.kill_group()
        raise self._start_fault(
            f"the embedded master did not start listening within {self._start_timeout_seconds:g} s"
        )

    def _start_fault(self, what: str) -> MasterStartError:
        """Return the error for a failed start, with the most useful explanation that can be found.

        That is the master's own message in its log, or a full disk (on which it could not log), or else the
        end of the log.
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
        error = MasterStartError(f"{what}:\n{tail}", hint=f"its full log is {self.log_path}")
        error.log = self.log_path
        return error

    def _tell_guard(self, pid: int) -> None:
        """Send the guard the master's process id; start the guard first if there is none."""
        if self._guard is None:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), str(self.state_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the guard was killed: PR_SET_PDEATHSIG remains
            self._guard.stdin.write(f"{pid}\n".encode())
            self._guard.stdin.flush()

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.communicate()
            self._guard = None
