"""Which rank this process is now: what the Strategy and the loops of one fit share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only

from elastane.integrations.lightning.callbacks import CallbackStates
from elastane.integrations.lightning.metrics import TrainingSums
from elastane.runtime.job import Job, TurnPlace


class Ranks:
    """A worker's ranks.

    Attributes: job. rank: in a turn its virtual rank; elsewhere 0 in the worker that leads, else 1.
    validates: a rank's validation_step is running. sums: of the rank whose turn it is. loader: the prepared
    one. states: of callbacks; loader and states are there once the fit is set up.
    """

    loader: Iterable[Any]
    states: CallbackStates

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rank = 0
        self.validates = False
        self.sums = TrainingSums()
        #: The last turn of rank 0 whose rank-zero functions have run: step, mini-batch.
        self._shown = (-1, -1)
        self.enter()

    @property
    def count(self) -> int:
        return self.job.num_ests

    def enter(self) -> None:
        """Go on with code that is no rank's turn: rank-zero functions run in the worker that leads."""
        self.rank = rank_zero_only.rank = 0 if self.job._leads() else 1

    def begin_turn(self) -> TurnPlace:
        """Go on as the rank whose turn it is; a repeated turn prints and logs nothing."""
        place = self.job._place()
        assert place is not None
        self.rank = rank_zero_only.rank = place.rank
        if place.rank == 0:
            rank_zero_only.rank = int((place.step, place.micro) <= self._shown)
            self._shown = max(self._shown, (place.step, place.micro))
        return place
