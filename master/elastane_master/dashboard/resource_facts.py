"""Resources of a job's workers as a page shows them: the last values, and small curves. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from elastane_master.jobs.resource_series import ResourceSample

SPARK_WIDTH: Final = 120
SPARK_HEIGHT: Final = 22
_MARGIN: Final = 2.0


@dataclass(frozen=True, slots=True)
class ResourceRow:
    """A worker's last sample, and curves over its samples as points in SVG's syntax."""

    worker: str
    last: ResourceSample
    cpu: str
    memory: str
    data_wait: str
    all_reduce_wait: str


def resource_rows(
    workers: Iterable[str], samples: Callable[[str], Sequence[ResourceSample]]
) -> tuple[ResourceRow, ...]:
    """Return a row for each worker with samples. Curves of one kind have one scale, so that rows compare."""
    known = {worker: found for worker in workers if (found := samples(worker))}
    every = [sample for found in known.values() for sample in found]
    cores = max((sample.cpu_cores for sample in every), default=0.0)
    memory = max((sample.resident_bytes for sample in every), default=0)
    return tuple(
        ResourceRow(
            worker,
            found[-1],
            _spark([sample.cpu_cores for sample in found], cores),
            _spark([sample.resident_bytes for sample in found], memory),
            _spark([sample.data_wait for sample in found], 1.0),
            _spark([sample.all_reduce_wait for sample in found], 1.0),
        )
        for worker, found in known.items()
    )


def _spark(values: Sequence[float], highest: float) -> str:
    if len(values) < 2:
        return ""
    width, height = SPARK_WIDTH - 2 * _MARGIN, SPARK_HEIGHT - 2 * _MARGIN
    scale = height / highest if highest > 0 else 0.0
    return " ".join(
        f"{_MARGIN + width * place / (len(values) - 1):.1f},{SPARK_HEIGHT - _MARGIN - value * scale:.1f}"
        for place, value in enumerate(values)
    )
