"""The current rank of this process, shared by the Strategy and the loops of one fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only

from elastane.integrations.lightning.callbacks import CallbackStates
from elastane.integrations.lightning.metrics import TrainingSums
from elastane.runtime.job import Job, TurnPlace


class Ranks:
    """State of one fit that depends on the rank.

    Attributes: job. rank: the virtual rank in a turn; elsewhere 0 in the leader and 1 in other workers.
    validates: True while a rank's validation_step runs. sums: those of the rank whose turn it is. loader: the
    prepared training loader. states: callback states; loader and states are set when the fit is set up.
    """

    loader: Iterable[Any]
    states: CallbackStates

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rank = 0
        self.validates = False
        self.sums = TrainingSums()
        #: (step, mini-batch) of the last turn in which rank 0's rank-zero functions ran.
        self._shown = (-1, -1)
        self.enter()

    @property
    def count(self) -> int:
        return self.job.num_ests

    def enter(self) -> None:
        """Enter code outside of any rank's turn: rank-zero functions run in the leader."""
        self.rank = rank_zero_only.rank = 0 if self.job._leads() else 1

    def begin_turn(self) -> TurnPlace:
        """Become the rank whose turn it is; a replayed turn prints and logs nothing."""
        place = self.job._place()
        assert place is not None
        self.rank = rank_zero_only.rank = place.rank
        if place.rank == 0:
            rank_zero_only.rank = int((place.step, place.micro) <= self._shown)
            self._shown = max(self._shown, (place.step, place.micro))
        return place
