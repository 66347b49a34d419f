"""Number of ESTs that this worker has memory for, used for ranges by speed.

Each EST that a worker hosts adds one copy of all gradients, which is kept until the step's sums are made.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Final

import torch
from torch.nn import Parameter

from elastane_common.observe.figures import WorkerFigures

SETTLING_STEPS: Final = 2
"""Steps of a new ring after which the copies for its ESTs are allocated."""
UPDATE_SECONDS: Final = 10.0
FRACTION: Final = 0.5
"""Part of the free memory that further ESTs may take: other processes of the machine count on it too."""
LARGEST: Final = 1_000_000
"""More are not told apart: no job has as many."""

_MEMORY_INFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


class EstMemory:
    """Keeps `figures.ests_max` up to date. Used by the script's thread.

    device: of the parameters.
    """

    def __init__(self, device: torch.device, params: Iterable[Parameter], figures: WorkerFigures) -> None:
        self._device, self._figures = device, figures
        self._est_bytes = sum(param.nbytes for param in params if param.requires_grad)
        self._steps_in_ring = self._generation = 0
        self._update_at = 0.0

    def applied(self, *, ests: int, generation: int) -> None:
        """Note that a step is applied. ests: hosted by this worker in the ring of `generation`."""
        if generation != self._generation:
            self._generation, self._steps_in_ring = generation, 0
        self._steps_in_ring += 1
        if self._steps_in_ring <= SETTLING_STEPS or (now := perf_counter()) < self._update_at:
            return
        self._update_at = now + UPDATE_SECONDS
        free_bytes = free_memory_bytes(self._device)
        if free_bytes is not None and self._est_bytes:
            self._figures.ests_max = min(LARGEST, ests + int(FRACTION * free_bytes / self._est_bytes))


def free_memory_bytes(device: torch.device) -> int | None:
    """Return how much memory can still be allocated on a device; None if the system does not say.

    On a CPU, the smaller of what the kernel can give and what is left of the limit of the control group (v2).
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    limits = [found for found in (_available_bytes(), left_in_cgroup_bytes()) if found is not None]
    return min(limits, default=None)


def is_out_of_memory(error: BaseException) -> bool:
    """True if an exception says that memory, of the host or of a device, was exhausted."""
    # PyTorch's allocator for CPUs raises a plain RuntimeError.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def _available_bytes() -> int | None:
    try:
        lines = _MEMORY_INFO.read_text().splitlines()
        found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        return None
    return found[0] * 1024 if found else None


def left_in_cgroup_bytes() -> int | None:
    """Return the memory left in this process's own control group; None without a limit."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = (_CGROUP / "memory.current").read_text().strip()
        kept = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        # Pages of files that were read count as used, and are given back when memory is short.
        return max(0, int(limit) - int(used) + int(kept.get("inactive_file", 0)))
    except (OSError, ValueError):  # a figure that cannot be read must not end the training
        return None
