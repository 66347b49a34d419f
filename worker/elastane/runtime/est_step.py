"""State of the running EST's turn, and of the finished epochs, as the trainer keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from elastane.collective.gradient_digest import GradientDigest
from elastane.context import EstContext
from elastane.data.source import BatchInfo
from elastane.rng import Parts
from elastane.runtime.step_state import StepState
from elastane_common.errors import StepError


class EstsDisagreeError(StepError):
    """The turns of one step disagree: lr set from a counter, weights written outside the step."""

    code = "ELA350"


class PartialGradientError(StepError):
    """The script changed gradients that are still being accumulated over a step's mini-batches."""

    code = "ELA341"


@dataclass
class EstStep:
    """One EST's part of a step as this worker runs it: one mini-batch, or several that accumulate."""

    #: The attempt at the step that the turn belongs to.
    state: StepState
    rank: int
    slot: int
    #: True for the worker's last EST of the step.
    ends: bool
    #: Number of mini-batches in the step, and index of the current one.
    batches: int = 1
    micro: int = 0
    taken: list[BatchInfo] = field(default_factory=list)
    #: Loader position and stream states after the finished mini-batches.
    loader_parts: Parts = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    #: Version counter of each buffer when EST 0's were copied; shows later writes.
    buffer_versions: list[int] = field(default_factory=list)
    #: States of generators and registered items at the backward's first gradient.
    states: Parts = field(default_factory=dict)
    #: The body has called optimizer.step(), whether or not it took effect, and has read job.stepped.
    optimizer_called: bool = False
    asked_stepped: bool = False
    #: If set, the turn starts from this context and has no effect: for the sentinel (an EST that another
    #: worker hosts), or for comparison with the next turn.
    guest: EstContext | None = None
    #: The turn is run twice, first as a guest, to compare the digests of its gradients.
    repeated: bool = False
    #: If set, computes the digest of the EST's gradients.
    digest: GradientDigest | None = None

    @property
    def step(self) -> int:
        """The global step."""
        return self.state.step

    @property
    def applied(self) -> bool:
        """True once the optimizer may step: in the worker's last turn, if the step is not lost."""
        return self.state.may_step

    @property
    def sync(self) -> bool:
        """True if the current mini-batch is the EST's last of the step."""
        return self.micro == self.batches - 1

    @property
    def last(self) -> bool:
        """True if the current mini-batch is the worker's last of the step."""
        return self.ends and self.sync


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
