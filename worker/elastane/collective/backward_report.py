"""Interface through which a reducer reports the last backward of a step."""

from __future__ import annotations

from typing import Protocol


class BackwardReport(Protocol):
    """Reports one step. Given to the reducer with the worker's last mini-batch of the step."""

    def first_gradient(self) -> bool:
        """Called at the first gradient of the backward.

        Returns True if the step has been reported, but may not be applied by any worker before
        `last_gradient` has confirmed it: the last bucket waits for that.
        """

    def last_gradient(self) -> str:
        """Called when all gradients are in, before the sums are awaited.

        Returns why no worker may apply the step; empty if the report stands.
        """
