"""What the trainer knows of the EST that is running, and of the epochs that are over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from elastane.collective.gradient_digest import GradientDigest
from elastane.context import EstContext
from elastane.data.source import BatchInfo
from elastane.errors import StepError
from elastane.rng import Parts


class TurnError(StepError):
    """The turns of one step do not agree: lr set from a counter, weights written outside the step."""

    code = "ELA350"


class PartialGradientError(StepError):
    """Gradients were changed by the script while they still add up over a step's mini-batches."""

    code = "ELA341"


@dataclass
class Turn:
    """One EST's part of a step, as this worker runs it: one mini-batch, or several that accumulate."""

    step: int
    rank: int
    slot: int
    #: It is the worker's last EST of the step.
    ends: bool
    #: Mini-batches in the step, and the number of the present one.
    batches: int = 1
    micro: int = 0
    taken: list[BatchInfo] = field(default_factory=list)
    #: Loader position and stream states after the mini-batches that are over.
    loader_parts: Parts = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    #: Of each buffer, when EST 0's were taken down: tells who has written to it since.
    buffer_versions: list[int] = field(default_factory=list)
    #: Generators and registered items when the backward's first gradient came.
    states: Parts = field(default_factory=dict)
    #: The contexts of the step are on their way; nothing of the turn can be added any more.
    reported: bool = False
    #: The body has called optimizer.step(), whatever came of it, and has read job.stepped.
    optimizer_called: bool = False
    asked_stepped: bool = False
    #: The optimizer has stepped.
    applied: bool = False
    #: The ring changed: the step will be replayed.
    lost: bool = False
    #: Set: run from this context, and nothing of it counts: for the sentinel, of an EST that another worker
    #: hosts, or to be compared with the next one.
    guest: EstContext | None = None
    #: The turn is run twice, here and as a guest, and the digests of its gradients are compared here.
    repeated: bool = False
    #: Set: somebody asks for the digest of the EST's gradients.
    digest: GradientDigest | None = None

    @property
    def sync(self) -> bool:
        """The present mini-batch is the EST's last of the step."""
        return self.micro == self.batches - 1

    @property
    def last(self) -> bool:
        """The present mini-batch is the worker's last of the step."""
        return self.ends and self.sync


class EpochsClosed:
    """Whose epochs' code outside the loader loop is in the state; travels with it.

    begun: epochs whose code before the loader loop has run. count: those whose closing code, after it, has.
    ended: that code left the loop over epochs; the training is over. lost: once the state came from a
    checkpoint of another epoch than the script's variables were of, in the one process there was.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.count = 0
        self.ended = False
        self.lost = False

    def state_dict(self) -> dict[str, int | bool]:
        return {"begun": self.begun, "count": self.count, "ended": self.ended, "lost": self.lost}

    def load_state_dict(self, state: dict[str, int | bool]) -> None:
        self.count = state["count"]
        self.begun = state.get("begun", self.count)  # checkpoints of older versions have the count only
        self.ended = bool(state.get("ended", False))
        self.lost = bool(state.get("lost", False))
