"""A GPU of its own for each worker of a machine: NCCL refuses two workers on one.

CUDA shows a process the devices that CUDA_VISIBLE_DEVICES names, numbered from 0, so every worker trains on
its "cuda:0". Where there are fewer GPUs than workers, some share; with one GPU or none nothing is set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
SLOT: Final = "ELASTANE_HOST_SLOT"
"""Number of a worker's slot on a remote host, for the agent there."""
_DEVICES: Final = Path("/dev")


def gpu_variables(
    environment: Mapping[str, str], taken: Collection[str] = (), devices: Path = _DEVICES
) -> dict[str, str]:
    """Return the variable that gives a worker the GPU that the fewest others have, or nothing.

    environment: of the worker without it; the GPUs that it names are those to choose from. taken: the GPU of
    each worker that runs here, by `environment`'s names. devices: where the kernel lists them.
    """
    gpus = visible_gpus(environment, devices)
    if len(gpus) < 2:
        return {}
    used = Counter(taken)
    return {VISIBLE: min(gpus, key=lambda gpu: (used[gpu], gpus.index(gpu)))}


def gpu_variables_of_slot(environment: Mapping[str, str], devices: Path = _DEVICES) -> dict[str, str]:
    """Return the same for a worker whose agent knows its slot and not its neighbours: see `SLOT`."""
    gpus, slot = visible_gpus(environment, devices), environment.get(SLOT, "")
    return {VISIBLE: gpus[int(slot) % len(gpus)]} if len(gpus) > 1 and slot.isdigit() else {}


def visible_gpus(environment: Mapping[str, str], devices: Path = _DEVICES) -> list[str]:
    """Return the names of the GPUs that a process with this environment may use."""
    named = environment.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    count = sum(1 for path in devices.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit())
    return [str(number) for number in range(count)]
