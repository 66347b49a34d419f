"""Hugging Face Trainer in a job: `from elastane.integrations.transformers import Trainer`.

In a worker, `Trainer` is a subclass of transformers' class with an Accelerator of
`elastane.integrations.accelerate` and its own loop over an epoch. Each turn of the loop is one mini-batch of
one EST; work done once per step (callbacks, logs, evaluation, checkpoints) happens in the turn that applies
the step. Values that persist across epochs (best metric, patience) are carried. Outside of a worker it is
transformers' own class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from elastane.data import current
from elastane.integrations.accelerate import (
    RESUMING,
    AccelerateError,
    ElasticAccelerator,
    PreparedLoader,
    draws_here,
    in_ring,
)
from elastane.integrations.versions import check_version
from elastane.rng import Generators
from elastane.runtime import distributed_calls, launcher_variables
from elastane.runtime.est_step import EstStep
from elastane_common.errors import StepError

check_version("transformers")
launcher_variables.know("transformers")
distributed_calls.know("transformers")

import transformers  # noqa: E402
from torch.optim.lr_scheduler import ReduceLROnPlateau  # noqa: E402
from transformers.trainer_callback import EarlyStoppingCallback, ExportableState  # noqa: E402
from transformers.trainer_utils import IntervalStrategy, seed_worker  # noqa: E402

#: TrainingArguments that are refused, with what to do instead.
_REFUSED: Final = {
    "deepspeed": "leave it out: DeepSpeed cuts the optimizer's state over the ranks",
    "fsdp_plugin_args": "leave fsdp out: it cuts the weights over the ranks",
    "torch_compile": "pass a model that is compiled, with torch._dynamo.config.optimize_ddp = False",
    "push_to_hub": "push once, after training: trainer.save_model(), then the Hub's own upload",
    "auto_find_batch_size": "leave it out: each worker would find a size of its own",
    "fp16": "use bf16, which needs no GradScaler",
    "resume_from_checkpoint": RESUMING,
}
_STOPPING: Final = "stop at the end of an epoch"
_CARRIED: Final = ("best_metric", "best_global_step", "best_model_checkpoint")


class ElasticTrainer(transformers.Trainer):
    """Trainer for use in a worker; methods that are not overridden behave as in transformers.

    Raises AccelerateError for arguments that cannot work with several ranks in one process.
    """

    accelerator: ElasticAccelerator
    control: Any
    _globalstep_last_logged: int
    #: The iterator of `job.epochs`, once it has begun, and the next epoch; None when training is over.
    _epochs: Iterator[int] | None = None
    _next: int | None = None
    _items: tuple[int, Any] = (-1, None)
    _generators: Generators

    def create_accelerator_and_postprocess(self) -> None:
        for name, hint in _REFUSED.items():
            if getattr(self.args, name, None):
                _refuse(f"TrainingArguments({name.removesuffix('_plugin_args')}=...)", hint)
        if self.args.include_num_input_tokens_seen != "no":
            _refuse("TrainingArguments(include_num_input_tokens_seen=...)", "leave it out")
        self._generators = Generators(self.args.device)
        self.args._n_gpu = min(1, self.args.n_gpu)
        stock, transformers.trainer.Accelerator = transformers.trainer.Accelerator, ElasticAccelerator
        try:
            super().create_accelerator_and_postprocess()
        finally:
            transformers.trainer.Accelerator = stock

    # ------------------------------------------------------------------ data

    def get_train_dataloader(self) -> Any:
        loader = super().get_train_dataloader()
        if not isinstance(loader, PreparedLoader):
            _refuse(
                f"a training loader of the class {type(loader).__name__}", "pass it to accelerator.prepare"
            )
        workers = loader.base_dataloader.num_workers
        if getattr(loader.base_dataloader.worker_init_fn, "func", None) is seed_worker:
            loader.base_dataloader.worker_init_fn = partial(_seed_worker, num_workers=workers)
        self.accelerator._training_loader = loader
        return loader

    # ------------------------------------------------------------------ epochs

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint:
            _refuse("resume_from_checkpoint", _REFUSED["resume_from_checkpoint"])
        if self._epochs is not None:
            raise StepError(
                "trainer.train was called twice in a job", hint="a second training is a job of its own"
            )
        return super().train(None, *args, **kwargs)

    def _run_epoch(self, model: Any, epoch: int, train_dataloader: Any, **given: Any) -> None:
        if self._epochs is None:
            self._join(train_dataloader)
        # A worker that joins late skips the epochs before; after a restart an epoch may be trained again.
        while self._next is not None and self._next <= epoch:
            self._one_epoch(model, self._next, train_dataloader, given)
            assert self._epochs is not None and self._trainer is not None
            if self.control.should_training_stop and self._trainer.applied_step < self._trainer.total_steps:
                self._epochs.close()  # type: ignore[attr-defined]
                self._next = None
            else:
                self._advance()
        if self._next is None:
            self.control.should_training_stop = True

    def _join(self, loader: PreparedLoader) -> None:
        accelerator = self.accelerator
        if self._counts_labels and draws_here(loader.loader(loader.batches, None)):
            _refuse(
                "a dataset or data_collator that draws random numbers, with average_tokens_across_devices,",
                "set average_tokens_across_devices=False, in the original, too: the labels of all ranks are"
                " counted in every worker",
            )
        patient = any(isinstance(one, EarlyStoppingCallback) for one in self.callback_handler.callbacks)
        if patient and self.args.eval_strategy == IntervalStrategy.STEPS:
            _refuse('EarlyStoppingCallback with eval_strategy="steps"', f'{_STOPPING}: eval_strategy="epoch"')
        accelerator._join(loader, [self.lr_scheduler], self.args.gradient_accumulation_steps)
        self._carry = accelerator.job.carry(trainer=self._carried())
        self._epochs = accelerator.job.epochs(
            self.state.num_train_epochs, max_steps=self.state.max_steps, progress=False
        )
        self._advance()

    def _advance(self) -> None:
        """Advance to the next epoch that the job trains."""
        assert self._epochs is not None and self._trainer is not None
        self._next = next(self._epochs, None)
        self._take(self._carry.trainer)
        self.state.global_step = self._trainer.applied_step
        self.state.is_world_process_zero = self.state.is_local_process_zero = self.accelerator._leads()

    def _one_epoch(self, model: Any, epoch: int, loader: Any, given: Mapping[str, Any]) -> None:
        job, steps_in_epoch = self.accelerator.job, given["steps_in_epoch"]
        self._globalstep_last_logged = max(self._globalstep_last_logged, self.state.global_step)
        evaluates = partial(
            self._maybe_log_save_evaluate,
            model=model,
            trial=given["trial"],
            epoch=epoch,
            ignore_keys_for_eval=given["ignore_keys_for_eval"],
            start_time=given["start_time"],
        )
        grad_norm = learning_rate = None
        loss_of_step, done = torch.tensor(0.0), 0
        for inputs in loader:
            turn = self.accelerator._turn
            assert turn is not None and self._trainer is not None
            if turn.guest is None and turn.slot == turn.micro == 0:
                self.state.global_step, loss_of_step, done = turn.step, torch.zeros_like(self._tr_loss), 0
                with self._draws_nothing("on_step_begin"):
                    self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
            if turn.micro == 0 and self._evaluated_after(turn.step):
                self._draw_as_evaluation()
            self.current_gradient_accumulation_steps = turn.batches
            self.accelerator.gradient_state._set_sync_gradients(turn.sync)
            loss = self.training_step(model, inputs, self._items_of(turn, inputs))
            if turn.guest is None:
                loss_of_step, done = loss_of_step + loss, done + turn.sync
                self.current_flos += float(self.floating_point_ops(inputs))
            if not turn.sync:
                self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
                continue
            if self.args.max_grad_norm > 0:
                grad_norm = self._clip_grad_norm(model)
            grad_norm = self._get_grad_norm(model, grad_norm=grad_norm)
            self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)
            self.optimizer.step()
            learning_rate = self._get_learning_rate()
            if not isinstance(self.lr_scheduler, ReduceLROnPlateau):
                self.lr_scheduler.step()
            model.zero_grad()
            if not self._trainer.steps.stepped(turn):
                continue
            self._tr_loss += loss_of_step / done
            self.state.global_step = turn.step + 1
            in_epoch = (turn.step + 1) - epoch * given["num_update_steps_per_epoch"]
            batches = min(in_epoch * self.args.gradient_accumulation_steps, steps_in_epoch)
            self.state.epoch = epoch + batches / steps_in_epoch
            self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
            self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
            if batches < steps_in_epoch and self.state.global_step < self.state.max_steps:
                self._after_step(evaluates, grad_norm, learning_rate, job)
                self._refuse_stop()
        self.state.is_world_process_zero = self.state.is_local_process_zero = self.accelerator._leads()
        # In transformers' order: first what the last step asks for, then the end of the epoch.
        evaluates(self._tr_loss, grad_norm, learning_rate=learning_rate)
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        evaluates(self._tr_loss, grad_norm, learning_rate=learning_rate)
        self._carry.trainer = self._carried()

    def _after_step(self, evaluates: Any, grad_norm: Any, learning_rate: Any, job: Any) -> None:
        """Log, evaluate and save as callbacks ask within an epoch, in the turn that has applied the step.

        The evaluation draws random numbers, which is not allowed after backward(). So each EST makes the same
        draws in its next turn.
        """
        if self.control.should_evaluate and not self._evaluated_after(self.state.global_step):
            raise AccelerateError(
                "a callback asks for an evaluation in the middle of an epoch",
                hint='use eval_strategy="steps" with eval_steps, or evaluate at the end of epochs',
            )
        leads = self.accelerator._leads()
        self.state.is_world_process_zero = self.state.is_local_process_zero = leads
        with job.isolated_rng(), self.accelerator._as_rank(0 if leads else 1):
            evaluated = self.control.should_evaluate
            with self._draws_nothing("on_log, on_evaluate or on_save", evaluated=evaluated):
                evaluates(self._tr_loss, grad_norm, learning_rate=learning_rate)
        self._carry.trainer = self._carried()

    def _refuse_stop(self) -> None:
        """Raise AccelerateError if a callback ends the epoch or the training before the epoch's last step."""
        for name in ("should_training_stop", "should_epoch_stop"):
            if getattr(self.control, name):
                _refuse(f"a callback that sets {name} in the middle of an epoch", _STOPPING)

    @contextmanager
    def _draws_nothing(self, hooks: str, *, evaluated: bool = False) -> Iterator[None]:
        """Raise AccelerateError if callbacks draw random numbers within the block, which runs once per step.

        Each rank would draw them from its own generators. evaluated: the block evaluates, which draws as in
        `_draw_as_evaluation`.
        """
        before = expected = self._generators.capture()
        if evaluated:
            self._draw_as_evaluation()
            expected = self._generators.capture()
            self._generators.restore(before)
        yield
        if self._generators.capture() != expected:
            _refuse(
                f"a callback that draws random numbers in {hooks}, in the middle of an epoch,",
                "draw in on_epoch_begin, or under `with trainer.accelerator.job.isolated_rng():`, in the"
                " original, too",
            )

    def _draw_as_evaluation(self) -> None:
        """Draw what each rank draws in an evaluation under DDP: a seed for each loader."""
        for _ in self.eval_dataset if isinstance(self.eval_dataset, dict) else (0,):
            torch.empty((), dtype=torch.int64).random_()

    def _evaluated_after(self, step: int) -> bool:
        """True if an evaluation follows step number `step` within an epoch."""
        assert self._trainer is not None
        return (
            self.args.eval_strategy == IntervalStrategy.STEPS
            and step > 0
            and step % self.state.eval_steps == 0
            and step >= self.args.eval_delay
            and not self._trainer.begins_epoch(step)
        )

    # ------------------------------------------------------------------ the number of labels of a step

    @property
    def _counts_labels(self) -> bool:
        """True if losses are divided by the number of labels of several mini-batches."""
        scaled = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        together = self.args.average_tokens_across_devices or self.args.gradient_accumulation_steps > 1
        return bool(scaled and together)

    def _items_of(self, turn: EstStep, inputs: Any) -> Any:
        """Return the divisor of losses: Trainer's own count, over mini-batches of the step loaded for it."""
        if not self._counts_labels or "labels" not in inputs:
            return super()._get_num_items_in_batch([inputs], self.args.device)
        across = self.args.average_tokens_across_devices
        key = turn.step if across else turn.step * self.accelerator.num_processes + turn.rank
        if self._items[0] != key:
            ranks = range(self.accelerator.num_processes) if across else [turn.rank]
            with self.accelerator.job.isolated_rng(), self.accelerator._of_all_ranks():
                made = list(self.accelerator._batches_of(turn, ranks))
                self._items = key, super()._get_num_items_in_batch(made, self.args.device)
        return self._items[1]

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """Count labels; in an evaluation, too, over one mini-batch of each rank."""
        evaluation = self.accelerator._evaluation
        if evaluation is None or not self.args.average_tokens_across_devices:
            return super()._get_num_items_in_batch(batch_samples, device)
        with self.accelerator._of_all_ranks():
            return super()._get_num_items_in_batch(list(evaluation.round), device)

    # ------------------------------------------------------------------ what is kept

    @property
    def _trainer(self) -> Any:
        return self.accelerator._trainer

    def _carried(self) -> dict[str, Any]:
        """Return the state that affects later epochs, as plain values."""
        exported = [cb for cb in self.callback_handler.callbacks if isinstance(cb, ExportableState)]
        return {
            "state": {name: getattr(self.state, name) for name in _CARRIED},
            "callbacks": [dict(cb.state()["attributes"]) for cb in exported],
        }

    def _take(self, carried: Mapping[str, Any]) -> None:
        exported = [cb for cb in self.callback_handler.callbacks if isinstance(cb, ExportableState)]
        for name, value in carried["state"].items():
            setattr(self.state, name, value)
        for callback, attributes in zip(exported, carried["callbacks"], strict=True):
            for name, value in attributes.items():
                setattr(callback, name, value)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.state.best_global_step:  # also on a host where the leader's file is not visible yet
            folder = f"checkpoint-{self.state.best_global_step}"
            self.state.best_model_checkpoint = str(Path(self._get_output_dir(trial)) / folder)

    def _save_rng_state(self, output_dir: str) -> None:
        """Do nothing: RNG states belong to ESTs and are saved in the job's checkpoints."""

    def _load_best_model(self) -> None:
        """Load the best model in the leader, which has written it."""
        if self.accelerator._leads():
            super()._load_best_model()


class ElasticSeq2SeqTrainer(ElasticTrainer, transformers.Seq2SeqTrainer):
    """Seq2SeqTrainer for use in a worker."""


def _seed_worker(worker_id: int, num_workers: int) -> None:
    """Seed a data worker as transformers' worker_init_fn does, with the rank whose mini-batches it loads."""
    seed_worker(worker_id, num_workers, current.rank or 0)


def _refuse(what: str, hint: str) -> NoReturn:
    raise AccelerateError(f"{what} cannot work in an elastic job", hint=hint)


if TYPE_CHECKING:
    Trainer, Seq2SeqTrainer = ElasticTrainer, ElasticSeq2SeqTrainer
else:
    Trainer = ElasticTrainer if in_ring else transformers.Trainer
    Seq2SeqTrainer = ElasticSeq2SeqTrainer if in_ring else transformers.Seq2SeqTrainer

__all__ = ["Seq2SeqTrainer", "Trainer"]
