"""The steps of an epoch and of the training: which one follows, and when they are over.

    next_step ─▶ settle: checkpoint, ring change, interval ─▶ the step's body ─▶ end_attempt ─┐
        ▲                                                                                     │
        └───────────────────────────── applied, or lost ◀─────────────────────────────────────┘

Decides, and knows no thread, socket or tensor; its coroutines suspend only where those of `StepBoundary` do.
"""

from __future__ import annotations

from collections.abc import Callable

from elastane.runtime.protocol import WorkerProtocol
from elastane.runtime.step_boundary import StepBoundary


class EpochLoop:
    """The place of one worker in its training.

    set_between: reports whether the script's code between epochs runs. total_steps: of the training.
    """

    def __init__(
        self,
        protocol: WorkerProtocol,
        boundary: StepBoundary,
        steps_per_epoch: int,
        set_between: Callable[[bool], object],
        total_steps: int = 0,
    ) -> None:
        self._protocol = protocol
        self._boundary = boundary
        self._steps_per_epoch = steps_per_epoch
        self._set_between = set_between
        self.total_steps = total_steps

    @property
    def epoch(self) -> int:
        """The epoch of the next step."""
        return self._protocol.applied_step // self._steps_per_epoch

    @property
    def is_through(self) -> bool:
        """True if all steps of the training are applied."""
        return self._protocol.applied_step >= self.total_steps

    def is_in(self, epoch: int) -> bool:
        """True if the next step belongs to `epoch`."""
        return self.epoch == epoch and not self.is_through

    def begins_epoch(self, step: int) -> bool:
        """True if the script's code between epochs runs before `step`."""
        return step % self._steps_per_epoch == 0 and step < self.total_steps

    async def next_step(self, epoch: int) -> bool:
        """Return True when a step of `epoch` may be run; False if the epoch is over, here or by a rewind.

        Raises IntervalError.
        """
        if not self.is_in(epoch):
            return False
        await self._boundary.settle()
        self._set_between(False)
        return self.is_in(epoch)

    def end_attempt(self) -> None:
        """Note that an attempt at a step is over, applied or lost."""
        if self._protocol.attempts.newest.may_step:
            # From here on a leader that finds no checkpoint cannot fall back to the initial state.
            self._boundary.pristine = False

    def interval_after(self, epoch: int) -> int:
        """Return the step before which the code after the loop over `epoch` runs.

        -1 if the loop has not run to the epoch's end: after a rewind nothing is known about that code.
        """
        step = self._protocol.applied_step
        return step if step == (epoch + 1) * self._steps_per_epoch else -1

    async def finish(self) -> bool:
        """End after all epochs; first take part in a pending ring change, so that nobody waits.

        Returns False if the training is not through: that change took the job back to an earlier step.
        """
        if self._protocol.changing:
            await self._boundary.settle(in_loop=False)
        return self.is_through
