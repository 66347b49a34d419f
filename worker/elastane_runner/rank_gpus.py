"""Assignment of a machine's GPUs to ranks: in proportion to their slots, free ones first.

A script of stock DDP or Horovod takes the GPU that LOCAL_RANK numbers. So those ranks see the GPUs of all
ranks of their launch here, each one's first GPU at its local rank; others see their own alone. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from elastane_common.gpus import least_used


def gpus_for(gpus: Sequence[str], taken: Iterable[str], *, slots: int, slots_of_rank: int) -> list[str]:
    """Return the GPUs of a new rank.

    gpus: of the runner. taken: of the ranks that it has. slots: of the runner. slots_of_rank: of which this
    rank takes several. With more slots than GPUs some ranks share one.
    """
    count = max(1, len(gpus) * slots_of_rank // max(1, slots))
    return least_used(gpus, list(taken), count)


def seen_by(rank: int, gpus: Mapping[int, Sequence[str]], *, numbers_by_local_rank: bool) -> list[str]:
    """Return the GPUs that a rank sees, in this order. gpus: of each rank that is launched with it."""
    if not numbers_by_local_rank:
        return list(gpus[rank])
    rounds = zip_longest(*(gpus[number] for number in sorted(gpus)))
    return list(dict.fromkeys(gpu for one in rounds for gpu in one if gpu is not None))
