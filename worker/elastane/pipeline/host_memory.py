"""Keeps a stage's activations in host memory until their backward (`swap`).

A separate thread copies the tensors that autograd saves while the script's thread computes; they are copied
back when backward needs them. Weights and buffers are not moved. Tensors that exceed the memory limit stay on
the device.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from elastane.pipeline.frames import copied

#: Tensors below this size in bytes stay on the device: copying costs more than the memory is worth.
SWAPPED_BYTES_MIN: Final = 1 << 10


class _Kept:
    """A saved tensor: being copied to the host, already there, or left on the device."""

    def __init__(self, tensor: Tensor, free: Callable[[], None]) -> None:
        self.tensor: Tensor | None = tensor
        self.device = tensor.device
        self.copy: Tensor | None = None
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.event: Any = None
        self._free = free

    def __del__(self) -> None:
        self._free()  # autograd keeps a reference until the tensor is no longer needed


class HostMemory:
    """Swaps one worker's saved tensors to host memory. bytes_max: limit of copies held; None: no limit."""

    def __init__(self, device: torch.device, bytes_max: int | None = None) -> None:
        self._device, self._bytes_max = device, bytes_max
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._queue: queue.SimpleQueue[_Kept | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        #: Bytes of copies held now, their peak, and bytes of tensors that did not fit.
        self.bytes_now = self.bytes_most = self.bytes_refused = 0
        self._thread = threading.Thread(target=self._run, name="elastane-swap", daemon=True)
        self._thread.start()

    @contextmanager
    def keeping(self, stays: Callable[[Tensor], bool]) -> Iterator[None]:
        """Context manager: swaps tensors that autograd saves, except where `stays` is True (weights)."""

        def pack(tensor: Tensor) -> _Kept | Tensor:
            nbytes = tensor.numel() * tensor.element_size()
            if nbytes < SWAPPED_BYTES_MIN or stays(tensor) or not self._reserve(nbytes):
                return tensor
            kept = _Kept(tensor.detach(), partial(self._release, nbytes))
            if self._stream is not None:
                kept.event = torch.cuda.current_stream(self._device).record_event()
            self._queue.put(kept)
            return kept

        def unpack(kept: _Kept | Tensor) -> Tensor:
            return kept if isinstance(kept, Tensor) else self._back(kept)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._queue.put(None)
        self._thread.join()

    def _reserve(self, nbytes: int) -> bool:
        with self._lock:
            if self._bytes_max is not None and self.bytes_now + nbytes > self._bytes_max:
                self.bytes_refused += nbytes
                return False
            self.bytes_now += nbytes
            self.bytes_most = max(self.bytes_most, self.bytes_now)
            return True

    def _release(self, nbytes: int) -> None:
        with self._lock:
            self.bytes_now -= nbytes

    def _back(self, kept: _Kept) -> Tensor:
        kept.done.wait()
        if kept.error is not None:
            raise kept.error
        copy = kept.copy
        assert copy is not None
        return copied(copy, kept.device) if kept.device.type != "cpu" else copy

    def _run(self) -> None:
        while (kept := self._queue.get()) is not None:
            try:
                self._copy(kept)
            except BaseException as error:  # noqa: BLE001 (raised where the tensor is needed)
                kept.error = error
            kept.tensor = None
            kept.done.set()
            del kept

    def _copy(self, kept: _Kept) -> None:
        assert kept.tensor is not None
        if self._stream is None:
            kept.copy = copied(kept.tensor)
        else:
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(kept.event)
                kept.copy = copied(kept.tensor, torch.device("cpu"))
            self._stream.synchronize()
