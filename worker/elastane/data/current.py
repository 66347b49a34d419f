"""For which EST data is being made now, in this process.

In a data worker no turn of the training loop runs, yet a dataset may ask for `job.rank` to choose its
share. The data worker sets `rank` before each batch; the trainer does around the batches it makes itself.
`ElasticJob.rank` reads it when no turn runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

#: Virtual rank of the EST whose batch is being made; None when none is.
rank: int | None = None


@contextlib.contextmanager
def making_for(virtual_rank: int) -> Iterator[None]:
    """Inside, data is being made for EST `virtual_rank`."""
    global rank
    before, rank = rank, virtual_rank
    try:
        yield
    finally:
        rank = before
