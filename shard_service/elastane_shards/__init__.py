"""Task queues: which task is next, who holds it, which are done. Pure, without I/O or a clock.

`DynamicQueue` and `LockstepQueue` are the two disciplines of the task queue; `samplers` computes which
samples an EST takes; `permutation` and `feistel` shuffle in O(1) memory. `feistel` needs numpy and must be
imported by its module name, because the master runs without numpy.
"""

from elastane_shards.dynamic import DynamicQueue
from elastane_shards.errors import (
    IllegalTransition,
    InvalidRequest,
    InvalidSettings,
    InvalidSnapshot,
    InvalidSource,
    InvariantViolated,
    NotHolder,
    ShardsError,
)
from elastane_shards.intervals import IntervalSet
from elastane_shards.lockstep import LockstepQueue
from elastane_shards.permutation import FeistelKey, feistel_key, permuted, unpermuted
from elastane_shards.progress import Progress
from elastane_shards.samplers import (
    batch_length,
    batch_places,
    distributed_order,
    rank_indices,
    samples_per_rank,
    steps_per_epoch,
    task_bounds,
)
from elastane_shards.settings import QueueSettings
from elastane_shards.splitters import Splitter
from elastane_shards.steps import LockstepSettings
from elastane_shards.tasks import (
    AttemptError,
    Outcome,
    QueueStatus,
    ReturnedTask,
    TaskInfo,
    TaskLease,
    TaskState,
)

__all__ = [
    "AttemptError",
    "DynamicQueue",
    "FeistelKey",
    "IllegalTransition",
    "IntervalSet",
    "InvalidRequest",
    "InvalidSettings",
    "InvalidSnapshot",
    "InvalidSource",
    "InvariantViolated",
    "LockstepQueue",
    "LockstepSettings",
    "NotHolder",
    "Outcome",
    "Progress",
    "QueueSettings",
    "QueueStatus",
    "ReturnedTask",
    "ShardsError",
    "Splitter",
    "TaskInfo",
    "TaskLease",
    "TaskState",
    "batch_length",
    "batch_places",
    "distributed_order",
    "feistel_key",
    "permuted",
    "rank_indices",
    "samples_per_rank",
    "steps_per_epoch",
    "task_bounds",
    "unpermuted",
]
