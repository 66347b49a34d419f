"""Captures each parameter's gradient during a micro-batch's backward, into the EST's gradient vectors.

As in DDP: with one wave, grad * (1/N) is written to the vector. With several, autograd accumulates an EST's
gradients in the order of its waves (in the vector itself, which is set as p.grad); the last wave scales them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import Parameter

from elastane.pipeline.gradient_memory import GradientMemory
from elastane_common.errors import StepError, UnsupportedError

#: Gradients smaller than this are scaled together at the end of a backward.
GATHERED_ELEMENTS_MAX: Final = 1 << 15


class GradientCapture:
    """Hooks on a stage's trainable parameters. params: by index. names: of all of the model's."""

    def __init__(self, params: Mapping[int, Parameter], names: Sequence[str], num_ests: int) -> None:
        self._params = dict(params)
        self._names = names
        self._factor = 1.0 / num_ests
        self._memory: GradientMemory | None = None
        self._has: list[set[int]] = []
        #: Parameters whose gradients may be scaled together with others.
        self._small: frozenset[int] = frozenset()
        self._slot: int | None = None
        self._last = False
        self._arrived: dict[int, None] = {}
        self._waiting: list[tuple[int, Tensor]] = []
        self._hooks = [
            param.register_post_accumulate_grad_hook(partial(self._take, index))
            for index, param in self._params.items()
        ]

    def begin_step(self, memory: GradientMemory) -> None:
        """Begin a step: no EST has gradients yet."""
        if memory is not self._memory:
            self._memory = memory
            self._small = frozenset(
                index
                for index, view in (memory.views[0] if memory.views else {}).items()
                if view.numel() < GATHERED_ELEMENTS_MAX and view.dtype in (torch.float32, torch.float64)
            )
        self._has = [set() for _ in memory.views]
        self.clear()

    def begin_backward(self, est: int, *, last: bool) -> None:
        """Begin the backward of one of the EST's micro-batches. last: True for its last one in the step."""
        assert self._memory is not None
        self._slot, self._last = self._memory.slot_of[est], last
        self._arrived.clear()
        self._waiting.clear()
        has, views = self._has[self._slot], self._memory.views[self._slot]
        for index, param in self._params.items():
            param.grad = views[index] if index in has else None

    def end_backward(self) -> list[int]:
        """End the backward; return the parameters in the order in which their gradients became ready.

        Raises StepError if a parameter has no gradient after the EST's last micro-batch.
        """
        assert self._memory is not None and self._slot is not None
        views, has = self._memory.views[self._slot], self._has[self._slot]
        if self._waiting:
            with torch.no_grad():
                targets = [views[index] for index, _ in self._waiting]
                torch._foreach_copy_(targets, [gradient for _, gradient in self._waiting])
                torch._foreach_mul_(targets, self._factor)
        has.update(self._arrived)
        order = list(self._arrived)
        late = [self._names[index] for index in self._params if index not in self._arrived]
        missing = late if self._last else []
        self._slot = None
        self.clear()
        if missing:
            raise StepError(
                f"backward() gave no gradient to {', '.join(missing[:5])}"
                + (f" and {len(missing) - 5} more parameters" if len(missing) > 5 else ""),
                hint="every parameter that requires a gradient must take part in every micro-batch's loss",
                parameters=missing,
            )
        return order

    def clear(self) -> None:
        """Remove the parameters' gradients, and end a backward that raised."""
        self._slot = None
        self._waiting.clear()
        for param in self._params.values():
            param.grad = None

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _take(self, index: int, param: Tensor) -> None:
        """Hook: take the gradient of parameter `index`, complete for this backward."""
        memory, slot = self._memory, self._slot
        if memory is None or slot is None:
            return  # outside a step gradients belong to the script
        gradient = param.grad
        assert gradient is not None
        if gradient.layout is not torch.strided:
            raise UnsupportedError(
                f"parameter {self._names[index]} has a sparse gradient",
                hint="use dense gradients (sparse=False)",
                parameter=self._names[index],
            )
        if index in self._arrived:
            raise StepError(
                f"parameter {self._names[index]} got a second gradient in one backward",
                hint="use checkpointing with use_reentrant=False",
                parameter=self._names[index],
            )
        self._arrived[index] = None
        view = memory.views[slot][index]
        if gradient.requires_grad:
            gradient = gradient.detach()
        in_place = gradient is view or (
            index in self._has[slot] and gradient.data_ptr() == view.data_ptr() and view.numel() > 0
        )
        if not self._last:
            if not in_place:
                view.copy_(gradient)
        elif not in_place and self._gathers(index):
            self._waiting.append((index, gradient))
        elif in_place and view.dtype in (torch.float32, torch.float64):
            view.mul_(self._factor)
        elif in_place:
            # In 16-bit types, scaling in place would change the bits of NaNs.
            view.copy_(torch.mul(view, self._factor))
        else:
            torch.mul(gradient, self._factor, out=view)
        param.grad = None

    def _gathers(self, index: int) -> bool:
        if index not in self._small:
            return False
        hooks = self._params[index]._post_accumulate_grad_hooks
        return hooks is None or len(hooks) == 1  # a later hook of the script may write to the gradient
