"""The model's buffers at the start of a step: EST 0's, from which every EST's forward starts.

DDP broadcasts rank 0's buffers before each forward. Here EST 0's host sends them with the step's all-reduce,
and every worker puts them into the module before each of its ESTs' turns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elastane.runtime.est_step import EstStep
from elastane.runtime.interval import BuffersChangedError
from elastane.state.digests import same_bits
from elastane_common.errors import StepError


class Rank0Buffers:
    """Buffers of one worker's model. Used by the script's thread."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        #: The module's own tensors, written to in place.
        self.tensors = list(model.buffers())
        self._at_start: list[Tensor] = []
        #: The module holds the buffers of the step's start, and no code of the script has run since.
        self._is_fresh = False
        self.take()

    def at_start(self) -> list[Tensor]:
        """Return EST 0's buffers at the start of the current step."""
        return self._at_start

    def take(self) -> None:
        """Copy the module's buffers as EST 0's at the start of a step: as built, or as received."""
        self._at_start = [buffer.detach().clone() for buffer in self.tensors]

    def begin_loop(self) -> None:
        """Note that code of the script has run outside the loader loop."""
        self._is_fresh = False

    def begin_backward(self) -> None:
        """Put the buffers of the step's start into the module, for an EST's turn."""
        if not self._is_fresh:
            self.restore()
        self._is_fresh = False

    def restore(self) -> None:
        """Put the buffers of the step's start into the module."""
        self.show(self._at_start)

    def show(self, values: list[Tensor]) -> None:
        """Put these values into the module."""
        if values:
            with torch.no_grad():
                torch._foreach_copy_(self.tensors, values)

    def end_step(self, values: list[Tensor]) -> None:
        """Adopt EST 0's buffers after an applied step. values: those that the reducer has received."""
        if self.tensors:
            self._at_start = values
            self.restore()
            self._is_fresh = True

    def take_back(self, values: list[Tensor]) -> None:
        """Return to the buffers before an applied step that is lost. values: those; kept by this object."""
        if self.tensors:
            self._at_start = values
            self.restore()

    def versions(self) -> list[int]:
        """Return the version counters of the module's buffers."""
        return [buffer._version for buffer in self.tensors]

    def check_est_step(self, est_step: EstStep) -> None:
        """Raise StepError if the body replaced a buffer, or wrote to one after its snapshot."""
        if est_step.step == 0:
            for (name, buffer), known in zip(self._model.named_buffers(), self.tensors, strict=True):
                if buffer is not known:
                    raise StepError(
                        f"buffer {name} was replaced by another tensor in step {est_step.step}",
                        hint="write to the buffer in place, as with self.count.add_(1)",
                    )
        for buffer, version in zip(self.tensors, est_step.buffer_versions, strict=False):
            if buffer._version != version:
                name = next(name for name, one in self._model.named_buffers() if one is buffer)
                raise StepError(
                    f"buffer {name} was written to after backward() in step {est_step.step}",
                    hint="write to it before backward(); evaluate after model.eval()",
                    virtual_rank=est_step.rank,
                )

    def check_between_epochs(self, step: int) -> None:
        """Raise BuffersChangedError if the module's buffers are not those that `step` starts from."""
        for (name, _), buffer, kept in zip(
            self._model.named_buffers(), self.tensors, self._at_start, strict=False
        ):
            if not same_bits(buffer, kept):
                raise BuffersChangedError(
                    f"buffer {name} was written to between two epochs, before step {step}",
                    hint="call model.eval() before evaluating, and model.train() before the loop",
                    buffer=name,
                )
