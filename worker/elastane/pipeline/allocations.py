"""How much memory of a device an operation takes at most, and what it leaves.

A GPU's allocator counts by itself. On the CPU torch's profiler is told of everything that its allocator hands
out and takes back, also of what kernels of oneDNN take for copies of their operands.
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
    """A context in which the memory that this thread takes on a device is counted, beside what it had before.

    The results are known after the context.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._profile: profile | None = None
        self._before = 0
        #: The most bytes at a time.
        self.bytes_most = 0
        #: Bytes at the last call of `mark`.
        self.bytes_marked = 0

    def mark(self) -> None:
        """Remember how much is taken now."""
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
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise it prints when it begins and ends
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
