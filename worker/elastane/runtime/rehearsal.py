"""Rehearsed churn: stops and deaths at exact places of a run, for any script.

`elastane verify` and the tests put a script through changes of the ring at planned steps. The script
needs nothing for it: when ELASTANE_REHEARSAL is set, the worker takes part by itself (see `install`).
Four things can be asked of a worker, all but the first at the points of `probes`:

    enter   a file. The worker waits as it starts (in `elastane.init`) while somebody holds a lock on it:
            newcomers can be started ahead of the step in which they are to come.
    gates   a folder. In step s, once the step is reported, the worker waits while somebody holds a lock
            on the file gates/s, if there is one. So a change can be made while a known step runs,
            however fast the machine is.
    orders  a file. At the start of each mini-batch the worker does what its text says, as long as it says so:
            "slow SECONDS" waits so long, "hang" waits for another text, "eat" takes memory until the
            kernel ends the process. Written by `elastane chaos` while the job runs (see `give_order`).
    kill    "point:step". The process kills itself with SIGKILL at that point of that step, or at its
            first visit to the point after that step.

The locks are flock(2)'s: they fall when their holder ends, so that nobody waits for ever.

In runs with no such variable nothing is installed and nothing is paid.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from elastane.errors import RefusedError
from elastane.runtime import probes

VARIABLE: Final = "ELASTANE_REHEARSAL"
_HANG_LOOK_SECONDS: Final = 0.05
_EAT_BYTES: Final = 16 << 20
#: In the order of a step; the last two come with a change of the ring.
POINTS: Final = ("forward", "all_reduce", "prepared", "applied", "hand_over", "formed")


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What is asked of one worker; empty: nothing.

    enter, orders: files; gates: a folder; kill: "point:step".
    """

    enter: str = ""
    gates: str = ""
    kill: str = ""
    orders: str = ""

    def __post_init__(self) -> None:
        point, _, step = self.kill.partition(":")
        if self.kill and (point not in POINTS or not step.isdecimal()):
            raise ValueError(f"kill is {self.kill!r}, not like 'prepared:7'; points: {', '.join(POINTS)}")

    def environment(self) -> dict[str, str]:
        """The variable for the worker's process; empty when nothing is asked of it."""
        asked = {name: value for name, value in asdict(self).items() if value}
        return {VARIABLE: json.dumps(asked)} if asked else {}

    @classmethod
    def parse(cls, text: str) -> Rehearsal:
        """Inverse of `environment`; raises RefusedError for anything else."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise RefusedError(
                f"bad environment: {VARIABLE}: {error}",
                hint=f"unset {VARIABLE}; it is set by tests and `elastane verify`",
            ) from error

    def reached(self, point: str, step: int) -> None:
        """The probe: called by the runtime at every point (see `probes`)."""
        where, _, at = self.kill.partition(":")
        if point == where and step >= int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        if point == "all_reduce" and self.gates:
            _wait_for(Path(self.gates) / str(step))
        if point == "forward" and self.orders:
            _obey(Path(self.orders))


class Gate:
    """Holds the workers that come to the file `path` until it is opened, or this process ends."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def open(self) -> None:
        """Let the workers go on; a second call does nothing."""
        self._file.close()


def give_order(file: Path, text: str) -> None:
    """Write a worker's `orders`: whole, so that it never reads half of them. Empty: as if there were none."""
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(text)
    beside.replace(file)


def install() -> None:
    """Take part in the rehearsal the environment asks for, if any. Called by an elastic job as it starts."""
    text = os.environ.get(VARIABLE)
    if text:
        rehearsal = Rehearsal.parse(text)
        probes.install(rehearsal.reached)
        if rehearsal.enter:
            _wait_for(Path(rehearsal.enter))


def _wait_for(gate: Path) -> None:
    """Until nobody holds the gate; at once if there is none."""
    if gate.exists():
        with gate.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)


def _obey(orders: Path) -> None:
    """Do what the file says now."""
    text = _read(orders)
    verb, _, argument = text.partition(" ")
    if verb == "slow":
        time.sleep(float(argument))
    elif verb == "hang":
        while _read(orders) == text:
            time.sleep(_HANG_LOOK_SECONDS)
    elif verb == "eat":
        hoard = []
        while True:
            hoard.append(b"\xff" * _EAT_BYTES)  # written to, so that the kernel must give it


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""
