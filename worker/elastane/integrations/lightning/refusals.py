"""Refuses, by name, features of Lightning that cannot have the bits of `strategy="ddp"` in a ring."""

from __future__ import annotations

import os
from typing import Any, Final

import torch
from lightning.pytorch import LightningModule, Trainer, callbacks
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import MetricCollection

from elastane_common.errors import UnsupportedError

PRECISIONS: Final = ("32-true", "64-true", "bf16-true", "bf16-mixed")
_EACH_WORKER: Final = "each worker would decide by its own clock"
_NOT_CARRIED: Final = "what it keeps is not part of the job's state"
#: Callbacks that cannot be exact, with the reason; applies to subclasses, too.
_CALLBACKS: Final[dict[Any, str]] = {
    callbacks.BatchSizeFinder: "it trains before the job has begun",
    callbacks.LearningRateFinder: "it trains before the job has begun",
    callbacks.Timer: _EACH_WORKER,
    callbacks.GradientAccumulationScheduler: "a step has the same number of mini-batches in all epochs",
    callbacks.StochasticWeightAveraging: _NOT_CARRIED,
    callbacks.WeightAveraging: _NOT_CARRIED,
    callbacks.ModelPruning: "it replaces parameters",
}


class LightningError(UnsupportedError):
    """A LightningModule or Trainer uses a feature that a ring cannot reproduce exactly."""

    code = "ELA369"


def refused(what: str, hint: str) -> LightningError:
    """Return the error. what: names the argument, hook or class, and says why."""
    return LightningError(f"strategy=ElastaneStrategy(): {what}", hint=hint)


def check_trainer(trainer: Trainer, module: LightningModule) -> None:
    """Check the Trainer's arguments and the module. Raises LightningError. Called before optimizers exist."""
    if not module.automatic_optimization:
        raise refused(
            "manual optimization (automatic_optimization = False)",
            "return the loss from training_step; for several backward() in a step use job.prepare",
        )
    if getattr(module, "_compiler_ctx", None) is not None:
        raise refused("a module from torch.compile", "compile the networks inside the LightningModule")
    connector = trainer._accelerator_connector
    for argument, given, fits, hint in (
        ("precision", trainer.precision, trainer.precision in PRECISIONS, f"use {', '.join(PRECISIONS)}"),
        ("overfit_batches", trainer.overfit_batches, not trainer.overfit_batches, "leave it out"),
        ("limit_train_batches", trainer.limit_train_batches, _is_whole(trainer.limit_train_batches),
         "give the loader a torch.utils.data.Subset, or the Trainer max_steps="),
        ("reload_dataloaders_every_n_epochs", trainer.reload_dataloaders_every_n_epochs,
         not trainer.reload_dataloaders_every_n_epochs, "leave it out"),
        ("val_check_interval", trainer.val_check_interval,
         _is_whole(trainer.val_check_interval) and not trainer._val_check_time_interval
         and trainer.check_val_every_n_epoch is not None,
         "validate at the end of epochs: check_val_every_n_epoch="),
        ("use_distributed_sampler", False, connector.use_distributed_sampler, "leave it out"),
        ("sync_batchnorm", True, connector._layer_sync is None, "leave it out: rank 0's statistics are kept"),
        ("max_epochs", trainer.max_epochs, trainer.max_epochs != -1 or trainer.max_steps != -1,
         "give max_epochs or max_steps: a job has an end"),
        ("ckpt_path", "...", not trainer._checkpoint_connector._loaded_checkpoint,
         "start a new job from the weights, module.load_state_dict(...); a job that was interrupted goes on"
         " from its own checkpoints: elastane run --checkpoint"),
    ):  # fmt: skip
        if not fits:
            raise refused(f"{argument}={given!r}", hint)
    for callback in trainer.callbacks:
        _check_callback(callback)
    if collections := [name for name, part in module.named_modules() if isinstance(part, MetricCollection)]:
        raise refused(
            f"{collections[0]} is a MetricCollection", "make each metric an attribute of the module"
        )


def _is_whole(share: float) -> bool:
    """True for the float 1.0, all batches; the integer 1 means one mini-batch."""
    return isinstance(share, float) and share == 1.0


def _check_callback(callback: Any) -> None:
    name = type(callback).__name__
    for kind, why in _CALLBACKS.items():
        if isinstance(callback, kind):
            raise refused(f"the callback {name}: {why}", "leave it out")
    if isinstance(callback, callbacks.ModelCheckpoint) and callback._train_time_interval is not None:
        raise refused(f"{name}(train_time_interval=...): {_EACH_WORKER}", "give it every_n_epochs=")


def check_optimizer(optimizer: Any) -> None:
    """Check the result of configure_optimizers. Raises LightningError."""
    if not isinstance(optimizer, torch.optim.Optimizer) or not optimizer.param_groups:
        raise refused("configure_optimizers returned no optimizer", "return one")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise refused("LBFGS, which calls training_step several times in a step", "use another optimizer")


def check_loader(name: str, loader: Any) -> DataLoader[Any]:
    """Return the loader of `train_dataloader` or `val_dataloader`. Raises LightningError if it is refused."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        kind = type(getattr(loader, "dataset", loader)).__name__
        raise refused(f"{name} gives a {kind}", "return one DataLoader over a dataset with __len__")
    if loader.num_workers and os.environ.get("PL_SEED_WORKERS") == "1":
        raise refused(
            "seed_everything(workers=True) with num_workers: a process that loads data does so for several"
            " ranks",
            "leave workers out: each rank's data workers are seeded from the rank's own generator",
        )
    return loader
