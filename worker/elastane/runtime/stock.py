"""The same script without a master: a plain single process, or stock DistributedDataParallel.

The DDP mode is the reference everything is compared with; it therefore uses torch's own classes
and adds nothing to a step.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from elastane.data import stock_loader
from elastane.errors import StepError, UnsupportedError
from elastane.rng import seed_all
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.job import Job, Prepared
from elastane.runtime.report import write_stock_report


@dataclasses.dataclass(frozen=True)
class LocalTask:
    """A task of a dynamic dataset in a process without a master."""

    index: int
    indices: range
    attempt: int = 1


class PlainJob(Job):
    """One process, N = 1: `prepare` gives everything back as it is."""

    def __init__(self, environment: WorkerEnvironment, seed: int | None) -> None:
        super().__init__(environment, seed)
        self.num_ests, self.rank, self.is_leader = 1, 0, True

    def prepare(self, *objects: Any) -> Any:
        Prepared(objects)
        if self._seed is not None:
            seed_all(self._seed)
        return objects[0] if len(objects) == 1 else objects

    def epochs(self, count: int) -> Iterator[int]:
        yield from range(count)

    def log(self, **values: Any) -> None:
        """Nobody stores values of a plain process."""

    def tasks(self, dataset: str, *, size: int, task_size: int, **settings: Any) -> Iterator[LocalTask]:
        if size < 1 or task_size < 1:
            raise UnsupportedError(
                f"dataset {dataset!r}: size {size}, task_size {task_size}: both at least 1"
            )
        for _ in range(int(settings.get("epochs", 1))):
            for index, start in enumerate(range(0, size, task_size)):
                yield LocalTask(index, range(start, min(start + task_size, size)))


class DdpJob(Job):
    """Stock DDP under torchrun: what the elastic result must equal."""

    def __init__(self, environment: WorkerEnvironment, seed: int | None) -> None:
        super().__init__(environment, seed)
        backend = "nccl" if torch.cuda.is_available() and torch.cuda.device_count() > 0 else "gloo"
        dist.init_process_group(backend)
        self.num_ests = dist.get_world_size()
        self.rank = dist.get_rank()
        self.is_leader = self.rank == 0
        self._prepared: Prepared | None = None
        self._sampler: DistributedSampler[Any] | None = None
        self._logged: list[dict[str, float]] = []
        self._pending: dict[str, Any] = {}

    def prepare(self, *objects: Any) -> Any:
        prepared = self._prepared = Prepared(objects)
        device_ids = [int(os.environ.get("LOCAL_RANK", "0"))] if dist.get_backend() == "nccl" else None
        model = DistributedDataParallel(prepared.models[0], device_ids=device_ids)
        loader = stock_loader(prepared.loaders[0], self.num_ests, self.rank)
        assert isinstance(loader.sampler, DistributedSampler)
        self._sampler = loader.sampler
        for optimizer in prepared.optimizers[:1]:
            optimizer.register_step_post_hook(self._stepped)
        if self._seed is not None:
            seed_all(self._seed + self.rank)
        replaced = {id(prepared.models[0]): model, id(prepared.loaders[0]): loader}
        result = tuple(replaced.get(id(o), o) for o in objects)
        return result[0] if len(result) == 1 else result

    def epochs(self, count: int) -> Iterator[int]:
        if self._prepared is None or self._sampler is None:
            raise StepError("job.epochs was called before job.prepare")
        for epoch in range(count):
            self._sampler.set_epoch(epoch)
            yield epoch
        if self._environment.report_dir:
            write_stock_report(
                self._environment.report_dir,
                self._prepared.models[0],
                self._prepared.optimizers,
                rank=self.rank,
                logged=self._logged,
            )
        dist.barrier()
        dist.destroy_process_group()

    def log(self, **values: Any) -> None:
        self._pending.update(values)

    def tasks(self, dataset: str, *, size: int, task_size: int, **settings: Any) -> Iterator[LocalTask]:
        raise UnsupportedError("dynamic datasets need a master", hint="start the script with `elastane run`")

    def _stepped(self, *_: Any) -> None:
        self._logged.append({name: _number(value) for name, value in self._pending.items()})
        self._pending = {}


def _number(value: Any) -> float:
    return float(value.item()) if isinstance(value, torch.Tensor) else float(value)
