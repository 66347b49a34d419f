"""Device type of a machine as workers name it: the model of its GPUs, else of its processor."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_QUERY: Final = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
_QUERY_SECONDS: Final = 10.0


def cpu_type(proc: Path = _PROC) -> str:
    """Return the model of this machine's processor, as the kernel names it. proc: the folder /proc."""
    return _value(proc / "cpuinfo", "model name") or f"{platform.machine()} CPU"


def gpu_type(proc: Path = _PROC) -> str:
    """Return the model of this machine's first GPU, as its driver and CUDA name it; empty if it has none."""
    for card in sorted((proc / "driver" / "nvidia" / "gpus").glob("*/information")):
        if name := _value(card, "Model"):
            return name
    return ""


def device_memory_bytes(*, gpu: bool) -> int:
    """Return the memory of the first GPU, or of this machine; 0 if that cannot be found out."""
    if not gpu:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=True)
        return int(done.stdout.split()[0]) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0


def _value(path: Path, name: str) -> str:
    """Return the value of the first line `name: value` of a file; empty if there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(values, "")
