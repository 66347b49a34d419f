"""Checks that torch sees the GPUs that the machine has: collected as facts, judged in pure code."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from elastane.diagnose.findings import Finding, Severity

_CODE = "ELA531"


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about GPUs.

    present: GPUs known to the kernel. seen: those torch sees. build: CUDA or ROCm version of torch's build,
    empty if none. visible: CUDA_VISIBLE_DEVICES, None if unset. error: torch's message.
    """

    present: int = 0
    seen: int = 0
    build: str = ""
    visible: str | None = None
    error: str = ""


def gpu_facts() -> GpuFacts:
    """Collect the facts as a process started here would find them. Requires torch; imports it."""
    import torch

    present = sum(1 for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit())
    available = torch.cuda.is_available()
    error = ""
    if present and not available:
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as raised:
            error = str(raised).splitlines()[0]
    return GpuFacts(
        present=present,
        seen=torch.cuda.device_count() if available else 0,
        build=torch.version.cuda or torch.version.hip or "",
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        error=error,
    )


def judge_gpus(facts: GpuFacts) -> list[Finding]:
    """Return findings about GPUs that torch does not see although they exist, or were intended."""
    hidden = "" if facts.visible is None else f"CUDA_VISIBLE_DEVICES is {facts.visible!r}"
    if facts.seen >= facts.present and not (facts.visible and facts.visible != "-1" and not facts.seen):
        return []
    what = f"the machine has {facts.present} GPUs, torch sees {facts.seen}"
    if not facts.present:
        what = f"{hidden}, and there is no GPU here"
        todo = "start the container with its GPUs (docker run --gpus all), or unset the variable"
    elif not facts.build:
        what += ": it is a build without CUDA"
        todo = "install a CUDA build of torch, unless you mean to train on the CPU"
    elif facts.visible is not None:
        what += f": {hidden}"
        todo = "fine if that is intended; otherwise unset it"
    else:
        what += f": {facts.error}" if facts.error else ""
        todo = "compare the driver (nvidia-smi) with the CUDA that torch was built for; look at the rights"
    severity = Severity.NOTE if facts.seen or facts.visible is not None else Severity.COSTS
    return [
        Finding(severity=severity, kind="machine", code=_CODE, what=what, where="GPUs", todo=todo),
    ]
