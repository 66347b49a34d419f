"""Measures an operation's peak of device memory, and what stays allocated afterwards.

On a GPU the allocator keeps these counts. On the CPU they come from torch's profiler, which sees every
allocation and release, including the copies of operands that oneDNN kernels make.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final, Self

import torch
from torch.autograd.profiler import profile, record_function

_MEMORY: Final = "[memory]"
_MARK: Final = "elastane.mark"


class Allocations:
    """Context manager that counts the device memory allocated by this thread within the block.

    The results are available after the block.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._profile: profile | None = None
        self._before = 0
        #: Peak of allocated bytes.
        self.bytes_most = 0
        #: Bytes allocated at the last call of `mark`.
        self.bytes_marked = 0

    def mark(self) -> None:
        """Record how much is allocated now."""
        if self._profile is None:
            self.bytes_marked = torch.cuda.memory_allocated(self._device) - self._before
        else:
            with record_function(_MARK):
                pass

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        else:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler prints progress
            self._profile = profile(use_kineto=False, profile_memory=True)
            self._profile.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._profile is None:
            self.bytes_most = torch.cuda.max_memory_allocated(self._device) - self._before
            return
        self._profile.__exit__(kind, error, trace)
        results = self._profile.kineto_results
        assert results is not None
        now = 0
        for event in sorted(results.events(), key=lambda event: event.start_ns()):
            if event.name() == _MEMORY:
                now += event.nbytes()  # type: ignore[attr-defined]
                self.bytes_most = max(self.bytes_most, now)
            elif event.name() == _MARK:
                self.bytes_marked = now
