"""Rehearsed churn: stop or kill a worker at an exact place of a run, for any script.

`elastane verify` and the tests put a script through ring changes at planned steps. The script needs no
change: when ELASTANE_REHEARSAL is set, the worker takes part on its own (see `install`). A worker has four
settings; all but the first act at the points of `probes`:

    enter   a file. At its start (in `elastane.init`) the worker waits while somebody holds a lock on it:
            joining workers can be started ahead of the step in which they are to join.
    gates   a folder. In step s, once the step is reported, the worker waits while somebody holds a lock
            on the file gates/s, if there is one, and its ring stands. So a change can be made while a
            known step runs, however fast the machine is. A worker of tasks that push waits before its task
            number s.
    orders  a file. At the start of each mini-batch, and in each task with parameter servers before its
            gradients and after its push, the worker executes its text for as long as it is there: "slow
            SECONDS" sleeps, "hang" waits for another text, "eat" allocates memory until the kernel ends the
            process. Written by `elastane chaos` while the job runs (see `give_order`).
    kill    "point:step". The process kills itself with SIGKILL at that point of that step, or at its
            first visit to the point after that step; for "prepared" also at "ahead", which takes its
            place in a step that is applied ahead.

The locks are flock(2) locks: the kernel releases them when their holder ends, so that nobody waits for ever.

Without the variable nothing is installed, at no cost.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from elastane.runtime import probes
from elastane_common.atomic_writes import write_atomically
from elastane_common.errors import RefusedError

VARIABLE: Final = "ELASTANE_REHEARSAL"
_HANG_LOOK_SECONDS: Final = 0.05
_GATE_LOOK_SECONDS: Final = 0.005
_EAT_BYTES: Final = 16 << 20
#: In the order of a step; the last three belong to a ring change.
POINTS: Final = ("forward", "all_reduce", "ahead", "prepared", "applied", "hand_over", "formed", "undone")


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Settings of one worker's rehearsal; all empty: none.

    enter, orders: files; gates: a folder; kill: "point:step".
    """

    enter: str = ""
    gates: str = ""
    kill: str = ""
    orders: str = ""

    def __post_init__(self) -> None:
        point, _, step = self.kill.partition(":")
        if self.kill and (point not in POINTS or not step.isdecimal()):
            raise ValueError(
                f"kill is {self.kill!r}, expected the form 'prepared:7'; points: {', '.join(POINTS)}"
            )

    def environment(self) -> dict[str, str]:
        """Return the variable for the worker's process, as a dict; empty if there are no settings."""
        asked = {name: value for name, value in asdict(self).items() if value}
        return {VARIABLE: json.dumps(asked)} if asked else {}

    @classmethod
    def parse(cls, text: str) -> Rehearsal:
        """Inverse of `environment`. Raises RefusedError for any other text."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise RefusedError(
                f"bad environment: {VARIABLE}: {error}",
                hint=f"unset {VARIABLE}; it is set by tests and `elastane verify`",
            ) from error

    def reached(self, point: str, step: int) -> None:
        """Execute the settings at a point; installed as the runtime's probe (see `probes`)."""
        where, _, at = self.kill.partition(":")
        # With steps applied ahead only the last one comes to "prepared", where the result would die, too.
        is_there = point == where or (point, where) == ("ahead", "prepared")
        if is_there and step >= int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        if point == "task" and self.gates:
            _wait_for(Path(self.gates) / str(step))
        if point in ("forward", "pushed") and self.orders:
            _obey(Path(self.orders))

    def hold(self, step: int, is_lost: Callable[[], bool]) -> None:
        """Wait at the step's gate for as long as the ring stands.

        A worker that stayed in a ring which has lost a member would keep the next ring from forming, and the
        gate opens only when that ring has come to the gate's step.
        """
        gate = Path(self.gates) / str(step)
        if not self.gates or not gate.exists():
            return
        with gate.open() as file:
            while not is_lost():
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(_GATE_LOOK_SECONDS)
                else:
                    return


class Gate:
    """Holds workers that wait for the file `path`, until it is opened or this process ends."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def open(self) -> None:
        """Release the workers; a second call does nothing."""
        self._file.close()


def give_order(file: Path, text: str) -> None:
    """Write a worker's `orders` file atomically, so that it never reads half a text. Empty text: no order."""
    write_atomically(file, text)


def install() -> None:
    """Install the rehearsal that the environment defines, if any. Called by an elastic job at its start."""
    text = os.environ.get(VARIABLE)
    if text:
        rehearsal = Rehearsal.parse(text)
        probes.install(rehearsal.reached, rehearsal.hold)
        if rehearsal.enter:
            _wait_for(Path(rehearsal.enter))


def _wait_for(gate: Path) -> None:
    """Wait until nobody holds the gate; return at once if there is none."""
    if gate.exists():
        with gate.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)


def _obey(orders: Path) -> None:
    """Execute the file's current text."""
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
            # nonzero bytes, so that the kernel must really provide the pages
            hoard.append(b"\xff" * _EAT_BYTES)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""
