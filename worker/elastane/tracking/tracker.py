"""Interface and kinds of trackers; each standing step is written to a tracker once.

A tracker stores a cursor with its data: the first step it does not contain, and that step's place in the
history. Another leader or a resumed job continues from there.
"""

from __future__ import annotations

import datetime
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from elastane_common.errors import RefusedError

if TYPE_CHECKING:
    from elastane_common.logged import LoggedStep

#: By kind: modules of which one must be installed, and the meaning of the text after the colon.
KINDS: Final = {
    "tensorboard": (("tensorboardX", "tensorboard"), "a folder; default: runs"),
    "mlflow": (("mlflow",), "the experiment; default: the job. MLFLOW_TRACKING_URI says where"),
    "wandb": (("wandb",), "the project; default: the job"),
}


@dataclass(frozen=True, slots=True)
class TrackerSpec:
    """A tracker as specified: "tensorboard:runs/digits". where: empty for the kind's default."""

    kind: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}" if self.where else self.kind


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that values belong to.

    created: of the job, seconds since the Unix epoch; distinguishes it from others.
    """

    job: str
    created: float

    @property
    def name(self) -> str:
        """Name like "train-20260504T101112": the same for all leaders of a job, different for a recreated
        job."""
        moment = datetime.datetime.fromtimestamp(self.created, datetime.UTC)
        return f"{self.job}-{moment:%Y%m%dT%H%M%S}"


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position in a tracker. next_step: first step not in it. token: of the history; empty: unknown."""

    next_step: int = 0
    token: str = ""


class Tracker(Protocol):
    """A destination of values. replaces: True if it can discard steps it has."""

    replaces: bool

    def open(self) -> Cursor:
        """Resume the run, or create it. Raises TrackerError."""

    def write(self, step: LoggedStep) -> None:
        """Write a step that is not in it."""

    def rewind(self, step: int) -> None:
        """Discard `step` and all above it; only called if it `replaces`."""

    def flush(self, cursor: Cursor) -> None:
        """Make everything written durable, then the cursor."""

    def close(self, *, finished: bool) -> None:
        """Close the run. finished: the job is over."""


class Feed:
    """Decides which steps of a stream are written to one tracker."""

    def __init__(self, tracker: Tracker, cursor: Cursor) -> None:
        self._tracker = tracker
        self.next_step = cursor.next_step

    def take(self, step: LoggedStep) -> None:
        """Process the next step of the stream; one not above the last supersedes all steps from it on.

        A tracker that cannot discard steps keeps the first run of a replayed step: both have the same values.
        """
        if step.step < self.next_step:
            if not self._tracker.replaces:
                return
            self._tracker.rewind(step.step)
        if step.values:
            self._tracker.write(step)
        self.next_step = step.step + 1


def parse_specs(text: str) -> list[TrackerSpec]:
    """Parse "KIND[:WHERE],...". Raises RefusedError for an unknown or uninstalled tracker."""
    specs = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        kind, _, where = part.partition(":")
        if kind not in KINDS:
            raise RefusedError(
                f"{part!r} is not a tracker", hint=f"KIND[:WHERE] with KIND one of {', '.join(KINDS)}"
            )
        modules = KINDS[kind][0]
        if not any(importlib.util.find_spec(module) for module in modules):
            raise RefusedError(
                f"values are to be logged to {kind}, which is not installed here",
                hint=f"pip install {modules[-1]}, or omit {part!r}",
            )
        specs.append(TrackerSpec(kind, where))
    return specs
