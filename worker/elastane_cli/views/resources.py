"""Resource use of a job's workers, as a table and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastane_cli.views.plain import to_plain
from elastane_common.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from elastane_proto.v1 import ring_pb2

    Resources = Mapping[str, Sequence[ring_pb2.ResourceSample]]


def resource_table(resources: Resources) -> Table:
    """Return a table with the newest sample of each worker."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for column in ("WORKER", "CPU", "MEMORY", "GPU", "GPU MEMORY", "STEPS/S", "DATA WAIT", "ALL-REDUCE WAIT"):
        table.add_column(column, no_wrap=True, justify="left" if column == "WORKER" else "right")
    for worker, samples in sorted(resources.items()):
        last = samples[-1]
        table.add_row(
            Text(worker),
            f"{last.cpu_cores:.1f}",
            size_text(last.resident_bytes),
            f"{last.gpu_use:.0%}" if last.gpu_bytes else "-",
            size_text(last.gpu_bytes) if last.gpu_bytes else "-",
            f"{last.steps_per_second:.2f}",
            f"{last.data_wait:.0%}",
            f"{last.all_reduce_wait:.0%}",
        )
    return table


def resources_to_plain(resources: Resources) -> dict[str, list[Any]]:
    """Return all samples by worker, oldest first."""
    return {worker: [to_plain(sample) for sample in samples] for worker, samples in sorted(resources.items())}
