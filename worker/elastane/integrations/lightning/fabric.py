"""Lightning's Fabric in a job: `from elastane.integrations.lightning import Fabric`.

    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=4)
    fabric.launch()
    model, optimizer = fabric.setup(model, optimizer)
    loader, test_loader = fabric.setup_dataloaders(loader, test_loader)
    for epoch in fabric.epochs(10):              # was: for epoch in range(10)
        for batch in loader: ...                 # as it was

In a worker, `Fabric` is a subclass of Lightning's class that behaves as one of N processes of
`strategy="ddp"`. When the loop over epochs begins, what was set up is passed to `job.prepare`. The loader
that is set up first is the training loader, and its loop body runs once for every EST. Every other loader
yields the batches of all ranks in every worker, one rank after the other. Outside of a worker (torchrun,
`fabric run`, plain Python) the class is Lightning's own, with `epochs` as `range`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import lightning.fabric as lightning_fabric
import torch
from lightning.fabric.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.fabric.utilities.seed import reset_seed
from lightning.fabric.wrappers import _FabricDataLoader
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

import elastane
from elastane.integrations.lightning.callbacks import WholeFiles
from elastane.integrations.lightning.evaluation import with_sampler
from elastane.integrations.lightning.ranks import Ranks
from elastane.integrations.lightning.refusals import PRECISIONS, LightningError, check_loader
from elastane.rng import Generators
from elastane.runtime.environment import read_environment
from elastane.runtime.job import Job

#: Names of strategies that mean DistributedDataParallel, with the options they give it.
_STRATEGIES: Final[dict[str, dict[str, Any]]] = {
    "auto": {},
    "ddp": {},
    "ddp_find_unused_parameters_false": {},
    "ddp_find_unused_parameters_true": {"find_unused_parameters": True},
}
_ALREADY: Final = (
    "leave the call out: a loop over another loader of setup_dataloaders runs the batches of all ranks, so"
    " what it collects is of all of them; job.log has the means of training"
)


def _refused(what: str, hint: str) -> LightningError:
    return LightningError(f"Fabric: {what}", hint=hint)


class _Wrapped(nn.Module):
    """Stands for DistributedDataParallel: Fabric calls it for `forward` and for marked forward methods."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class _RankStrategy(SingleDeviceStrategy):
    """Answers Fabric's questions for the rank that is running."""

    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self._ranks = ranks
        super().__init__(device, checkpoint_io=WholeFiles())
        self.models: list[_Wrapped] = []
        self.optimizers: list[Any] = []
        self.schedulers: list[Any] = []

    @property
    def global_rank(self) -> int:
        return self._ranks.rank

    @global_rank.setter
    def global_rank(self, rank: int) -> None:
        """Lightning's class sets it once, to 0."""

    local_rank = global_rank

    @property
    def world_size(self) -> int:
        return self._ranks.count

    @world_size.setter
    def world_size(self, size: int) -> None:
        """Lightning's class sets it once, to 1."""

    @property
    def is_global_zero(self) -> bool:
        return self._ranks.rank == 0

    def setup_environment(self) -> None:
        super().setup_environment()
        reset_seed()  # as DDPStrategy does

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Any], scheduler: Any = None
    ) -> tuple[nn.Module, list[Any], Any]:
        if scheduler is not None:
            self.schedulers.append(scheduler)
        return super().setup_module_and_optimizers(module, optimizers, scheduler)

    def setup_module(self, module: nn.Module) -> nn.Module:
        self.models.append(_Wrapped(module))
        return self.models[-1]

    def setup_optimizer(self, optimizer: Any) -> Any:
        self.optimizers.append(optimizer)
        return optimizer

    def get_module_state_dict(self, module: nn.Module) -> dict[str, Any]:
        return super().get_module_state_dict(_inside(module))

    def load_module_state_dict(
        self, module: nn.Module, state_dict: dict[str, Any], strict: bool = True
    ) -> None:
        super().load_module_state_dict(_inside(module), state_dict, strict)

    def all_reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        raise _refused("all_reduce, where the ranks run one after the other", _ALREADY)

    def all_gather(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        raise _refused("all_gather, where the ranks run one after the other", _ALREADY)

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        if self._ranks.job._place() is not None:
            raise _refused(
                "save in the loop over the training loader, where not all workers have done the step",
                "save between epochs; to continue an interrupted job: elastane run --checkpoint",
            )
        super().save_checkpoint(*args, **kwargs)


class _RankLoader(_FabricDataLoader):
    """A loader that is set up: in training the ESTs' mini-batches, elsewhere the batches of all ranks."""

    def __init__(self, loader: DataLoader[Any], fabric: ElasticFabric, device: torch.device | None) -> None:
        super().__init__(loader, device)
        self._fabric = fabric

    def __iter__(self) -> Iterator[Any]:
        fabric, trains = self._fabric, self is self._fabric._training_loader
        ranks = fabric._ranks
        if trains and fabric._turns is None:
            raise _refused(
                "the loop over the training loader, the first of setup_dataloaders, before fabric.epochs",
                "for epoch in fabric.epochs(n):",
            )
        if not trains and ranks.job._place() is not None:
            raise _refused(
                "a loop over another loader inside of that over the training loader",
                "evaluate at the end of the epoch",
            )
        try:
            for batch in self._turns() if trains else self._all_ranks():
                yield batch if self._device is None else move_data_to_device(batch, self._device)
        finally:
            ranks.enter()

    def _turns(self) -> Iterator[Any]:
        assert self._fabric._turns is not None
        for batch in self._fabric._turns:
            self._fabric._ranks.begin_turn()
            yield batch

    def _all_ranks(self) -> Iterator[Any]:
        # Each rank draws a seed when its iterator begins; the generators advance as for one rank.
        generators = Generators(self._fabric.device)
        before = generators.capture()
        for rank in range(self._fabric.world_size):
            if rank:
                generators.restore(before)
            self._dataloader.sampler.rank = rank
            batches, drawn = iter(self._dataloader), generators.capture()
            yield from batches
            if generators.capture() != drawn:
                raise _refused(
                    "random numbers are drawn in the loop over another loader, and each rank has its own",
                    "draw under `with fabric.job.isolated_rng():`",
                )


class ElasticFabric(lightning_fabric.Fabric):
    """Fabric for use in a worker; methods that are not overridden behave as in Lightning.

    strategy: "auto", "ddp", or a DDPStrategy, of which the options of DistributedDataParallel are taken.
    devices, num_nodes: not looked at; `elastane run --ests N` sets the number of ranks. Raises LightningError
    for arguments and calls that cannot work with several ranks in one process, by name.
    """

    def __init__(
        self,
        *,
        accelerator: Any = "auto",
        strategy: Any = "auto",
        devices: Any = "auto",
        num_nodes: int = 1,
        precision: Any = None,
        plugins: Any = None,
        callbacks: Any = None,
        loggers: Any = None,
    ) -> None:
        self._job = elastane.init()
        self._options = _ddp_options(strategy)
        if plugins:
            raise _refused("plugins", "leave it out; precision= takes " + ", ".join(PRECISIONS))
        if precision is not None and precision not in (*PRECISIONS, 32, 64, "32", "64", "bf16"):
            raise _refused(f"precision={precision!r}", f"use {', '.join(PRECISIONS)}")
        if self._job.num_ests == 1:
            raise _refused(
                "the job has one EST, and of one process Fabric shuffles otherwise",
                "elastane run --ests 2, or more",
            )
        self._ranks = Ranks(self._job)
        self._training_loader: _RankLoader | None = None
        self._turns: Iterable[Any] | None = None
        device = torch.device("cpu")
        if accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available()):
            device = torch.device("cuda", torch.cuda.current_device())
        self._of_ranks = _RankStrategy(device, self._ranks)
        super().__init__(
            accelerator=accelerator,
            strategy=self._of_ranks,
            devices=1,
            precision=precision,
            callbacks=callbacks,
            loggers=loggers,
        )

    @property
    def job(self) -> Job:
        """The Elastane job, for `fabric.job.carry` and `fabric.job.log`."""
        return self._job

    def setup_dataloaders(
        self, *dataloaders: Any, use_distributed_sampler: bool = True, move_to_device: bool = True
    ) -> Any:
        """Set up the training loader, the first, and others. Raises LightningError for what has no ranks."""
        self._validate_setup_dataloaders(dataloaders)
        if not use_distributed_sampler:
            raise _refused("use_distributed_sampler=False", "leave it out")
        loaders = []
        for given in dataloaders:
            trains = self._training_loader is None
            loader = check_loader("setup_dataloaders", given)
            if not trains and isinstance(loader.sampler, RandomSampler):
                raise _refused("a second loader with shuffle=True", "shuffle the training loader alone")
            wrapped = _RankLoader(
                with_sampler(loader, self.world_size), self, self.device if move_to_device else None
            )
            if trains:
                self._training_loader = wrapped
            loaders.append(wrapped)
        return loaders[0] if len(loaders) == 1 else loaders

    def epochs(self, count: int, *, max_steps: int | None = None) -> Iterator[int]:
        """Yield the epochs still to be trained, out of `count`, like `job.epochs`.

        max_steps: limit of optimizer steps; the loader loop of the last epoch ends with that step. Raises
        LightningError without one model, an optimizer and a loader that are set up.
        """
        found, training = self._of_ranks, self._training_loader
        if training is None or len(found.models) != 1 or not found.optimizers:
            raise _refused(
                f"epochs with {len(found.models)} models, {len(found.optimizers)} optimizers and"
                f" {0 if training is None else 1} training loaders set up",
                "call fabric.setup with one model and its optimizers, and fabric.setup_dataloaders, before",
            )
        if self._turns is not None:
            raise _refused("a second loop over fabric.epochs", "train all epochs in one loop")
        *_, self._turns = self._job.prepare(
            found.models[0], *found.optimizers, *found.schedulers, training._dataloader, **self._options
        )
        return self._each_epoch(count, max_steps)

    def _each_epoch(self, count: int, max_steps: int | None) -> Iterator[int]:
        for epoch in self._job.epochs(count, max_steps=max_steps):
            self._ranks.enter()
            yield epoch

    def no_backward_sync(self, module: Any, enabled: bool = True) -> AbstractContextManager[None]:
        if enabled:
            raise _refused(
                "no_backward_sync: how many mini-batches make a step is told before training",
                "for gradient accumulation write the loop with job.prepare(..., accumulation_steps=k), or use"
                " a LightningModule with Trainer(accumulate_grad_batches=k)",
            )
        return nullcontext()


def _inside(module: nn.Module) -> nn.Module:
    """Return the script's own module, whose names Fabric's files have under DDP."""
    return module.module if isinstance(module, _Wrapped) else module


def _ddp_options(strategy: Any) -> dict[str, Any]:
    """Return the options for DistributedDataParallel. Raises LightningError for other strategies."""
    if isinstance(strategy, str) and strategy in _STRATEGIES:
        return _STRATEGIES[strategy]
    if type(strategy) is DDPStrategy:
        return dict(strategy._ddp_kwargs)
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    raise _refused(
        f"strategy={name!r}, which does not train as DistributedDataParallel does",
        'use strategy="ddp": `elastane run` gives the ranks',
    )


class _StockFabric(lightning_fabric.Fabric):
    """Lightning's own class with `epochs`, used outside of a worker."""

    def epochs(self, count: int, *, max_steps: int | None = None) -> Iterator[int]:
        """Yield all epochs, as `range` does. Raises LightningError for max_steps, which needs a job."""
        if max_steps is not None:
            raise _refused(
                "epochs(max_steps=) outside of a job, where nothing ends the loop over the loader",
                "leave it out there, or count the steps in the loop",
            )
        return iter(range(count))


in_ring: Final = read_environment().resolved_mode() == "elastic"
if TYPE_CHECKING:
    Fabric = ElasticFabric
else:
    Fabric = ElasticFabric if in_ring else _StockFabric

__all__ = ["Fabric"]
