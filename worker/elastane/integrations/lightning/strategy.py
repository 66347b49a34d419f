"""Lightning's Strategy for a worker that runs several ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.connectors.data_connector import _request_dataloader
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import Metric

import elastane
from elastane.integrations.lightning.callbacks import CallbackStates, WholeFiles, same_in_every_worker
from elastane.integrations.lightning.evaluation import with_sampler
from elastane.integrations.lightning.fit_loop import take_over
from elastane.integrations.lightning.metrics import monitored, names_of, step_values, unequal
from elastane.integrations.lightning.ranks import Ranks
from elastane.integrations.lightning.refusals import (
    check_loader,
    check_optimizer,
    check_trainer,
    refused,
)
from elastane.runtime.job import Job


class _Wrapped(nn.Module):
    """Wraps the module for `job.prepare`: as under DDP, its forward calls training_step."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class ElastaneStrategy(Strategy):
    """Train a LightningModule in a job, with the bits of `strategy="ddp"` over gloo.

        trainer = Trainer(max_epochs=10, strategy=ElastaneStrategy())
        trainer.fit(LitClassifier(), loader, val_loader)

    `elastane run --ests N` sets the number of ranks, in place of `devices=`. Without a master the script
    trains in one process. A job may contain one fit; `test` and `validate` after it process the whole dataset
    in each worker.

    Attributes: job (see `elastane.init`).

    Args:
        job: the job, if the script has called `elastane.init` itself.
        options: find_unused_parameters, static_graph, gradient_as_bucket_view, bucket_cap_mb, as of
            `job.prepare`.
    Raises:
        LightningError: from `fit`, for what would change the bits, by name.
    """

    def __init__(self, job: Job | None = None, **options: Any) -> None:
        super().__init__(checkpoint_io=WholeFiles())
        self.job = elastane.init() if job is None else job
        self._options = options
        self.ranks = Ranks(self.job)
        self._wrapped: _Wrapped | None = None
        self._training_metrics: list[tuple[str, Metric]] = []

    # ------------------------------------------------------------------ ranks

    @property
    def root_device(self) -> torch.device:
        on_gpu = self.accelerator is not None and "CUDA" in type(self.accelerator).__name__
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    @property
    def world_size(self) -> int:
        return self.job.num_ests

    @property
    def is_distributed(self) -> bool:
        """True, because otherwise Lightning ignores `sync_dist`."""
        return self.world_size > 1

    @property
    def global_rank(self) -> int:
        return self.ranks.rank

    @property
    def is_global_zero(self) -> bool:
        return self.ranks.rank == 0

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module

    @property
    def _trainer(self) -> Trainer:
        return self._module.trainer

    # ------------------------------------------------------------------ set up

    def setup_environment(self) -> None:
        super().setup_environment()
        reset_seed()  # as DDPStrategy does
        same_in_every_worker(self._trainer, self.job._environment.job)

    def setup(self, trainer: Trainer) -> None:
        fits, module = trainer.state.fn == TrainerFn.FITTING, self._module
        if fits:
            if self._wrapped is not None:
                raise refused(
                    "a second fit", "train all epochs in one fit; a second phase is a job of its own"
                )
            if self.job._environment.resolved_mode() == "ddp":
                raise refused("ELASTANE_MODE=ddp", 'the stock run is the script with strategy="ddp"')
            check_trainer(trainer, module)
            loop = take_over(trainer, self.ranks)
            loader = check_loader("train_dataloader", _request_dataloader(loop._data_source))
            loader = with_sampler(loader, self.world_size, shuffle=True)
            loop.take_data(loader, len(loader))  # configure_optimizers may ask for the number of steps
            trainer._accelerator_connector.use_distributed_sampler = (
                False  # `with_sampler` has already done this
            )
        super().setup(trainer)
        if fits:
            check_optimizer(trainer.optimizers[0])
            self._prepare(trainer, module, loader)

    def _prepare(self, trainer: Trainer, module: LightningModule, loader: DataLoader[Any]) -> None:
        self.ranks.states = CallbackStates(trainer)
        self._training_metrics = [(n, m) for n, m in module.named_modules() if isinstance(m, Metric)]
        self._wrapped = _Wrapped(module)
        optimizer = trainer.optimizers[0]
        optimizer.register_step_pre_hook(self._before_step)
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self.job.register("lightning.log", self.ranks.sums)
        steps = {"accumulation_steps": trainer.accumulate_grad_batches}
        given = (self._wrapped, optimizer, loader, self.ranks.states, *schedulers)
        self.ranks.loader = self.job.prepare(*given, **steps, **self._options)[2]

    # ------------------------------------------------------------------ a step

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        assert self._wrapped is not None
        with self.precision_plugin.train_step_context():
            return self._forward_redirection(self._wrapped, self._module, "training_step", *args, **kwargs)

    def pre_backward(self, closure_loss: Tensor) -> None:
        """Move the values that training_step logged into the rank's context and the job's history."""
        trainer = self._trainer
        results = trainer.fit_loop.epoch_loop._results
        if self.world_size > 1:
            self._check_logged(trainer, results)
        self.ranks.sums.take(results, trainer.current_epoch)
        self.job.log(**{"loss": closure_loss, **step_values(results.values())})

    def _check_logged(self, trainer: Trainer, results: Any) -> None:
        decides = monitored(trainer)
        for metric in results.values():
            if names_of(metric) & decides:
                raise unequal(metric.meta.name)
            if metric.meta.sync.should:
                raise _no_sum(metric.meta.name)
        for name, part in self._training_metrics:
            if part._update_count:
                raise refused(
                    f"the torchmetric {name} is updated in training_step: its state is no rank's own",
                    "log a number; torchmetrics in validation are reduced over the ranks",
                )

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        # Not optimizer.step(closure): a step takes effect once the gradients of all ranks are there.
        result = closure()
        optimizer.step(**kwargs)
        return result

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Clip the averaged gradients, after the hooks on_before_optimizer_step."""
        self.ranks.enter()
        self.precision_plugin._after_closure(self._module, optimizer)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint file in the leader. Raises LightningError if the buffers are not rank 0's."""
        if (
            self.world_size > 1
            and self.job._place() is not None
            and any(True for _ in self._module.buffers())
        ):
            raise refused(
                "a checkpoint in the middle of an epoch of a module with buffers: a worker has those of its"
                " last rank",
                "save at the end of epochs: ModelCheckpoint(every_n_epochs=...)",
            )
        super().save_checkpoint(checkpoint, filepath, storage_options)

    # ------------------------------------------------------------------ between ranks

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if self.world_size > 1 and (self.ranks.validates or self.job._place() is not None):
            raise _no_sum("a value")
        return tensor

    def barrier(self, name: str | None = None) -> None:
        """Do nothing: workers synchronise at every step."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return obj

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        if self.world_size > 1:
            raise refused("all_gather", "log values with self.log, or use a torchmetric in validation")
        return tensor

    def model_to_device(self) -> None:
        assert self.model is not None
        self.model.to(self.root_device)


def _no_sum(name: str) -> Exception:
    return refused(
        f"self.log({name!r}, ..., sync_dist=True) in training: inside a step there is no value of all ranks",
        "leave sync_dist out: rank 0's value is logged, and the job's trackers (job.log_to, ELASTANE_LOG_TO)"
        " write the mean over all ranks",
    )
