"""Virtual rank of the EST for which data is being made in this process.

In a data worker no turn of the training loop is running, yet a dataset may read `job.rank` to choose its
share. The data worker sets `rank` before each batch; the trainer does so around batches it makes itself.
`ElasticJob.rank` reads it if no turn is running.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

#: Virtual rank of the EST whose batch is being made, or None.
rank: int | None = None


@contextlib.contextmanager
def making_for(virtual_rank: int) -> Iterator[None]:
    """Set `rank` to `virtual_rank` within the block."""
    global rank
    before, rank = rank, virtual_rank
    try:
        yield
    finally:
        rank = before
