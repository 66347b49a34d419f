"""CPU time, memory and GPU use of this worker's process, read at each heartbeat."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import torch

from elastane_common.observe.figures import WorkerFigures

_STATM: Final = Path("/proc/self/statm")


class ResourceUse:
    """Keeps the resources in `WorkerFigures` up to date. Used by one thread at a time.

    device: of the model. What cannot be read stays 0.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._reads_use = device.type == "cuda"

    def measure(self, figures: WorkerFigures) -> None:
        """Write the present values into `figures`."""
        figures.cpu_seconds = time.process_time()
        figures.resident_bytes = _resident_bytes()
        if self._device.type == "cuda":
            figures.gpu_bytes = torch.cuda.memory_reserved(self._device)
            figures.gpu_use = self._gpu_use()

    def _gpu_use(self) -> float:
        """Return the share of time in which the GPU ran kernels lately, of any process; 0: not known."""
        if not self._reads_use:
            return 0.0
        try:
            import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]

            return float(torch.cuda.utilization(self._device)) / 100
        except (ImportError, OSError, RuntimeError):
            pass
        except pynvml.NVMLError:  # not supported, as on a part of a GPU
            pass
        self._reads_use = False
        return 0.0


def _resident_bytes() -> int:
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
