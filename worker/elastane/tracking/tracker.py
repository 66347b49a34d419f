"""What a tracker is, which there are, and what goes into one: each step that stands, once.

A tracker keeps a cursor beside its data: the first step that is not in it, and where in the history that is.
Whoever takes it up, another leader or a resumed job, goes on from there.
"""

from __future__ import annotations

import datetime
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from elastane.errors import RefusedError

if TYPE_CHECKING:
    from elastane.logged import LoggedStep

#: By kind: the modules of which one must be there, and what the text behind the colon is.
KINDS: Final = {
    "tensorboard": (("tensorboardX", "tensorboard"), "a folder; default: runs"),
    "mlflow": (("mlflow",), "the experiment; default: the job. MLFLOW_TRACKING_URI says where"),
    "wandb": (("wandb",), "the project; default: the job"),
}


@dataclass(frozen=True, slots=True)
class TrackerSpec:
    """A tracker as it is asked for: "tensorboard:runs/digits". where: empty for the kind's default."""

    kind: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}" if self.where else self.kind


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that values are of. created: of the job, seconds since the Unix epoch; tells it from others."""

    job: str
    created: float

    @property
    def name(self) -> str:
        """ "train-20260504T101112": the same for all leaders of a job, and another for a job made anew."""
        moment = datetime.datetime.fromtimestamp(self.created, datetime.UTC)
        return f"{self.job}-{moment:%Y%m%dT%H%M%S}"


@dataclass(frozen=True, slots=True)
class Cursor:
    """next_step: the first that is not in the tracker. token: of the history; empty: not known."""

    next_step: int = 0
    token: str = ""


class Tracker(Protocol):
    """A place that values are written to. replaces: whether it can forget steps it has."""

    replaces: bool

    def open(self) -> Cursor:
        """Take the run up, or begin it. Raises TrackerError."""

    def write(self, step: LoggedStep) -> None:
        """A step that is not in it."""

    def rewind(self, step: int) -> None:
        """Forget `step` and all above it; only if it `replaces`."""

    def flush(self, cursor: Cursor) -> None:
        """Make durable what was written, then the cursor."""

    def close(self, *, finished: bool) -> None:
        """finished: the job is over."""


class Feed:
    """Decides what becomes of the steps of a stream in one tracker."""

    def __init__(self, tracker: Tracker, cursor: Cursor) -> None:
        self._tracker = tracker
        self.next_step = cursor.next_step

    def take(self, step: LoggedStep) -> None:
        """The next step of the stream; one that is not above the last one supersedes what was above it.

        A tracker that cannot forget keeps the first run of a replayed step: the values of both are the same.
        """
        if step.step < self.next_step:
            if not self._tracker.replaces:
                return
            self._tracker.rewind(step.step)
        if step.values:
            self._tracker.write(step)
        self.next_step = step.step + 1


def parse_specs(text: str) -> list[TrackerSpec]:
    """The trackers of "KIND[:WHERE],..."; raises RefusedError for what is none or not installed."""
    specs = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        kind, _, where = part.partition(":")
        if kind not in KINDS:
            raise RefusedError(
                f"{part!r} is no tracker", hint=f"KIND[:WHERE] with KIND one of {', '.join(KINDS)}"
            )
        modules = KINDS[kind][0]
        if not any(importlib.util.find_spec(module) for module in modules):
            raise RefusedError(
                f"values are to go to {kind}, which is not installed here",
                hint=f"pip install {modules[-1]}, or leave {part!r} out",
            )
        specs.append(TrackerSpec(kind, where))
    return specs


def tracker_of(spec: TrackerSpec, run: TrackedRun) -> Tracker:
    """The tracker; imports its library."""
    makers: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: _tensorboard(spec.where or "runs", run),
        "mlflow": lambda: _mlflow(spec.where or run.job, run),
        "wandb": lambda: _wandb(spec.where or run.job, run),
    }
    return makers[spec.kind]()


def _tensorboard(where: str, run: TrackedRun) -> Tracker:
    from elastane.tracking.tensorboard import TensorBoard

    return TensorBoard(where, run)


def _mlflow(where: str, run: TrackedRun) -> Tracker:
    from elastane.tracking.mlflow_runs import MlflowRun

    return MlflowRun(where, run)


def _wandb(where: str, run: TrackedRun) -> Tracker:
    from elastane.tracking.wandb_runs import WandbRun

    return WandbRun(where, run)
