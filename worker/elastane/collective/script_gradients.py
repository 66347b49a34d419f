"""Contents of p.grad at the beginning of every EST's turn, as a rank would find them in its own process.

At the start of a step that is the last step's average for every rank, or None if the script has set it to
None. Which parameters have a gradient then is part of the job's state: it decides whether backward adds to a
tensor or creates one, and so the sign of a zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn import Parameter

from elastane.collective.slots import Slots


class ScriptGradients:
    """p.grad of `params` between the turns of a step and between two steps. Used by the reducer."""

    def __init__(self, params: Sequence[Parameter]) -> None:
        self._params = list(params)
        #: Parameters that have a p.grad at the start of the step. `_restored`: it must be recreated for them.
        self._defined: set[int] = set()
        self._restored = False
        self._in_step = False
        #: Version counters of the sums at the start of the step.
        self._start_versions: list[int] = []

    def state_dict(self) -> dict[str, list[int]]:
        """Return the parameters with a gradient: between steps now, within a step at its beginning."""
        if self._restored or self._in_step:
            return {"defined": sorted(self._defined)}
        return {"defined": [index for index, param in enumerate(self._params) if param.grad is not None]}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        """Take over the parameters whose gradients were defined when the received state's step began."""
        self._defined, self._restored = set(state["defined"]), True

    def lose_step(self) -> None:
        """Note that the step in flight is discarded: the next one begins with the same gradients."""
        self._restored, self._in_step = True, False

    def end_step(self) -> None:
        """Note that the step is applied."""
        self._in_step = False

    def release(self) -> None:
        """Release gradients that will be recreated, so that their memory is free for reallocation."""
        if self._restored:
            for param in self._params:
                param.grad = None

    def begin_step(self, slots: Slots) -> None:
        """Prepare p.grad for the first EST's turn."""
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
        """Prepare p.grad for another EST's turn, undoing what the previous EST left.

        If the script adds in place, the memory is the average's, and zeroing it is up to the script; if the
        previous EST set p.grad to None after writing to it, this one gets zeros.
        """
        written = slots.sum_versions != self._start_versions
        for index, (param, average) in enumerate(zip(self._params, slots.averages, strict=True)):
            if index not in self._defined:
                param.grad = None
            elif param.grad is not average:
                param.grad = average.zero_() if written else average
                if written:
                    slots.versions = []  # zeroed here
