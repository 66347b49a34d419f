"""Progress of the epochs on the leader's stderr: a redrawn line on a terminal, else one line an epoch.

    terminal   epoch 3/10  ████████▌          212/480 steps  41.3 steps/s  loss 0.4127  left 0:06, of all 0:57
    else       epoch 3/10: 480 steps in 11.6 s, 41.4 steps/s, loss 0.4127, left of all 1:21

Replays do not count: steps are those whose update is in the weights. A leader that does not host all ESTs
knows the values of its own alone, and says whose they are: `loss 0.4127 (ESTs 0-1 of 4)`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TextIO

#: Minimum interval between two redraws on a terminal.
DRAW_SECONDS = 0.1
#: Minimum interval between permanent lines.
SAY_SECONDS = 1.0
NAMES_SHOWN = 3
_BLOCKS = " ▏▎▍▌▋▊▉█"
_BAR_COLUMNS = 20


class LoggedTask(Protocol):
    """What one EST logged in a step: a StepTask."""

    @property
    def virtual_rank(self) -> int: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class LastValues:
    """Means of the values logged in a step. of: "ESTs 0-1 of 4", whose they are; "": of the whole job."""

    means: Mapping[str, float] = field(default_factory=dict)
    of: str = ""


def last_values(tasks: Iterable[LoggedTask], num_ests: int) -> LastValues:
    """Return the means over these tasks of a step. num_ests: N of the job."""
    values: dict[str, list[float]] = {}
    ranks: list[int] = []
    for task in tasks:
        ranks.append(task.virtual_rank)
        for name, value in task.metrics.items():
            values.setdefault(name, []).append(value)
    means = {name: sum(found) / len(found) for name, found in values.items()}
    return LastValues(means, _share(sorted(ranks), num_ests))


def _share(ranks: list[int], num_ests: int) -> str:
    """Describe some of a job's ranks, which are consecutive; "" for all of them."""
    if not ranks or len(ranks) >= num_ests:
        return ""
    first, last = ranks[0], ranks[-1]
    return f"{f'EST {first}' if first == last else f'ESTs {first}-{last}'} of {num_ests}"


@dataclass(slots=True)
class EpochProgress:
    """Current position of training and its text. Pure: time is an argument, in seconds of any clock."""

    steps_per_epoch: int
    total_steps: int
    epochs: int
    #: Values of the last step that logged.
    values: LastValues = LastValues()
    epoch: int = 0
    step: int = 0
    began_at: float = 0.0
    began_step: int = 0

    def begin(self, epoch: int, step: int, now: float) -> None:
        """Begin an epoch, or continue it at `step` where another worker or an earlier run left it."""
        self.epoch, self.step, self.began_step, self.began_at = epoch, step, step, now

    def reach(self, step: int, values: LastValues | None = None) -> None:
        """Note that all steps before this one are applied."""
        self.step = step
        if values is not None and values.means:
            self.values = values
        if step < self.began_step:  # the history went back
            self.began_step = step

    def steps_per_second(self, now: float) -> float:
        seconds = now - self.began_at
        return (self.step - self.began_step) / seconds if seconds > 0 else 0.0

    @property
    def _end(self) -> int:
        return min((self.epoch + 1) * self.steps_per_epoch, self.total_steps)

    def line(self, now: float, columns: int) -> str:
        """Format the line for a terminal that is `columns` wide.

        The least important parts are dropped first.
        """
        first = self.epoch * self.steps_per_epoch
        done, of = self.step - first, self._end - first
        rate = self.steps_per_second(now)
        parts = [f"epoch {self.epoch + 1}/{self.epochs}", "", f"{done}/{of} steps"]
        if rate:
            parts += [_per_second(rate), *self._values()]
            left, left_of_all = (self._end - self.step) / rate, (self.total_steps - self.step) / rate
            parts.append(f"left {clock(left)}, of all {clock(left_of_all)}")
        length = sum(len(part) + 2 for part in parts)
        while len(parts) > 3 and length > columns:
            length -= len(parts.pop(3)) + 2
        bar = min(_BAR_COLUMNS, columns - length)
        if bar > 4:
            parts[1] = _bar(done / of if of else 1.0, bar)
        return "  ".join(filter(None, parts))[:columns]

    def summary(self, now: float) -> str:
        """Format the line about a finished epoch."""
        steps = self.step - self.began_step
        rate = self.steps_per_second(now)
        parts = [f"{steps} steps in {now - self.began_at:.3g} s"]
        if rate:
            parts.append(_per_second(rate))
        parts += self._values()
        if rate and self.step < self.total_steps:
            parts.append(f"left of all {clock((self.total_steps - self.step) / rate)}")
        return f"epoch {self.epoch + 1}/{self.epochs}: {', '.join(parts)}"

    def _values(self) -> list[str]:
        whose = f" ({self.values.of})" if self.values.of else ""
        shown = list(self.values.means.items())[:NAMES_SHOWN]
        return [f"{name} {value:.4g}{whose}" for name, value in shown]


class ProgressLine:
    """Draws an `EpochProgress`. stream: stderr by default; clock: returns seconds."""

    def __init__(
        self,
        progress: EpochProgress,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        columns: Callable[[], int] | None = None,
    ) -> None:
        self.progress = progress
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._clock = clock
        self._columns = columns or _terminal_columns
        self._drawn_at = self._said_at = -math.inf
        self._drawn = False

    def begin(self, epoch: int, step: int) -> None:
        """Begin an epoch at this step."""
        self.progress.begin(epoch, step, self._clock())

    def reach(self, step: int, values: Callable[[], LastValues]) -> None:
        """Note that all steps before this one are applied; redraw if it is due.

        values: called only if something is drawn, because reading values may wait for the GPU.
        """
        now = self._clock()
        if not self._live or now - self._drawn_at < DRAW_SECONDS:
            self.progress.reach(step)
            return
        self.progress.reach(step, values())
        self._drawn_at, self._drawn = now, True
        self._write("\r" + self.progress.line(now, self._columns() - 1) + "\x1b[K")

    def end(self, values: LastValues) -> None:
        """Write the permanent line of a finished epoch: at most one a second, and always the last."""
        progress, now = self.progress, self._clock()
        progress.reach(progress.step, values)
        self.clear()
        if now - self._said_at >= SAY_SECONDS or progress.step >= progress.total_steps:
            self._said_at = now
            self._write(progress.summary(now) + "\n")

    def clear(self) -> None:
        """Erase the line from the terminal, so that others can write there."""
        if self._drawn:
            self._drawn = False
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the stream is closed, by its reader or by the script
            self._live = False


def clock(seconds: float) -> str:
    """Format a duration as "1:02:03" or "0:42"."""
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def _per_second(rate: float) -> str:
    return f"{rate:,.0f} steps/s" if rate >= 100 else f"{rate:.3g} steps/s"


def _bar(share: float, columns: int) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * columns * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(columns)


def _terminal_columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns
