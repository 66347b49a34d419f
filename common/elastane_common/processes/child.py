"""Runs one child process: passes its output on line by line, and reports how it ended.

A child leads its own session and process group, so that a Ctrl-C on the terminal reaches it only
through the agent, and all processes that it started are killed with it. One thread per child waits on its
pipes and its pidfd together, without polling. The order at the end matters: the group is killed before the
zombie is reaped, because afterwards the kernel may give its number to another process.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from elastane_common.errors import EXIT_SCRIPT_RAISED
from elastane_common.exit_codes import IN_WORDS
from elastane_common.processes.out_of_memory import OomCounter
from elastane_common.processes.output import LineSplitter, Stream

_LAUNCH = Path(__file__).with_name("launch.py")
#: Limit for reading the output after the child's end: a grandchild outside its group may hold the pipe open.
_DRAIN_SECONDS = 1.0
_READ_BYTES = 64 * 1024
_CANNOT_RUN = frozenset({"SyntaxError", "IndentationError", "TabError", "ModuleNotFoundError"})


@dataclass(frozen=True)
class ExitStatus:
    """Exit status of a process. returncode: as in `subprocess`, negative for a signal.

    error: the last line of its stderr that looks like the end of a traceback; "" if there was none.
    out_of_memory: evidence that the kernel killed it because memory was short; "" if there is none.
    """

    returncode: int
    error: str = field(default="", compare=False)
    out_of_memory: str = field(default="", compare=False)

    @property
    def signal_name(self) -> str:
        """Name of the signal that ended it, such as "SIGKILL"; empty if none did."""
        if self.returncode >= 0:
            return ""
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.returncode).name
        return f"signal {-self.returncode}"

    @property
    def repeats(self) -> bool:
        """True if a restart on the same machine must fail in the same way: bad syntax or a missing module."""
        return self.returncode == EXIT_SCRIPT_RAISED and self.error.partition(":")[0] in _CANNOT_RUN

    def __str__(self) -> str:
        if self.returncode < 0:
            return f"ended by {self.signal_name}" + (", out of memory" if self.out_of_memory else "")
        return IN_WORDS.get(self.returncode) or f"exit code {self.returncode}"


class ChildProcess:
    """A child process that cannot outlive the thread that started it.

    name: passed to `on_line`. command: the program and its arguments. on_line(name, stream, text): called
    for each line of output, from the child's thread. on_bytes(name, stream, data): called before `on_line`
    with the bytes as read, and with b"" at the end of a stream. log: file to which output is appended
    instead. on_exit(child, status): called once, from the child's thread, after the last line. death_signal:
    the signal that the kernel sends the child when the parent ends. listens: it has a standard input, to
    which `tell` writes; else that is empty.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        on_line: Callable[[str, Stream, str], None] | None = None,
        on_bytes: Callable[[str, Stream, bytes], None] | None = None,
        log: Path | None = None,
        on_exit: Callable[[ChildProcess, ExitStatus], None] | None = None,
        death_signal: int = signal.SIGKILL,
        listens: bool = False,
    ) -> None:
        assert (on_line is None) != (log is None), "output goes to one place"
        self.name = name
        self._command = list(command)
        self._environment = dict(os.environ if environment is None else environment)
        self._directory = directory
        self._on_line, self._on_bytes = on_line, on_bytes
        self._log = log
        self._on_exit = on_exit
        self._death_signal = death_signal
        self._listens = listens
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._status: ExitStatus | None = None
        self._error, self._set_in = "", False
        self._oom: OomCounter | None = None
        self._out_of_memory = ""

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def status(self) -> ExitStatus | None:
        """Exit status; None while the child runs."""
        return self._status

    def start(self) -> None:
        """Start it. Call this from a thread that lives as long as this process (see launch.py)."""
        launch = [sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid()), str(int(self._death_signal))]
        with contextlib.ExitStack() as stack:
            if self._log is not None:
                out: int | IO[bytes] = stack.enter_context(self._log.open("ab"))
                err = subprocess.STDOUT
            else:
                out, err = subprocess.PIPE, subprocess.PIPE
            self._process = subprocess.Popen(
                [*launch, *self._command],
                stdin=subprocess.PIPE if self._listens else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._environment,
                cwd=self._directory,
                start_new_session=True,
            )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._oom = OomCounter(self._process.pid)
        threading.Thread(target=self._watch, name=f"child {self.name}", daemon=True).start()

    def tell(self, text: str) -> bool:
        """Write to the child's standard input, and close it. Returns False if the child does not read it."""
        assert self._process is not None and self._process.stdin is not None, "it does not listen"
        try:
            with self._process.stdin as pipe:
                pipe.write(text.encode())
        except OSError:
            return False
        return True

    def signal(self, number: int) -> None:
        """Send a signal to the child alone; does nothing if it has ended."""
        with self._lock:
            if self._pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, number)

    def kill_group(self) -> None:
        """SIGKILL the child and its process group; does nothing if it has ended."""
        with self._lock:
            if self._pidfd >= 0:
                _kill_group(self.pid)

    def wait(self, timeout_seconds: float | None = None) -> ExitStatus | None:
        """Wait until it has ended and all output is passed on; None after the timeout or if not started."""
        if self._process is None:
            return None
        self._ended.wait(timeout_seconds)
        return self._status

    def stop(self, grace_seconds: float) -> ExitStatus:
        """Send SIGTERM, and SIGKILL to the group after `grace_seconds`; return how it ended."""
        self.signal(signal.SIGTERM)
        status = self.wait(grace_seconds)
        if status is None:
            self.kill_group()
            status = self.wait()
        assert status is not None
        return status

    # ------------------------------------------------------------------ the child's thread

    def _watch(self) -> None:
        process = self._process
        assert process is not None
        pipes: dict[IO[bytes], tuple[Stream, LineSplitter]] = {}
        if process.stdout is not None:
            pipes[process.stdout] = ("stdout", LineSplitter())
        if process.stderr is not None:
            pipes[process.stderr] = ("stderr", LineSplitter())
        with selectors.DefaultSelector() as selector:
            for pipe in pipes:
                selector.register(pipe, selectors.EVENT_READ)
            selector.register(self._pidfd, selectors.EVENT_READ)
            # Until the process is reaped and its pipes are closed. A grandchild may keep a pipe open, so the
            # pipes get `_DRAIN_SECONDS` once the process is reaped.
            deadline: float | None = None
            while pipes or deadline is None:
                timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = selector.select(timeout)
                if deadline is not None and time.monotonic() >= deadline:
                    break
                for key, _ in ready:
                    if key.fd == self._pidfd:
                        selector.unregister(self._pidfd)
                        self._reap(process)
                        deadline = time.monotonic() + _DRAIN_SECONDS
                    elif not self._read(pipes, key.fileobj):  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)
        for pipe in list(pipes):
            self._end_of(pipes, pipe)
        self._status = ExitStatus(process.returncode, self._error, self._out_of_memory)
        try:
            if self._on_exit is not None:
                self._on_exit(self, self._status)
        finally:
            self._ended.set()

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        # The lock keeps `signal` and `kill_group` from using the ids of a process that is reaped meanwhile.
        with self._lock:
            _kill_group(process.pid)
            evidence = self._oom.evidence() if self._oom is not None else ""
            process.wait()
            if process.returncode == -signal.SIGKILL:
                self._out_of_memory = evidence
            os.close(self._pidfd)
            self._pidfd = -1

    def _read(self, pipes: dict[IO[bytes], tuple[Stream, LineSplitter]], pipe: IO[bytes]) -> bool:
        """Pass on the available output; return False at the end of the pipe."""
        data = os.read(pipe.fileno(), _READ_BYTES)
        if not data:
            self._end_of(pipes, pipe)
            return False
        if self._oom is not None:
            self._oom.look()
        stream, splitter = pipes[pipe]
        if self._on_bytes is not None:
            self._on_bytes(self.name, stream, data)
        self._hand_on(stream, splitter.feed(data))
        return True

    def _end_of(self, pipes: dict[IO[bytes], tuple[Stream, LineSplitter]], pipe: IO[bytes]) -> None:
        stream, splitter = pipes.pop(pipe)
        if self._on_bytes is not None:
            self._on_bytes(self.name, stream, b"")
        self._hand_on(stream, splitter.flush())
        pipe.close()

    def _hand_on(self, stream: Stream, lines: list[str]) -> None:
        assert self._on_line is not None
        for line in lines:
            if stream == "stderr":
                # The frames of a traceback are indented; the first line after them names the exception.
                if self._set_in and line and not line[0].isspace():
                    self._error = line
                self._set_in = line.startswith("  ")
            self._on_line(self.name, stream, line)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
