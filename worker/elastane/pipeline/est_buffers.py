"""Buffers of a stage's units for each EST: every EST starts a step from EST 0's, and EST 0's are kept.

This is the effect of DDP's buffer broadcast before each forward. While an EST runs, tensors of its own take
the place of the modules' buffers, because backward passes of other ESTs that are still pending may need the
previous ones. Between steps the modules have their own tensors again, with EST 0's values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from elastane_common.errors import StepError


class EstBuffers:
    """Per-EST buffers of some units. units: modules by unit index. Used by the script's thread.

    Values are lists in the order of the modules' buffers; a shared tensor is listed once.
    """

    def __init__(self, units: Mapping[int, nn.Module]) -> None:
        #: For each buffer: the module's own tensor, and every (module, name) that refers to it.
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
        #: EST 0's buffers at the start of the step.
        self.at_start: list[Tensor] = self._copies(self._own)
        self._of_est: dict[int, list[Tensor]] = {}
        self._shown = False

    @property
    def any(self) -> bool:
        """True if there are buffers."""
        return bool(self._own)

    @property
    def addresses(self) -> frozenset[int]:
        """Addresses of the storages of the modules' current buffers."""
        return frozenset(tensor.untyped_storage().data_ptr() for tensor in self._present())

    def begin_step(self) -> None:
        """Discard the ESTs' buffers of the step before."""
        self._of_est.clear()

    def start_of(self, est: int) -> list[Tensor]:
        """Return the buffers from which the EST's next forward starts; the caller must not write to them."""
        return self._of_est.get(est, self.at_start)

    def of(self, est: int) -> list[Tensor]:
        """Return the EST's buffers after its last forward."""
        return self._of_est[est] if self._own else []

    def receive(self, values: list[Tensor]) -> None:
        """Store EST 0's buffers after its last forward, received from the member that ran it."""
        self._of_est[0] = values

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Context manager: forwards in the block change copies of the buffers, which are then discarded."""
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
        """Context manager for a forward of the EST, which changes the EST's own buffers."""
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
        """Context manager for a forward's second run, from its original buffers; discards changes."""
        if not self._own:
            yield
            return
        self._show(self._copies(start))
        yield

    def restore(self) -> None:
        """Restore the modules' own tensors, with their values at the start of the step."""
        if self._shown:
            self._show(self._own)
            self._shown = False

    def adopt(self, values: list[Tensor]) -> None:
        """Make these EST 0's buffers: the modules' values, and the start of the next step."""
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
