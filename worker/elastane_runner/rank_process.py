"""One rank on this machine, by its folder and the kernel: starts, signals and concludes its shim.

All functions block; the engine calls them in threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from elastane_runner.engine import EngineError, RankPlan, RankRecord, RankState
from elastane_runner.log_segments import log_bytes
from elastane_runner.process_records import (
    EXIT,
    MARK,
    PROCESS,
    Marked,
    has_mark,
    lock,
    open_process,
    read_identity,
    read_record,
    survey,
    write_record,
)
from elastane_runner.rank_logs import last_line
from elastane_runner.shim import STARTED

#: Variables of the runner that its ranks get, unless they have their own.
PASSED_VARIABLES: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH",
    "CUDA_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip

_SHIM_LOG: Final = "shim.log"
_SHIM: Final = (
    f"import sys; sys.path.append({str(Path(__file__).parents[1])!r}); from pathlib import Path; "
    "from elastane_runner.shim import main; main(Path(sys.argv[1]))"
)
_POLL_SECONDS: Final = 0.01
#: Time in which killed processes have to be gone; one in an uninterruptible wait may take longer.
_KILL_SECONDS: Final = 5.0


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the runner's environment that every rank gets; output is unbuffered."""
    passed = {name: environ[name] for name in PASSED_VARIABLES if name in environ}
    return passed | {"PYTHONUNBUFFERED": "1"}


class StartingRank:
    """A started shim that has not answered yet. handle: its pidfd, to be closed by the caller.

    folder: of the rank; made here. mark: of the rank.
    """

    def __init__(self, folder: Path, mark: str) -> None:
        folder.mkdir(mode=0o700)
        with (folder / _SHIM_LOG).open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _SHIM, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={},
                start_new_session=True,
            )
        self._folder = folder
        self._mark = mark
        try:
            self.handle = os.pidfd_open(self.process.pid)
        except OSError:
            self.take_back()
            raise

    def tell(self, plan: RankPlan, code: Path, base: Mapping[str, str], log_cap_bytes: int) -> None:
        """Send the start to the shim through a pipe: no environment is stored, and `ps` does not show it.

        code: folder that the rank starts in. base: variables that it gets beside its own.
        """
        assert self.process.stdin is not None
        start = {
            "command": list(plan.command),
            "environment": {**base, **plan.environment, MARK: self._mark},
            "folder": str(code),
            "log_cap_bytes": log_cap_bytes,
        }
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(json.dumps(start).encode())

    def wait(self) -> None:
        """Wait until the rank has started. Raises EngineError with the shim's reason if it does not."""
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            answer = pipe.read().decode(errors="replace")
        if answer != STARTED:
            errors = (self._folder / _SHIM_LOG).read_text(errors="replace").strip()
            raise EngineError(f"a rank was not started: {answer or errors or 'its shim was killed'}")

    def take_back(self) -> None:
        """Kill everything that was started, including the rank, and record its end."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.process.kill()
        self.process.wait()
        conclude(self._folder, 0, self._mark)


def open_shim(folder: Path) -> int | None:
    """Return a pidfd of the shim of a rank; None if it is gone."""
    identity = read_identity(read_record(folder / PROCESS), "shim")
    return None if identity is None else open_process(identity)


def rank_record(folder: Path, rank: int) -> RankRecord:
    """Return the record of a rank. A rank that is not known to have ended is RUNNING."""
    if not folder.exists():
        return RankRecord(rank=rank, state=RankState.WAITING)
    started_at = (read_record(folder / PROCESS) or {}).get("started")
    ended = read_record(folder / EXIT)
    if ended is None:
        return RankRecord(rank=rank, state=RankState.RUNNING, started_at=started_at)
    returncode = ended["returncode"]
    return RankRecord(
        rank=rank,
        state=RankState.LOST if returncode is None else RankState.EXITED,
        returncode=returncode,
        last_line=last_line(folder),
        started_at=started_at,
        ended_at=ended["ended"],
        reason=ended.get("reason", ""),
    )


def conclude(folder: Path, rank: int, mark: str) -> RankRecord:
    """Return the end of a rank whose shim is gone. If the shim was killed, kill and record what it left."""
    if read_record(folder / EXIT) is None:
        kill_marked(mark)
        record = {"returncode": None, "stopped": False, "log_bytes": log_bytes(folder), "ended": time.time()}
        try:
            write_record(folder / EXIT, record)
        except OSError:  # the disk is full: the next engine records it
            return RankRecord(rank=rank, state=RankState.LOST, last_line=last_line(folder))
    return rank_record(folder, rank)


def end_now(folder: Path, rank: int, mark: str) -> RankRecord:
    """End a rank of a closed attempt with a stop request of no grace, whatever its shim has come to."""
    begun = time.monotonic()
    while (held := lock(folder)) is None and time.monotonic() < begun + 2 * _KILL_SECONDS:
        # The shim reads the request after it has recorded itself: it is told of it, or sees it by itself.
        if (shim := open_shim(folder)) is not None:
            send(shim, signal.SIGTERM if time.monotonic() < begun + _KILL_SECONDS else signal.SIGKILL)
            os.close(shim)
        time.sleep(_POLL_SECONDS)
    if held is not None:
        os.close(held)
    return conclude(folder, rank, mark)


def send(handle: int, number: signal.Signals) -> None:
    """Signal a process by its pidfd; do nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)


def kill_marked(mark: str) -> None:
    """Kill the processes of a rank by their mark, until none can be left; gives up after some seconds."""
    deadline = time.monotonic() + _KILL_SECONDS
    look = survey(mark)
    while look.found or not look.is_whole:
        for pid in look.found:
            _kill(pid, mark)
        if time.monotonic() >= deadline:
            return
        if not look.found:
            time.sleep(_POLL_SECONDS)
        look = survey(mark, look.others)


def _kill(pid: int, mark: str) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if has_mark(pid, mark) is Marked.YES:  # the pid is not another one's by now
            with contextlib.suppress(PermissionError):
                send(handle, signal.SIGKILL)
            gone = select.poll()
            gone.register(handle, select.POLLIN)
            gone.poll(_KILL_SECONDS * 1000)
    finally:
        os.close(handle)
