"""Refuses values that a pipeline's script carries from step to step outside of the job's state.

The same rules as in other jobs apply. Although the loop body runs only once per step, a joining worker starts
with initial values, a lost step runs the body again, and units and loss run once for each EST, on any worker.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from elastane.runtime.est_step import EstStep
from elastane.runtime.est_step_watch import CLOSE_STEPS
from elastane.runtime.loop_carried import AttributeWatch, check_loop
from elastane.runtime.pipelines.partial_state import PartialCopyWatch
from elastane.runtime.prepared_objects import PreparedObjects


class PipelineWatch:
    """Checks of one worker, called by the script's thread.

    registered: objects that each EST has separately. loss_fn: the script's.
    """

    def __init__(self, prepared: PreparedObjects, registered: Iterable[object], loss_fn: Any) -> None:
        self._prepared, self._registered = prepared, tuple(registered)
        self._attributes = AttributeWatch(prepared, loss_fn)
        self._copies = PartialCopyWatch(prepared, self._registered)
        #: Number of further steps in which copies of the weights are looked for.
        self._close = 0

    def begin_loop(self, frame: types.FrameType | None) -> None:
        """Check a loop over the loader when it begins.

        Raises CarriedValueError for values that, by the source, are carried into the result.
        """
        check_loop(frame, self._prepared, self._registered, pipeline=True)
        self._close = CLOSE_STEPS

    def begin_step(self) -> None:
        """Begin a step, or begin it again."""
        if self._close:
            self._copies.begin()

    def end_step(self, est_step: EstStep) -> None:
        """Check a finished step.

        Raises CarriedValueError if an attribute of a held unit, the loss or the optimizer keeps changing and
        affects the result; CopyNotPreparedError for a copy of the weights.
        """
        self._attributes.end_est_step(est_step)
        if self._close:
            self._close -= 1
            self._copies.end_est_step(est_step)

    def replaced(self) -> None:
        """Do nothing: weights are not watched here."""

    def look_closely(self) -> None:
        """Do nothing: changes of the ring do not matter here."""

    def used(self, *_: Any) -> None:
        """Do nothing: an optimizer steps once a step, in every worker."""

    def after_step(self) -> None:
        """Do nothing: the checks follow in `end_step`."""
