"""Assigns each worker of a machine its own GPU, because NCCL refuses two workers on one.

CUDA shows a process the devices that CUDA_VISIBLE_DEVICES names, numbered from 0, so every worker trains on
its "cuda:0". With fewer GPUs than workers, some share one; with one GPU or none nothing is set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from elastane_common.gpus import DEVICES, VISIBLE, least_used, visible_gpus

SLOT: Final = "ELASTANE_HOST_SLOT"
"""Number of a worker's slot on a remote host, for the agent there."""


def gpu_variables(
    environment: Mapping[str, str], taken: Collection[str] = (), devices: Path = DEVICES
) -> dict[str, str]:
    """Return the variable that gives a worker the GPU with the fewest users, or nothing.

    environment: of the worker without it, which names the available GPUs. taken: GPU of each running worker,
    by `environment`'s names. devices: where the kernel lists them.
    """
    gpus = visible_gpus(environment, devices)
    if len(gpus) < 2:
        return {}
    return {VISIBLE: least_used(gpus, taken)[0]}


def gpu_variables_of_slot(environment: Mapping[str, str], devices: Path = DEVICES) -> dict[str, str]:
    """Return the same for a worker whose agent knows only its slot, not its neighbours: see `SLOT`."""
    gpus, slot = visible_gpus(environment, devices), environment.get(SLOT, "")
    return {VISIBLE: gpus[int(slot) % len(gpus)]} if len(gpus) > 1 and slot.isdigit() else {}
