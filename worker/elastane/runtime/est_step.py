"""State of the running EST's turn, and of the finished epochs, as the trainer keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastane.collective.gradient_digest import GradientDigest
from elastane.runtime.turn import Turn
from elastane_common.errors import StepError


class EstsDisagreeError(StepError):
    """The turns of one step disagree: lr set from a counter, weights written outside the step."""

    code = "ELA350"


class PartialGradientError(StepError):
    """The script changed gradients that are still being accumulated over a step's mini-batches."""

    code = "ELA341"


@dataclass
class EstStep(Turn):
    """A turn with what is compared in it, and of the model."""

    #: Version counter of each buffer when EST 0's were copied; shows later writes.
    buffer_versions: list[int] = field(default_factory=list)
    #: The body has called optimizer.step(), whether or not it took effect, and has read job.stepped.
    optimizer_called: bool = False
    asked_stepped: bool = False
    #: The body has asked which rank it is, or whether it is in the leader.
    asked_rank: bool = False
    #: The body has asked whether the step is applied for good, or has done something that depends on it.
    confirmed: bool = False
    #: The turn is run twice, first as a guest, to compare the digests of its gradients.
    repeated: bool = False
    #: If set, computes the digest of the EST's gradients.
    digest: GradientDigest | None = None


class EpochsClosed:
    """Counters of epochs whose code outside the loader loop is reflected in the state; they travel with it.

    begun: epochs whose code before the loader loop has run. count: those whose code after it has run. ended:
    that code left the loop over epochs; training is over. lost: set once the only process resumed from a
    checkpoint of another epoch than its script's variables belong to.
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
        self.begun = state.get("begun", self.count)  # checkpoints of older versions lack "begun"
        self.ended = bool(state.get("ended", False))
        self.lost = bool(state.get("lost", False))
