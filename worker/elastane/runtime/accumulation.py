"""Gradient accumulation: a global step of several mini-batches of each rank, in stock DDP or one process.

The rule is that of DDP's no_sync(): in all mini-batches of a step but the last, gradients only add up in
p.grad. Optimizers, schedulers, `zero_grad` and clipping do nothing in between, so that a loop body can stay
as it is. The elastic trainer follows the same rule (`zeroing_counts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


def zeroing_counts(*, first: bool, sync: bool, backward_done: bool) -> bool:
    """Return True if `zero_grad()` in this mini-batch may zero: before the step's first backward or after its
    last.

    first, sync: whether the mini-batch is the first or the last of its step. Scripts zero at the top or at
    the end of the loop body.
    """
    return sync if backward_done else first


class LocalCalls:
    """`StepCalls` of a process that is a single rank (stock DDP) or the whole job (plain).

    model: as prepared, wrapped or not; hooks on its parameters show whether backward has run. steps:
    mini-batches per step; batches: mini-batches per epoch, None if unknown.
    """

    def __init__(self, model: torch.nn.Module, steps: int, batches: int | None) -> None:
        self._steps = steps
        self._batches = batches
        self._in_loop = False
        self._first = self._backward_done = False
        #: True if the mini-batch is the last of its step.
        self.sync = True
        #: True if the optimizer has stepped in this mini-batch.
        self.stepped = False
        trained = [param for param in model.parameters() if param.requires_grad]
        # `job.log` asks too: the last parameter, whose gradient is the first to be there, is enough for that.
        for param in trained if steps > 1 else trained[-1:]:
            param.register_post_accumulate_grad_hook(self._backward_seen)

    def mini_batches(self, batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Yield an epoch's mini-batches, each with its index in the step."""
        micro = 0
        try:
            for index, batch in enumerate(batches):
                self._in_loop, self._first, self._backward_done = True, micro == 0, False
                self.sync = micro == self._steps - 1 or index + 1 == self._batches
                self.stepped = False
                yield micro, batch
                micro = 0 if self.sync else micro + 1
        finally:
            self._in_loop = self.stepped = False

    @property
    def backward_done(self) -> bool:
        """True once the gradients of the step's last mini-batch are there: in a ring the step is reported."""
        return self._in_loop and self.sync and self._backward_done

    def adding(self) -> bool:
        return self._in_loop and not self.sync

    def optimizer_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._in_loop and not self.sync:
            return None
        self.stepped = self._in_loop
        return original(*args, **kwargs)

    def once(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if self.sync or not self._in_loop else None

    unscale = optimizer_step
    scheduler_step = once

    def zero_grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        counts = zeroing_counts(first=self._first, sync=self.sync, backward_done=self._backward_done)
        return original(*args, **kwargs) if counts or not self._in_loop else None

    def _backward_seen(self, param: torch.Tensor) -> None:
        self._backward_done = True
