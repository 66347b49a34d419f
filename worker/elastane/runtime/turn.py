"""An EST's turn of a global step: what it has taken from the loader and what it leaves behind. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from elastane.context import EstContext, Parts
from elastane.runtime.step_state import StepState


class Samples(Protocol):
    """The samples of a mini-batch: a range of positions, and the dataset's indices if they are known."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def samples(self) -> Sequence[int]: ...


@dataclass
class Turn:
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
    taken: list[Samples] = field(default_factory=list)
    #: Loader position and stream states after the finished mini-batches.
    loader_parts: Parts = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    #: States of generators and registered items at the backward's first gradient.
    states: Parts = field(default_factory=dict)
    #: If set, the turn starts from this context and has no effect: for the sentinel (an EST that another
    #: worker hosts), or for comparison with the next turn.
    guest: EstContext | None = None

    @classmethod
    def of_step(cls, state: StepState, ranks: Iterable[int], batches: int = 1) -> list[Self]:
        """Return the turns of a worker that hosts the ESTs `ranks`. batches: of each EST in the step."""
        hosted = sorted(ranks)
        return [
            cls(state, rank, slot, ends=slot == len(hosted) - 1, batches=batches)
            for slot, rank in enumerate(hosted)
        ]

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
