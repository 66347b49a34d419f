"""GPUs of a machine, by their names in CUDA_VISIBLE_DEVICES.

CUDA shows a process the devices that this variable names, numbered from 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
DEVICES: Final = Path("/dev")


def visible_gpus(environment: Mapping[str, str], devices: Path = DEVICES) -> list[str]:
    """Return the names of the GPUs that a process with this environment may use.

    devices: where the kernel lists them.
    """
    named = environment.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    count = sum(1 for path in devices.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit())
    return [str(number) for number in range(count)]


def least_used(gpus: Sequence[str], taken: Collection[str], count: int = 1) -> list[str]:
    """Return the `count` GPUs with the fewest users, in the order of `gpus`.

    taken: GPUs already in use, once for each user.
    """
    used = Counter(taken)
    chosen = sorted(gpus, key=lambda gpu: (used[gpu], gpus.index(gpu)))[:count]
    return sorted(chosen, key=gpus.index)
