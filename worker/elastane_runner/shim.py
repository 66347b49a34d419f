"""The parent of one rank's processes, which outlives the runner: starts it, keeps its log, records its end.

Run in a bare interpreter, in a session of its own. The start comes as JSON on stdin, the answer goes to
stdout: "started", or what went wrong.

    1. take the rank's lock; end if the attempt is closed, as the engine has given it up
    2. fork; the child leads a session of its own, and waits
    3. write process.json, then let the child run the command: no command runs that is not recorded
    4. write the rank's output to its log, until the rank has ended
    5. kill what the rank started and left, read the rest of the output, write exit.json

SIGTERM means: read stop.json, send SIGTERM to the rank's process group, and kill everything after the grace.
All processes that the rank started, in whatever session, become children of the shim when their parents end
(PR_SET_CHILD_SUBREAPER), so none of them is missed. If the shim itself is killed, the kernel kills the rank
(PR_SET_PDEATHSIG), and the engine finds the others by their mark. Standard library alone, for a quick start.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from elastane_runner.log_segments import LogWriter
from elastane_runner.process_records import (
    CLOSED,
    EXIT,
    PROCESS,
    STOP,
    identity_of,
    lock,
    parents,
    read_record,
    write_record,
)

STARTED: Final = "started"
#: Grace if SIGTERM came from elsewhere than an engine, as when the machine is shut down.
GRACE_SECONDS_DEFAULT: Final = 10.0

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_READ_BYTES: Final = 64 * 1024
_BLOCKED: Final = (signal.SIGTERM, signal.SIGCHLD)
_EXIT_CANNOT_RUN: Final = 127


def main(folder: Path) -> None:
    """Run the rank of a folder to its end. Writes to stdout that it has started, or why it has not."""
    os.chdir("/")
    try:
        start = json.loads(sys.stdin.buffer.read())
    except ValueError:  # the engine was killed half-way: nothing starts
        return
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    held = lock(folder)
    shim = _Shim(folder, int(start["log_cap_bytes"]))
    answer = STARTED
    if held is None:
        answer = "another shim runs this rank"
    elif (folder.parents[1] / CLOSED).exists():
        answer = "the attempt is closed"
    else:
        try:
            shim.start(start)
        except OSError as error:
            shim.give_up()
            answer = str(error)
    with contextlib.suppress(OSError):  # the engine was killed; the next one reads the records
        os.write(1, answer.encode())
    os.dup2(null, 1)
    if answer == STARTED:
        shim.watch()


class _Shim:
    def __init__(self, folder: Path, log_cap_bytes: int) -> None:
        self._folder = folder
        self._log = LogWriter(folder, log_cap_bytes)
        self._rank = 0
        self._status: int | None = None
        self._kill_at: float | None = None
        self._stopped = False
        self._output = -1
        self._go = -1
        self._wakeup = -1

    # ------------------------------------------------------------------ start

    def start(self, start: Mapping[str, Any]) -> None:
        """Record the rank and let it run. Raises OSError if it cannot be forked or recorded."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
        self._listen()
        self._output, output = os.pipe()
        wait, self._go = os.pipe()
        # A signal that comes before the child has its own handlers back must end it, not be lost in ours.
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        own_pid = os.getpid()
        self._rank = os.fork()
        if self._rank == 0:
            os.close(self._go)
            _become(own_pid, libc, wait, output, start)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        os.close(output)
        os.close(wait)
        write_record(
            self._folder / PROCESS,
            {"shim": identity_of(own_pid), "rank": identity_of(self._rank), "started": time.time()},
        )
        os.write(self._go, b"g")
        os.close(self._go)

    def give_up(self) -> None:
        """Kill a rank that has not run its command."""
        if self._rank:
            self._kill_all()

    def _listen(self) -> None:
        self._wakeup, notify = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(notify, False)
        signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
        for number in _BLOCKED:
            signal.signal(number, lambda *_: None)

    # ------------------------------------------------------------------ watch

    def watch(self) -> None:
        """Pass on the output and obey stop requests until nothing of the rank is left; record its end."""
        self._read_stop()
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakeup, selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            while self._status is None:
                timeout = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
                for key, _ in selector.select(timeout):
                    if key.fd == self._wakeup:
                        self._wake_up()
                    elif not self._read_output():  # the rank has closed it, and may go on
                        selector.unregister(self._output)
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    self._kill_at = None
                    self._kill_all()
        self._kill_all()
        os.set_blocking(self._output, False)
        with contextlib.suppress(BlockingIOError):
            while self._read_output():
                pass
        self._log.close()
        assert self._status is not None
        write_record(
            self._folder / EXIT,
            {
                "returncode": os.waitstatus_to_exitcode(self._status),
                "stopped": self._stopped,
                "log_bytes": self._log.offset,
                "ended": time.time(),
            },
        )

    def _read_output(self) -> bool:
        data = os.read(self._output, _READ_BYTES)
        self._log.write(data)
        return bool(data)

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            received = os.read(self._wakeup, 512)
            if signal.SIGTERM in received:
                self._read_stop(GRACE_SECONDS_DEFAULT)
        while self._reap(os.WNOHANG):
            pass

    def _read_stop(self, otherwise_seconds: float | None = None) -> None:
        """Begin to stop the rank if a request is there; a later request may shorten the grace period."""
        request = read_record(self._folder.parents[1] / STOP)
        grace_seconds = float(request["grace_seconds"]) if request else otherwise_seconds
        if grace_seconds is None or self._status is not None:
            return
        kill_at = time.monotonic() + grace_seconds
        if not self._stopped:
            self._stopped, self._kill_at = True, kill_at
            _signal_group(self._rank, signal.SIGTERM)
        elif self._kill_at is not None:
            self._kill_at = min(self._kill_at, kill_at)

    # ------------------------------------------------------------------ end

    def _reap(self, options: int) -> bool:
        """Reap one child, the rank or what it left; False if none has ended."""
        try:
            pid, status = os.waitpid(-1, options)
        except ChildProcessError:
            return False
        if pid == self._rank:
            self._status = status
        return pid != 0

    def _kill_all(self) -> None:
        """Kill all descendants, until none is left: without a child, a shim has no descendant either."""
        while True:
            _kill_descendants(os.getpid())
            if not self._reap(0):
                return


def _become(shim: int, libc: ctypes.CDLL, wait: int, output: int, start: Mapping[str, Any]) -> None:
    """Become the rank. Does not return."""
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in (*_BLOCKED, signal.SIGPIPE, signal.SIGXFSZ):  # the last two are ignored by Python
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(output, 1)
        os.dup2(output, 2)
        # The shim was killed before it had recorded this process, or before the kernel knew of the signal.
        if os.read(wait, 1) != b"g" or os.getppid() != shim:
            os._exit(_EXIT_CANNOT_RUN)
        os.chdir(start["folder"])
        os.execvpe(start["command"][0], start["command"], start["environment"])
    except (OSError, ValueError) as error:
        os.write(2, f"{start['command'][0]}: cannot be run in {start['folder']}: {error}\n".encode())
    finally:
        os._exit(_EXIT_CANNOT_RUN)


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:  # it does not lead its group yet
        os.kill(leader, number)


def _kill_descendants(ancestor: int) -> None:
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(ancestor, ()))
    for pid in found:  # grows while it is walked
        found += children.get(pid, ())
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
