"""Buffers of a stage's units by EST: each starts a step from EST 0's, and EST 0's stay.

That is what DDP's broadcast before each forward does. An EST computes with tensors of its own in the
modules' places: backward passes of other ESTs are still to come, and may need what the modules held then.
Between steps the modules have their own tensors again, with EST 0's values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from elastane_common.errors import StepError


class EstBuffers:
    """Buffers of some units. units: modules by unit index. Used by the script's thread.

    Values are lists in the order of the modules' buffers, each tensor once.
    """

    def __init__(self, units: Mapping[int, nn.Module]) -> None:
        #: Of each buffer: the module's own tensor, and all places in which it stands.
        self._own: list[Tensor] = []
        self._places: list[list[tuple[dict[str, Tensor | None], str]]] = []
        self.names: list[str] = []
        seen: dict[int, int] = {}
        for unit, root in units.items():
            for path, module in root.named_modules():
                for name, buffer in module._buffers.items():
                    if buffer is None:
                        continue
                    index = seen.setdefault(id(buffer), len(self._own))
                    if index == len(self._own):
                        self._own.append(buffer)
                        self._places.append([])
                        self.names.append(f"{unit}.{path}.{name}" if path else f"{unit}.{name}")
                    self._places[index].append((module._buffers, name))
        #: EST 0's at the start of the step.
        self.at_start: list[Tensor] = self._copies(self._own)
        self._of_est: dict[int, list[Tensor]] = {}
        self._shown = False

    @property
    def any(self) -> bool:
        """True if there are buffers."""
        return bool(self._own)

    @property
    def addresses(self) -> frozenset[int]:
        """Addresses of the storages of the buffers that are in the modules now."""
        return frozenset(tensor.untyped_storage().data_ptr() for tensor in self._present())

    def begin_step(self) -> None:
        """Forget what ESTs had in the step before."""
        self._of_est.clear()

    def start_of(self, est: int) -> list[Tensor]:
        """Return what the EST's next forward starts from; not to be written to."""
        return self._of_est.get(est, self.at_start)

    def of(self, est: int) -> list[Tensor]:
        """Return the EST's after its last forward."""
        return self._of_est[est] if self._own else []

    def receive(self, values: list[Tensor]) -> None:
        """Take EST 0's after its last forward, from the member that ran it."""
        self._of_est[0] = values

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Forwards in this context change copies of the buffers, which are forgotten."""
        if not self._own:
            yield
            return
        self._show(self._copies(self._own))
        try:
            yield
        finally:
            self.restore()

    @contextmanager
    def running(self, est: int) -> Iterator[None]:
        """The EST's forward runs in this context: it changes its own buffers."""
        if not self._own:
            self._of_est[est] = []
            yield
            return
        self._show(self._copies(self.start_of(est)))
        yield
        present = self._present()
        for name, own, tensor in zip(self.names, self._own, present, strict=True):
            if tensor.shape != own.shape or tensor.dtype != own.dtype:
                raise StepError(
                    f"buffer {name} was replaced by a tensor of another shape or type",
                    hint="write to the buffer in place, as with self.count.add_(1)",
                    virtual_rank=est,
                )
        self._of_est[est] = present

    @contextmanager
    def again(self, start: list[Tensor]) -> Iterator[None]:
        """A forward runs again in this context, from the buffers it started from; what it does to them is
        forgotten."""
        if not self._own:
            yield
            return
        self._show(self._copies(start))
        yield

    def restore(self) -> None:
        """Put the modules' own tensors back, as they were at the start of the step."""
        if self._shown:
            self._show(self._own)
            self._shown = False

    def adopt(self, values: list[Tensor]) -> None:
        """Take these as EST 0's, for the modules and the next step."""
        self.restore()
        if self._own:
            with torch.no_grad():
                torch._foreach_copy_(self._own, values)
            self.at_start = self._copies(self._own)

    def _show(self, tensors: list[Tensor]) -> None:
        self._shown = True
        for tensor, places in zip(tensors, self._places, strict=True):
            for buffers, name in places:
                buffers[name] = tensor

    def _present(self) -> list[Tensor]:
        present = []
        for index, places in enumerate(self._places):
            buffers, name = places[0]
            tensor = buffers[name]
            if tensor is None:
                raise StepError(f"buffer {self.names[index]} was removed", hint="write to it in place")
            present.append(tensor)
        return present

    def _copies(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensor.detach().clone(memory_format=torch.preserve_format) for tensor in tensors]
