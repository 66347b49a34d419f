"""Lightning's loops over epochs and mini-batches, driven by the job.

A worker runs one turn of the loop body for each of its ranks, and runs it again in a replay. Every turn runs
the hooks up to backward, training_step, and optimizer.step(), which takes effect in the last turn. That turn
also does the work of once per step: schedulers, on_train_batch_end and loggers, with the outputs of the
worker's first rank. Lightning's counters are computed from the job's step, so a worker may join at any step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch.loggers.utilities import _log_hyperparams
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from elastane.integrations.lightning.evaluation import ElasticEvaluationLoop
from elastane.integrations.lightning.ranks import Ranks
from elastane.integrations.lightning.refusals import refused
from elastane.runtime.job import TurnPlace


class ElasticFitLoop(_FitLoop):
    """The loop over epochs."""

    ranks: Ranks
    epoch_loop: ElasticEpochLoop

    def take_data(self, loader: Any, batches: int) -> None:
        """Set the training loader. batches: number of batches of a rank in an epoch."""
        self._combined_loader = CombinedLoader(loader, "max_size_cycle")
        self.max_batches = self.trainer.val_check_batch = batches

    def setup_data(self) -> None:
        """Do nothing: `take_data` was called when the strategy was set up."""

    def run(self) -> None:
        if self.skip:
            return
        self.reset()
        epochs = self._epochs()
        epoch = next(epochs, None)  # joins the ring
        self.ranks.enter()
        if self.ranks.count > 1:  # no process was rank 0 yet when the Trainer did this
            _log_hyperparams(self.trainer)
        drawn: torch.Tensor | None = torch.get_rng_state()
        self.on_run_start()
        while epoch is not None:
            for tracker in (self.epoch_progress.total, self.epoch_progress.current):
                tracker.load_state_dict(dict.fromkeys(("ready", "started", "processed", "completed"), epoch))
            self.on_advance_start()
            if epoch == 0 and drawn is not None and not torch.equal(torch.get_rng_state(), drawn):
                # DDP begins the first epoch's loader, which draws a seed, before these hooks
                raise refused(
                    "on_train_start, or on_train_epoch_start of the first epoch, draws random numbers",
                    "draw them in on_fit_start",
                )
            drawn = None
            self.epoch_loop.run_epoch(epoch)
            self.on_advance_end()
            if self.trainer.should_stop and self._can_stop_early:
                self.ranks.job._end_after_epoch()
            epoch = next(epochs, None)
        self.ranks.enter()
        self.on_run_end()

    def _epochs(self) -> Iterator[int]:
        """Yield the epochs still to be trained, within the Trainer's limits."""
        job, steps = self.ranks.job, self.max_steps if self.max_steps != -1 else None
        count = self.max_epochs
        if count is None or count == -1:
            assert steps is not None
            accumulated = self.trainer.accumulate_grad_batches
            count = -(-steps // job.steps_per_epoch(self.ranks.loader, accumulation_steps=accumulated))
        bar = self.trainer.progress_bar_callback is not None and self.ranks.count > 1
        return job.epochs(count, max_steps=steps, progress=bar)


class ElasticEpochLoop(_TrainingEpochLoop):
    """The loop over an epoch's mini-batches."""

    ranks: Ranks
    val_loop: ElasticEvaluationLoop
    _epoch: int
    #: Outputs, batch and values of `self.log` of this worker's first rank, by mini-batch of the running step.
    _first: dict[int, tuple[Any, Any, dict[str, Any]]]

    def run_epoch(self, epoch: int) -> None:
        """Run the turns of an epoch, and validate after it."""
        ranks, self._epoch, self._first = self.ranks, epoch, {}
        self.reset()
        for batch in ranks.loader:
            self._turn(batch)
        ranks.enter()
        batches = self.ranks.job.step * self.trainer.accumulate_grad_batches
        batches = min(batches - epoch * self._batches_per_epoch, int(self.trainer.num_training_batches))
        self._count(batches - 1, self.ranks.job.step - 1, ended=True)
        ranks.sums.put(self._results, epoch)
        if self._num_ready_batches_reached() and self._should_check_val_epoch():
            self._validate()
        if self._num_ready_batches_reached():
            self._end_batch()
        self._batches_that_stepped = ranks.job.step

    @property
    def _batches_per_epoch(self) -> int:
        """Mini-batches of an epoch, rounded up to whole steps."""
        accumulated = self.trainer.accumulate_grad_batches
        return -(-int(self.trainer.num_training_batches) // accumulated) * accumulated

    def _turn(self, batch: Any) -> None:
        trainer, ranks = self.trainer, self.ranks
        place = ranks.begin_turn()
        first = place.step * trainer.accumulate_grad_batches - self._epoch * self._batches_per_epoch
        batch_idx = first + place.micro
        batch = trainer.precision_plugin.convert_input(batch)
        batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)
        self._count(batch_idx, place.step)
        ranks.sums.begin(self._results)
        trainer._logger_connector.on_batch_start(batch)
        call._call_callback_hooks(trainer, "on_train_batch_start", batch, batch_idx)
        if call._call_lightning_module_hook(trainer, "on_train_batch_start", batch, batch_idx) == -1:
            raise refused(
                "on_train_batch_start returned -1", "return None: an epoch has all its mini-batches"
            )
        arguments = self._build_kwargs(OrderedDict(), batch, batch_idx)
        outputs = self.automatic_optimization.run(trainer.optimizers[0], batch_idx, arguments)
        if place.first:
            if place.micro == 0:
                self._first = {}
            logged = {key: one._forward_cache for key, one in self._results.items() if not one.has_reset}
            self._first[batch_idx] = outputs, batch, logged
        if ranks.job.stepped:
            self._stepped(place)

    def _stepped(self, place: TurnPlace) -> None:
        """Run, once per step, what DDP ranks do after each of the step's mini-batches."""
        trainer, last = self.trainer, max(self._first)
        self.ranks.enter()
        for batch_idx, (outputs, batch, logged) in self._first.items():
            self._count(batch_idx, place.step + (batch_idx == last), logging_step=place.step)
            for key, value in logged.items():
                self._results[key]._forward_cache, self._results[key].has_reset = value, False
            self.batch_progress.increment_processed()
            self.update_lr_schedulers("step", update_plateau_schedulers=False)
            if self._num_ready_batches_reached():
                self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
            call._call_callback_hooks(trainer, "on_train_batch_end", outputs, batch, batch_idx)
            call._call_lightning_module_hook(trainer, "on_train_batch_end", outputs, batch, batch_idx)
            trainer._logger_connector.on_batch_end()
            self.batch_progress.increment_completed()
            trainer._logger_connector.update_train_step_metrics()
            if not self._num_ready_batches_reached():
                self._end_batch()
        if trainer.should_stop and trainer.fit_loop._can_stop_early:
            raise refused(
                "trainer.should_stop in the middle of an epoch",
                "set it in a hook of validation or of an epoch",
            )

    def _end_batch(self) -> None:
        self.update_lr_schedulers("step", update_plateau_schedulers=True)
        self._save_loggers_on_train_batch_end()

    def _count(
        self, batch_idx: int, steps: int, *, ended: bool = False, logging_step: int | None = None
    ) -> None:
        """Set Lightning's counters. steps: optimizer steps so far. ended: True after the mini-batch."""
        before = self._epoch * int(self.trainer.num_training_batches)
        for tracker, base in ((self.batch_progress.current, 0), (self.batch_progress.total, before)):
            now = base + batch_idx + 1
            done = now if ended else now - 1
            tracker.load_state_dict({"ready": now, "started": now, "processed": done, "completed": done})
        self.batch_progress.is_last_batch = batch_idx + 1 == self.trainer.num_training_batches
        step = self.automatic_optimization.optim_progress.optimizer.step
        step.total.load_state_dict(dict.fromkeys(("ready", "completed"), steps + ended))
        self._batches_that_stepped = steps if logging_step is None else logging_step

    def _validate(self) -> None:
        trainer, connector = self.trainer, self.trainer._logger_connector
        trainer.validating = True
        first = connector._first_loop_iter
        call._call_lightning_module_hook(trainer, "on_validation_model_zero_grad")
        self.val_loop.run()
        trainer.training = True
        connector._first_loop_iter = first


def take_over(trainer: Any, ranks: Ranks) -> ElasticFitLoop:
    """Replace the trainer's loops by those of this module, keeping their settings."""
    loop: Any = trainer.fit_loop
    for one, kind in (
        (loop, ElasticFitLoop),
        (loop.epoch_loop, ElasticEpochLoop),
        (loop.epoch_loop.val_loop, ElasticEvaluationLoop),
    ):
        one.__class__, one.ranks = kind, ranks
    return loop
