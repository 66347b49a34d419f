"""Forward pre-hook of the model: refuses a second forward in a step that would not start from DDP's buffers.

DDP broadcasts rank 0's buffers before each forward that follows one whose gradients are to be reduced (with
autograd on, outside no_sync). So a rank's second forward of a step starts from the buffers that rank 0's
first forward left. EST 0 may be in another worker, which may have done its first forward earlier, or not yet:
its buffers of that moment are not available. Where no forward writes to a buffer, any number of forwards is
exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from elastane.runtime.est_step import EstStep
from elastane_common.errors import UnsupportedError


class SecondForwardError(UnsupportedError):
    """A mini-batch goes through the model twice, and each forward changes the model's buffers."""

    code = "ELA351"


class ForwardWatch:
    """The hook. Copies and pickles of the model have an inert one.

    buffers: the module's. running: returns the turn until its backward() is done; a forward after that may be
    an evaluation.
    """

    def __init__(
        self, buffers: Sequence[Tensor] = (), running: Callable[[], EstStep | None] = lambda: None
    ) -> None:
        self._buffers = list(buffers)
        self._running = running
        self._versions: list[int] = []
        #: DDP would broadcast buffers before the next forward.
        self._broadcast = False

    def begin(self) -> None:
        """Begin an EST's turn, which starts from rank 0's buffers."""
        self._versions = self._now()
        self._broadcast = False

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        est_step = self._running()
        # recomputation of activations in backward
        if est_step is None or torch._C._current_graph_task_id() != -1:
            return
        if self._broadcast and self._now() != self._versions:
            name = self._changed(module)
            raise SecondForwardError(
                f"step {est_step.step} has a second forward after the first has changed buffer {name}: under "
                "DDP the second would start from the buffers that rank 0's first forward left",
                hint=(
                    "do one forward over everything, torch.cat([a, b]); or avoid buffer updates in "
                    "training: GroupNorm, track_running_stats=False, eval() on that part"
                ),
                buffer=name,
                virtual_rank=est_step.rank,
            )
        self._broadcast = est_step.sync and torch.is_grad_enabled()

    def __deepcopy__(self, memo: dict[int, Any]) -> ForwardWatch:
        return ForwardWatch()

    def __reduce__(self) -> tuple[type[ForwardWatch], tuple[()]]:
        return ForwardWatch, ()

    def _now(self) -> list[int]:
        return [buffer._version for buffer in self._buffers]

    def _changed(self, module: torch.nn.Module) -> str:
        versions = {id(b): v for b, v in zip(self._buffers, self._versions, strict=True)}
        changed = (n for n, b in module.named_buffers() if versions.get(id(b), b._version) != b._version)
        return next(changed, "of a part of it")
