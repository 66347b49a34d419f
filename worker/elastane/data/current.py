"""Virtual rank of the EST for which data is being made in this process.

In a data worker no turn of the training loop is running, yet a dataset may read `job.rank` to choose its
share. The data worker sets `rank` before each batch; the trainer does so around batches it makes itself.
`ElasticJob.rank` reads it if no turn is running.
"""

from __future__ import annotations

#: Virtual rank of the EST whose batch is being made, or None.
rank: int | None = None


class making_for:  # noqa: N801 (used like a function)
    """Set `rank` to `virtual_rank` within the block; a class, because it is entered in every turn."""

    def __init__(self, virtual_rank: int) -> None:
        self._rank = virtual_rank

    def __enter__(self) -> None:
        global rank
        self._before, rank = rank, self._rank

    def __exit__(self, *_: object) -> None:
        global rank
        rank = self._before
