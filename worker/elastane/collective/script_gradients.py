"""What every EST finds in p.grad when its turn begins, as a rank would in its own process.

At the start of a step that is the last step's average for every rank, or None where the script has set it
to None. Which parameters have a gradient then is part of the job's state: it decides whether backward
adds to a tensor or makes one, and so the sign of a zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn import Parameter

from elastane.collective.slots import Slots


class ScriptGradients:
    """p.grad of `params` between the turns of a step and between two steps. Used by the reducer."""

    def __init__(self, params: Sequence[Parameter]) -> None:
        self._params = list(params)
        #: Parameters that have a p.grad at the start of the step; `_restored`: they must be given one.
        self._defined: set[int] = set()
        self._restored = False
        self._in_step = False
        #: Versions of the sums at the start of the step.
        self._start_versions: list[int] = []

    def state_dict(self) -> dict[str, list[int]]:
        """Which parameters have a gradient between two steps; within one, when it began."""
        if self._restored or self._in_step:
            return {"defined": sorted(self._defined)}
        return {"defined": [index for index, param in enumerate(self._params) if param.grad is not None]}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        """The state received was of a step that began with gradients of these parameters, and no other."""
        self._defined, self._restored = set(state["defined"]), True

    def lose_step(self) -> None:
        """The step in flight is thrown away: the next begins with the gradients that it began with."""
        self._restored, self._in_step = True, False

    def end_step(self) -> None:
        """The step is applied."""
        self._in_step = False

    def release(self) -> None:
        """Before memory is exchanged: gradients that will be given anew must not hold the old."""
        if self._restored:
            for param in self._params:
                param.grad = None

    def begin_step(self, slots: Slots) -> None:
        """The first EST's turn begins."""
        if self._restored:
            for index in self._defined:
                self._params[index].grad = slots.averages[index].zero_()
            slots.versions = []  # zeroed here
            self._restored = False
        else:
            self._defined = {index for index, param in enumerate(self._params) if param.grad is not None}
        self._start_versions = slots.sum_versions
        self._in_step = True

    def begin_est(self, slots: Slots) -> None:
        """Another EST's turn begins: what the one before left is not what this one would find.

        Where the script adds in place, the memory is the average's, and its zeros are the script's business;
        where the EST before set it to None after that, this one finds zeros.
        """
        written = slots.sum_versions != self._start_versions
        for index, (param, average) in enumerate(zip(self._params, slots.averages, strict=True)):
            if index not in self._defined:
                param.grad = None
            elif param.grad is not average:
                param.grad = average.zero_() if written else average
                if written:
                    slots.versions = []  # zeroed here
