"""Elastic PyTorch training whose result is bit for bit that of stock DistributedDataParallel.

    import elastane
    job = elastane.init()
    model, optimizer, loader, scheduler = job.prepare(model, optimizer, loader, scheduler)
    for epoch in job.epochs(10): ...

Importing this package imports neither torch nor grpc; `init` does what it needs.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from elastane_common.errors import (
    ElastaneError,
    MasterUnreachableError,
    RefusedError,
    StepError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from elastane.runtime.job import Job
    from elastane.runtime.slots.row_optimizer import RowOptimizer

# A loader that the script creates later, as for validation, forks its data workers while this process talks
# to the master. gRPC's fork handlers are not made for that: they can abort the child, or block in it for
# ever. A data worker does not use gRPC, and needs none of them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

if os.environ.get("ELASTANE_MODE") == "elastic" and "ELASTANE_WORKER_ID" in os.environ:
    # A worker: its script may read variables before it calls `init`.
    from elastane.runtime import launcher_variables

    launcher_variables.install()

__version__ = "0.1.0"


def init(seed: int | None = None, *, distributed_calls: bool = False) -> Job:
    """Join the job named by the environment; the first of the three lines of a script.

    Started by `elastane run`: elastic training. Under torchrun with ELASTANE_MODE=ddp: stock DDP. Otherwise:
    a plain single process.

    Args:
        seed: start EST r with Python, NumPy and torch seeded with seed + r. None: every EST starts from
            the RNG state of the script at `prepare`.
        distributed_calls: allow the script to query torch.distributed, and to read RANK and similar
            variables. In elastic training the answers are those of a single process without a process
            group; unless that is intended, such queries are refused.
    Raises:
        RefusedError: the environment is invalid; the text names every variable.
    """
    state = random.getstate()
    from elastane.modes import open_job

    random.setstate(state)  # libraries draw while they are imported; DDP would not have drawn
    return open_job(seed, distributed_calls=distributed_calls)


def __getattr__(name: str) -> object:
    """RowOptimizer is loaded when it is used: it needs torch."""
    if name == "RowOptimizer":
        from elastane.runtime.slots.row_optimizer import RowOptimizer

        return RowOptimizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def save_model(path: str | os.PathLike[str]) -> str:
    """Upload the trained model to the folder that the variable MODEL_URL names, and return its URL there.

    Call it in every process, between epochs or after the last. The leader uploads (the worker that hosts EST
    0; rank 0 of stock DDP, and of scripts that do not call `init`). Other workers of an elastic job that have
    the same files wait for it, and one of them uploads if it dies; without the files they return at once.
    Readers see the whole model or the one before; the same model saved again changes nothing. The training
    service sets MODEL_URL, to which any fsspec URL may be set; without it nothing happens.

    Args:
        path: a file, or a folder whose files are uploaded with the folders in it. Write it in every worker,
            in a folder of its own.
    Returns:
        The URL of the files; "" in a process that did not see them uploaded.
    Raises:
        ArtifactError: the file is missing, or the storage failed; the model that was there before stays.
        StepError: called before it is known who leads.
    """
    from elastane import model_saving

    return model_saving.save(path)


__all__ = [
    "ElastaneError",
    "MasterUnreachableError",
    "RefusedError",
    "RowOptimizer",
    "StepError",
    "UnsupportedError",
    "__version__",
    "init",
    "save_model",
]
