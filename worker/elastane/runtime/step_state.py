"""State of one worker's attempt at one global step. Pure; a replay of the step is another attempt.

    READY ──▶ FORWARD ──▶ REPORTED ──▶ PREPARED ──▶ APPLIED
                 │            │  │        ▲           ▲
                 │            │  └─▶ AHEAD ───────────┘
                 │            │        │
                 └────────────┴────────┴─▶ LOST

A step can be lost until this worker has claimed the right to apply it (PREPARED): from then on a change of
the ring waits for the optimizer. A step that is applied AHEAD of its Prepared can still be lost, and is then
undone. `WorkerProtocol` holds the current attempt and makes its transitions; the trainer and its turns read
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from elastane.context import EstContext
from elastane_proto.v1 import ring_pb2


class Stage(Enum):
    """Progress of an attempt at a step."""

    READY = "ready"
    """It has not begun."""
    FORWARD = "forward"
    """The mini-batches of this worker's ESTs run; nothing has been reported."""
    REPORTED = "reported"
    """The report with the contexts after the step has been sent."""
    PREPARED = "prepared"
    """All contexts after the step are durable, and this worker has begun to apply it."""
    AHEAD = "ahead"
    """It is applied in memory only: it is not known yet whether all contexts are durable."""
    APPLIED = "applied"
    """The step is in the weights."""
    LOST = "lost"
    """The ring changed, or the all-reduce failed: the step will be replayed."""


TRANSITIONS: Final[Mapping[Stage, frozenset[Stage]]] = {
    Stage.READY: frozenset({Stage.FORWARD}),
    Stage.FORWARD: frozenset({Stage.REPORTED, Stage.LOST}),
    Stage.REPORTED: frozenset({Stage.PREPARED, Stage.AHEAD, Stage.LOST}),
    Stage.AHEAD: frozenset({Stage.PREPARED, Stage.APPLIED, Stage.LOST}),
    Stage.PREPARED: frozenset({Stage.APPLIED}),
    Stage.APPLIED: frozenset(),
    Stage.LOST: frozenset(),
}


class InvalidTransitionError(RuntimeError):
    """A transition that the attempt's stage does not allow: a bug of this package, never the script's."""


@dataclass
class StepState:
    """One attempt at `step`.

    Changed by the script's thread, and while the step is AHEAD, or its report held back, by messages too.
    """

    step: int = 0
    stage: Stage = Stage.READY
    #: The step has been begun before.
    is_replay: bool = False
    #: The step was reported at the first gradient of the last backward, which is still running.
    in_backward: bool = False
    #: The report is held back, because the step before this one is AHEAD.
    is_held: bool = False
    #: The report has told the master that the step may become AHEAD.
    may_go_ahead: bool = False
    #: The body of the turn in which the step was applied has ended.
    body_ended: bool = False
    #: Contexts after the step by virtual rank, and what was done for it; complete once it is reported.
    contexts: dict[int, EstContext] = field(default_factory=dict)
    tasks: list[ring_pb2.StepTask] = field(default_factory=list)

    @property
    def in_flight(self) -> bool:
        """True if the attempt has begun and is neither applied nor lost."""
        return bool(TRANSITIONS[self.stage]) and self.stage is not Stage.READY

    @property
    def is_reported(self) -> bool:
        """True once the report has been made, unless the step has been lost."""
        return self.is_held or self.stage in (Stage.REPORTED, Stage.PREPARED, Stage.AHEAD, Stage.APPLIED)

    @property
    def may_step(self) -> bool:
        """True once the optimizer may step."""
        return self.stage in (Stage.PREPARED, Stage.AHEAD, Stage.APPLIED)

    @property
    def delays_ready(self) -> bool:
        """True while a ring change must wait: the weights change, or a reported step's backward runs.

        Without the latter the master could not tell a script that hangs in backward from those that wait for
        it in the all-reduce.
        """
        return self.stage is Stage.PREPARED or self.in_backward

    def begin(self) -> None:
        """Begin the first mini-batch."""
        self._go_to(Stage.FORWARD)

    def report(self, *, in_backward: bool, goes_ahead: bool = False) -> None:
        """Note that the report is sent. in_backward: a ring change waits for `end_backward`. goes_ahead: the
        report says that the step may be applied ahead.
        """
        self._go_to(Stage.REPORTED)
        self.in_backward, self.is_held, self.may_go_ahead = in_backward, False, goes_ahead

    def hold(self, *, in_backward: bool) -> None:
        """Note that the report is made, and is sent once the step before this one is decided."""
        self.in_backward, self.is_held = in_backward, True

    def end_backward(self) -> bool:
        """End the last backward, or give it up; True if a ring change may have waited for it."""
        waited, self.in_backward = self.in_backward, False
        return waited

    def prepare(self) -> None:
        """Claim the right to apply the step, whose contexts are durable."""
        self._go_to(Stage.PREPARED)

    def go_ahead(self) -> None:
        """Begin to apply the step before it is known whether its contexts are durable."""
        self._go_to(Stage.AHEAD)

    def apply(self) -> None:
        """Note that the step is in the weights."""
        self._go_to(Stage.APPLIED)

    def lose(self) -> None:
        """Give the attempt up."""
        self._go_to(Stage.LOST)
        self.is_held = False

    def next(self, step: int, *, is_replay: bool) -> StepState:
        """Return the attempt that follows this one. Raises InvalidTransitionError while this one runs."""
        is_ahead = self.stage is Stage.AHEAD and self.body_ended
        if self.in_flight and not is_ahead:
            raise InvalidTransitionError(f"step {step} cannot begin: {self._facts()}")
        return StepState(step, is_replay=is_replay)

    def _go_to(self, stage: Stage) -> None:
        if stage not in TRANSITIONS[self.stage]:
            raise InvalidTransitionError(f"a step cannot become {stage.value}: {self._facts()}")
        self.stage = stage

    def _facts(self) -> str:
        return (
            f"step {self.step} is {self.stage.value} (is_replay={self.is_replay}, "
            f"in_backward={self.in_backward}, ESTs that are done: {sorted(self.contexts)})"
        )
