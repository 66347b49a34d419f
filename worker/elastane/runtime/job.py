"""The job object of a training script: what `elastane.init` returns, in one of three modes."""

from __future__ import annotations

import abc
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from elastane.errors import ElastaneError, UnsupportedError
from elastane.logs import configure_logs
from elastane.rng import Generators, seed_all
from elastane.runtime.environment import WorkerEnvironment, read_environment


class Prepared:
    """The objects given to `prepare`, told apart by what they are."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self.models = [o for o in objects if isinstance(o, torch.nn.Module)]
        self.optimizers = [o for o in objects if isinstance(o, torch.optim.Optimizer)]
        self.loaders = [o for o in objects if isinstance(o, DataLoader)]
        known = {id(o) for o in [*self.models, *self.optimizers, *self.loaders]}
        self.schedulers = [o for o in objects if id(o) not in known]
        for scheduler in self.schedulers:
            if not all(hasattr(scheduler, name) for name in ("step", "state_dict", "load_state_dict")):
                raise UnsupportedError(
                    f"prepare got a {type(scheduler).__name__}, "
                    "which is no model, optimizer, DataLoader or scheduler",
                    hint="prepare takes the model, the optimizer, the training DataLoader and schedulers",
                )
        if len(self.models) != 1 or len(self.loaders) != 1 or not self.optimizers:
            raise UnsupportedError(
                f"prepare got {len(self.models)} models, {len(self.optimizers)} optimizers and "
                f"{len(self.loaders)} DataLoaders",
                hint="prepare takes one model, one training DataLoader and optimizers, in one call",
            )


class Job(abc.ABC):
    """A training run as the script sees it.

    Attributes: num_ests (N), rank (virtual rank of the EST now running), is_leader (True in the one
    worker that hosts EST 0: evaluate, print and save there).
    """

    num_ests: int
    rank: int
    is_leader: bool

    def __init__(self, environment: WorkerEnvironment, seed: int | None) -> None:
        self._environment = environment
        self._seed = seed if seed is not None else environment.seed
        torch.set_num_threads(environment.torch_threads)
        if self._seed is not None:
            # All processes build the same model; EST r gets seed + r at prepare.
            seed_all(self._seed)

    @abc.abstractmethod
    def prepare(self, *objects: Any) -> Any:
        """Make model, optimizer(s), training loader and scheduler(s) part of the job; call it once.

        Takes them in any order and returns them in the same order. The objects passed in stay
        usable: the script's own model and optimizer hold the result.
        Raises UnsupportedError for what would not keep the bits.
        """

    @abc.abstractmethod
    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are still to be trained, out of `count`; a worker may join at any of them."""

    @abc.abstractmethod
    def log(self, **values: Any) -> None:
        """Store values of the current mini-batch (numbers or 0-dim tensors) with the committed step.

        Call it inside the loader loop and before `loss.backward()`. Replays count once.
        """

    @abc.abstractmethod
    def tasks(self, dataset: str, *, size: int, task_size: int, **settings: Any) -> Iterator[Any]:
        """Lease the tasks of a dynamic dataset, each worker at its own pace.

        Yields tasks with `.indices` (a range of positions), `.index` and `.attempt`; asking for the
        next one reports the last as done. A task whose worker dies is leased to another.
        settings: epochs, lease_seconds, max_attempts.
        """

    @contextlib.contextmanager
    def isolated_rng(self) -> Iterator[None]:
        """Random numbers drawn inside leave no trace: for evaluation in the middle of an epoch."""
        generators = Generators(torch.device("cuda") if torch.cuda.is_available() else None)
        before = generators.capture()
        try:
            yield
        finally:
            generators.restore(before)


def open_job(seed: int | None) -> Job:
    """The job of the environment's mode (see `elastane.init`)."""
    try:
        environment = read_environment()
        configure_logs(environment.log_level)
        mode = environment.resolved_mode()
        if mode == "elastic":
            from elastane.runtime.elastic import ElasticJob

            return ElasticJob(environment, seed)
        from elastane.runtime.stock import DdpJob, PlainJob

        return DdpJob(environment, seed) if mode == "ddp" else PlainJob(environment, seed)
    except ElastaneError as error:
        if error.exit_code == 1:
            raise
        sys.stderr.write(f"elastane: {error}\n")
        raise SystemExit(error.exit_code) from error
