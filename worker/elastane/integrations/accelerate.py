"""Hugging Face Accelerate in a job: `from elastane.integrations.accelerate import Accelerator`.

    accelerator = Accelerator()
    model, optimizer, loader, eval_loader, scheduler = accelerator.prepare(...)
    for epoch in accelerator.epochs(3):          # was: for epoch in range(3)
        for batch in loader: ...                 # as it was

In a worker, `Accelerator` is a subclass of Accelerate's class that behaves as one of N processes; when the
loop over epochs begins, the prepared objects are passed to `job.prepare`. The first prepared loader is the
training loader, and its loop body runs once for every EST. Every other loader yields the batches of all ranks
in every worker, in the order in which Accelerate gathers them, so in its loop `gather_for_metrics` returns
each rank's part in turn. Outside of a worker (torchrun, `accelerate launch`, plain Python) the class is
Accelerate's own, with `epochs` as `range`.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
from torch.utils.data import DataLoader, IterableDataset

import elastane
from elastane.integrations.versions import check_version
from elastane.rng import Generators
from elastane.runtime import distributed_calls, launcher_variables
from elastane.runtime.environment import read_environment
from elastane.runtime.est_step import EstStep
from elastane.runtime.rng_watch import OutsideRank
from elastane.script_source.places import is_script_file, place_of
from elastane_common.errors import UnsupportedError

check_version("accelerate")

# It asks for this process's rank, which we answer.
launcher_variables.know("accelerate")
distributed_calls.know("accelerate")

import accelerate  # noqa: E402
from accelerate.data_loader import DataLoaderShard  # noqa: E402
from accelerate.scheduler import AcceleratedScheduler  # noqa: E402
from accelerate.state import AcceleratorState, PartialState  # noqa: E402
from accelerate.utils import recursively_apply, send_to_device  # noqa: E402

from elastane.integrations.rank_batches import RankBatches  # noqa: E402

if TYPE_CHECKING:
    from elastane.runtime.elastic import ElasticJob
    from elastane.runtime.trainer import Trainer

#: Arguments of Accelerate's class that are refused because they have no meaning with ESTs, with the reason.
_REFUSED: Final = {
    "deepspeed_plugin": "DeepSpeed cuts the optimizer's state over the ranks",
    "deepspeed_plugins": "DeepSpeed cuts the optimizer's state over the ranks",
    "fsdp_plugin": "FSDP cuts the weights over the ranks",
    "megatron_lm_plugin": "Megatron-LM cuts the model over the ranks",
    "torch_tp_plugin": "tensor parallelism cuts the model over the ranks",
    "parallelism_config": "it cuts the model over the ranks",
    "dynamo_plugin": "torch.compile is applied by the script, before prepare",
    "dynamo_backend": "torch.compile is applied by the script, before prepare",
}
#: The same settings as environment variables, which `accelerate launch` sets.
_REFUSED_VARIABLES: Final = {
    "ACCELERATE_USE_DEEPSPEED": "deepspeed_plugin",
    "ACCELERATE_USE_FSDP": "fsdp_plugin",
    "ACCELERATE_USE_MEGATRON_LM": "megatron_lm_plugin",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "parallelism_config",
}
RESUMING: Final = "start the job with --checkpoint: it resumes in the middle of an epoch by itself"


class AccelerateError(UnsupportedError):
    """The script uses a feature of Accelerate that cannot work with several ranks in one process."""

    code = "ELA367"


class PreparedLoader(DataLoaderShard):
    """A prepared DataLoader: in training the ESTs' mini-batches, elsewhere the batches of all ranks."""

    accelerator: Accelerator
    batches: RankBatches
    #: In a loop over all ranks' batches: the current batch of each rank, and the rank whose batch is running.
    round: Sequence[Any] = ()
    rank = 0
    in_last_round = False

    def __iter__(self) -> Iterator[Any]:
        accelerator = self.accelerator
        trains = self is accelerator._training_loader
        self.begin()
        try:
            for batch in accelerator._turns if trains else self._all_ranks():
                accelerator._begin_turn(self)
                yield send_to_device(batch, self.device, non_blocking=self._non_blocking)
                accelerator._check_turn()
        finally:
            self.end()
            accelerator._end_turns()
        self.iteration += 1

    def set_epoch(self, epoch: int) -> None:
        self.iteration = epoch

    def loader(self, batches: Iterable[Any], generator: torch.Generator | None) -> DataLoader[Any]:
        """Return a torch DataLoader with the same dataset and options, and other batches."""
        base = self.base_dataloader
        return DataLoader(
            base.dataset,
            batch_sampler=batches,
            num_workers=base.num_workers,
            collate_fn=base.collate_fn,
            pin_memory=base.pin_memory,
            timeout=base.timeout,
            worker_init_fn=base.worker_init_fn,
            multiprocessing_context=base.multiprocessing_context,
            generator=generator,
            prefetch_factor=base.prefetch_factor,
            persistent_workers=base.persistent_workers,
        )

    def _all_ranks(self) -> Iterator[Any]:
        self.batches.set_epoch(self.accelerator._epoch)
        sampled = list(self.batches.all_ranks())
        ranks = self.accelerator.num_processes
        made, rounds = iter(self.loader(sampled, self.base_dataloader.generator)), -(-len(sampled) // ranks)
        for number in range(rounds):
            self.round, self.in_last_round = list(itertools.islice(made, ranks)), number == rounds - 1
            for rank, batch in enumerate(self.round):
                self.rank = rank
                self.end_of_dataloader = self.in_last_round and rank == len(self.round) - 1
                yield batch

    def __len__(self) -> int:
        own = len(self.batches)
        return own if self is self.accelerator._training_loader else own * self.batches.num_replicas


class Scheduler(AcceleratedScheduler):
    """Steps as often as Accelerate's scheduler under DDP, in the turn that applies the global step."""

    accelerator: Accelerator

    def step(self, *args: Any, **kwargs: Any) -> None:
        turn = self.accelerator._turn
        if turn is not None and not turn.applied:
            self.scheduler.step(*args, **kwargs)  # does nothing, or refuses a wrong order
            return
        if turn is not None and self.step_with_optimizer and self.gradient_state.adjust_scheduler:
            self.scheduler._step_count += turn.batches - 1
        super().step(*args, **kwargs)


class ElasticAccelerator(accelerate.Accelerator):
    """Accelerator for use in a worker; methods that are not overridden behave as in Accelerate.

    Raises AccelerateError for arguments and calls that cannot work with several ranks in one process.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name, why in _REFUSED.items():
            if kwargs.get(name) is not None and not _is_no(kwargs[name]):
                raise AccelerateError(
                    f"Accelerator({name}=...) cannot train in an elastic job: {why}",
                    hint="leave it out",
                    option=name,
                )
        for variable, name in _REFUSED_VARIABLES.items():
            if os.environ.get(variable, "").lower() == "true":
                raise AccelerateError(
                    f"the variable {variable} is set, and {_REFUSED[name]}",
                    hint="unset it: `elastane run` takes the place of `accelerate launch`",
                    option=variable,
                )
        self._job: ElasticJob = elastane.init()  # type: ignore[assignment]
        if self._job.num_ests == 1:
            raise AccelerateError(
                "the job has one EST, and of one process Accelerate shuffles otherwise",
                hint="elastane run --ests 2, or more",
            )
        super().__init__(*args, **kwargs)
        if self.scaler is not None:
            raise AccelerateError("mixed_precision is fp16", hint="use bf16, which needs no GradScaler")
        if self.dataloader_config.use_stateful_dataloader:
            raise AccelerateError("use_stateful_dataloader is set", hint=f"leave it out: {RESUMING}")
        if self.gradient_state.plugin_kwargs.get("sync_each_batch"):
            raise AccelerateError(
                "sync_each_batch is set, which sums gradients over the ranks in every mini-batch",
                hint="leave it out",
            )
        self._training_loader: PreparedLoader | None = None
        self._turns: Iterable[Any] = ()
        self._accumulated = self._whole = False
        self._trackers_of: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._announce(OutsideRank(0))

    # ------------------------------------------------------------------ what a rank is told

    @property
    def num_processes(self) -> int:
        """N, the number of ESTs."""
        return self._job.num_ests

    @property
    def process_index(self) -> int:
        """The rank of the running EST; between epochs, the rank whose generator states are loaded."""
        self._note_asking("rank", sys._getframe(1))
        return PartialState._shared_state["process_index"]

    local_process_index = process_index

    @property
    def is_main_process(self) -> bool:
        """True where the script should do what only one process does, such as writing files.

        True in every worker before the first epoch, when there is no leader yet. In the training loop: in EST
        0's turn, and after optimizer.step() in the leader's turn that has applied the global step.
        """
        self._note_asking("is_leader", sys._getframe(1))
        return self._leads()

    is_local_main_process = is_main_process

    def _note_asking(self, name: str, frame: FrameType) -> None:
        """Record that the script reads a value that differs between workers.

        Calls from libraries are ignored: what they do with the value draws no random numbers.
        """
        if self._trainer is not None and is_script_file(frame.f_code.co_filename):
            self._trainer.interval.asked(name, frame)

    def _leads(self) -> bool:
        trainer, turn = self._trainer, self._turn
        if trainer is None or not trainer.joined:
            return True
        if turn is None:
            return trainer.is_leader and trainer.interval.est_step in (None, 0)
        return trainer.is_leader and (
            trainer.steps.stepped(turn) if turn.optimizer_called else turn.rank == 0
        )

    @property
    def job(self) -> ElasticJob:
        """The Elastane job, for `accelerator.job.carry` and `accelerator.job.log`."""
        return self._job

    @property
    def sync_gradients(self) -> bool:
        """True in an EST's last mini-batch of a step; after optimizer.step(), in the turn that applies it."""
        turn = self._turn
        if turn is not None and turn.optimizer_called:
            assert self._trainer is not None
            return self._trainer.steps.stepped(turn)
        return bool(self.gradient_state.sync_gradients)

    @property
    def _trainer(self) -> Trainer | None:
        return self._job._trainer

    @property
    def _turn(self) -> EstStep | None:
        return self._trainer.steps.est_step if self._trainer is not None else None

    @property
    def _epoch(self) -> int:
        return self._trainer.epoch if self._trainer is not None else 0

    def _announce(self, rank: int) -> None:
        """Set the current rank for Accelerate's own functions, such as its loggers."""
        told = {"num_processes": self._job.num_ests, "process_index": rank, "local_process_index": rank}
        for state in (PartialState, AcceleratorState):
            state._shared_state.update(told)

    @contextmanager
    def _as_rank(self, rank: int) -> Iterator[None]:
        """Make Accelerate's and transformers' own functions see another rank within the block."""
        before = PartialState._shared_state["process_index"]
        self._announce(rank)
        try:
            yield
        finally:
            self._announce(before)

    # ------------------------------------------------------------------ prepare, and the loop over epochs

    def prepare_data_loader(self, data_loader: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data_loader, PreparedLoader):
            return data_loader
        if isinstance(data_loader.dataset, IterableDataset):
            raise AccelerateError(
                "the DataLoader's dataset is an IterableDataset, of which Accelerate's rank 0 reads all",
                hint="use a map-style dataset, or job.prepare without Accelerate",
            )
        if self.dispatch_batches:
            raise AccelerateError("dispatch_batches is set", hint="leave it out")
        if data_loader.batch_size is None and data_loader.batch_sampler is None:
            raise AccelerateError("the DataLoader does not batch", hint="give it a batch_size")
        shard = super().prepare_data_loader(data_loader, *args, **kwargs)
        loader = PreparedLoader.__new__(PreparedLoader)
        loader.__dict__ = shard.__dict__
        loader.accelerator = self
        loader.batches = RankBatches(shard.batch_sampler, data_loader.generator)
        self._dataloaders[-1] = loader
        if self._training_loader is None:
            self._training_loader = loader
        return loader

    def prepare_scheduler(self, scheduler: Any) -> Any:
        prepared = super().prepare_scheduler(scheduler)
        prepared.__class__ = Scheduler
        prepared.accelerator = self
        return prepared

    def epochs(self, count: int, *, max_steps: int | None = None) -> Iterator[int]:
        """Yield the epochs still to be trained, out of `count`, like `job.epochs`.

        max_steps: limit of optimizer steps; the loader loop of the last epoch ends with that step. Raises
        AccelerateError without one model, optimizer and training loader, UnsupportedError for what would
        change the bits.
        """
        training = self._training_loader
        if training is None or len(self._models) != 1 or not self._optimizers:
            raise AccelerateError(
                f"accelerator.epochs was called with {len(self._models)} models, {len(self._optimizers)}"
                f" optimizers and {len(self._dataloaders)} DataLoaders prepared",
                hint="prepare one model, its optimizers and the training DataLoader before",
            )
        self._join(training, [scheduler.scheduler for scheduler in self._schedulers])
        return self._job.epochs(count, max_steps=max_steps)

    def _join(self, training: PreparedLoader, schedulers: Sequence[Any], accumulation_steps: int = 0) -> None:
        """Pass the prepared objects to `job.prepare`. accumulation_steps: 0 for Accelerate's own value."""
        generator = training.base_dataloader.generator
        if training.batches.seeds:
            if training.base_dataloader.num_workers:
                raise AccelerateError(
                    "the training DataLoader has a generator= and data workers, whose seeds come from it",
                    hint="leave generator= out, and seed with set_seed",
                )
            generator = torch.Generator()  # its seed is of no use without data workers
        loader = training.loader(training.batches, generator)
        if not loader.num_workers and draws_here(loader):
            raise AccelerateError(
                "the training dataset or its collate_fn draws random numbers in the training process, where"
                " Accelerate makes mini-batches one ahead",
                hint="give the DataLoader a data worker: num_workers=1, in the original, too",
            )
        extras = [o for o in self._custom_objects if not isinstance(o, AcceleratedScheduler)]
        *_, self._turns = self._job.prepare(
            self._models[0],
            *(optimizer.optimizer for optimizer in self._optimizers),
            *schedulers,
            *extras,
            loader,
            accumulation_steps=accumulation_steps or self.gradient_accumulation_steps,
            **(self.ddp_handler.to_kwargs() if self.ddp_handler is not None else {}),
        )
        assert self._trainer is not None
        self._trainer.sampler_epoch = None  # Accelerate itself sets the epoch of its loaders

    def _batches_of(self, turn: EstStep, ranks: Iterable[int]) -> Iterator[Any]:
        """Load the mini-batches of the given ranks for the turn's step again, in this process."""
        trainer, training = self._trainer, self._training_loader
        assert trainer is not None and training is not None
        source, loader = trainer.source, training.base_dataloader
        first = (turn.step - trainer.epoch * source.steps_per_epoch) * source.accumulation_steps
        for rank in ranks:
            for micro in range(turn.batches):
                index = source.index(trainer.epoch, rank, first + micro)
                yield loader.collate_fn([loader.dataset[one] for one in index])

    def _do_sync(self) -> None:
        turn, self._accumulated = self._turn, True
        if turn is None:
            super()._do_sync()
        else:
            self.gradient_state._set_sync_gradients(turn.sync)

    def _begin_turn(self, loader: PreparedLoader) -> None:
        turn, self._accumulated = self._turn, False
        if turn is not None:
            self._announce(turn.rank)
            trainer = self._trainer
            assert trainer is not None
            after = turn.step + 1
            loader.end_of_dataloader = turn.sync and (
                after >= trainer.total_steps or trainer.begins_epoch(after)
            )

    def _end_turns(self) -> None:
        if self._trainer is not None:
            self._announce(OutsideRank(self._trainer.interval.rank))

    def _check_turn(self) -> None:
        """Check a turn after its loop body has run."""
        if self._turn is not None and self.gradient_accumulation_steps > 1 and not self._accumulated:
            raise AccelerateError(
                f"gradient_accumulation_steps is {self.gradient_accumulation_steps}, and the loop body does"
                " not run under `with accelerator.accumulate(model):`",
                hint="put the body under it, or leave gradient_accumulation_steps out",
            )

    # ------------------------------------------------------------------ values of all ranks

    def gather(self, tensor: Any) -> Any:
        """Return the part of the rank whose batch is running; the loop as a whole covers all ranks."""
        if self._whole:
            return tensor
        self._evaluated("gather")
        return recursively_apply(lambda one: one[None] if one.ndim == 0 else one, tensor)

    @contextmanager
    def _of_all_ranks(self) -> Iterator[None]:
        """Make `gather` return values unchanged within the block, as they already combine all ranks."""
        self._whole = True
        try:
            yield
        finally:
            self._whole = False

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Like `gather`, without the duplicated samples that fill up the last batches."""
        loader = self._evaluated("gather_for_metrics")
        cut = loader.in_last_round and loader.remainder > 0
        if not use_gather_object and _has_tensors(input_data):
            data = self.gather(input_data)
            return recursively_apply(lambda one: one[: _kept(one, loader)], data) if cut else data
        data = input_data if isinstance(input_data, list | tuple) else [input_data]
        return data[: _kept(data, loader)] if cut else input_data

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the value unchanged: in the loop it is one rank's, after the loop a sum over all ranks."""
        if reduction != "sum" or (self._turn is not None and self._evaluation is None):
            self._evaluated("reduce")
        return tensor

    def pad_across_processes(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        self._evaluated("pad_across_processes")
        return tensor

    @property
    def _evaluation(self) -> PreparedLoader | None:
        """The evaluation loader that is being iterated; None if there is none."""
        loader = self.gradient_state.active_dataloader
        return loader if isinstance(loader, PreparedLoader) and loader is not self._training_loader else None

    def _evaluated(self, name: str) -> PreparedLoader:
        """Return `_evaluation`. Raises AccelerateError if there is none."""
        loader = self._evaluation
        if loader is not None:
            return loader
        where = "in the loop over the training loader" if self._turn is not None else "outside of a loop"
        raise AccelerateError(
            f"accelerator.{name} was called {where}, at {place_of(sys._getframe(2))}",
            hint="the ranks run one after the other: call it in a loop over another prepared DataLoader;"
            " `job.log` and Accelerate's trackers have the means over the ranks",
        )

    # ------------------------------------------------------------------ what one worker does for all

    def print(self, *args: Any, **kwargs: Any) -> None:
        if self._leads():
            print(*args, **kwargs)  # noqa: T201 - as Accelerate's does

    def on_main_process(self, function: Any = None) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if self._leads() else None

        return run

    on_local_main_process = on_main_process

    def save_state(self, output_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Save in the leader only; in the training loop, in the turn that applies the global step."""
        turn = self._turn
        if turn is not None and not turn.optimizer_called:
            raise AccelerateError(
                "accelerator.save_state was called in a turn before optimizer.step()",
                hint="call it after optimizer.step(), or between epochs",
            )
        if self._leads():
            return super().save_state(output_dir, *args, **kwargs)
        if turn is None or (self._trainer is not None and self._trainer.steps.stepped(turn)):
            self.project_configuration.iteration += 1
        return None

    def save_model(self, *args: Any, **kwargs: Any) -> Any:
        return super().save_model(*args, **kwargs) if self._leads() else None

    def save(self, *args: Any, **kwargs: Any) -> Any:
        return super().save(*args, **kwargs) if self._leads() else None

    def init_trackers(self, *args: Any, **kwargs: Any) -> None:
        """Record the trackers; the leader opens them at its first `log`."""
        self._trackers_of = args, kwargs

    def log(self, *args: Any, **kwargs: Any) -> None:
        if not self._leads():
            return
        if self._trackers_of is not None:
            super().init_trackers(*self._trackers_of[0], **self._trackers_of[1])
            self._trackers_of = None
        super().log(*args, **kwargs)

    # ------------------------------------------------------------------ what cannot be

    @contextmanager
    def no_sync(self, model: Any) -> Iterator[None]:
        if self._turn is not None and not self._accumulated:
            self._refuse(
                "no_sync", "Accelerator(gradient_accumulation_steps=K), accelerator.accumulate(model)"
            )
        yield

    def load_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("load_state", RESUMING)

    def skip_first_batches(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("skip_first_batches", RESUMING)

    def join_uneven_inputs(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("join_uneven_inputs", "even_batches=True, the default, gives all ranks the same number")

    def split_between_processes(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("split_between_processes", "job.tasks deals out work to any number of workers")

    def set_trigger(self) -> NoReturn:
        self._refuse("set_trigger", "let every worker decide alike, from job.carry")

    check_trigger = set_trigger

    @staticmethod
    def _refuse(name: str, hint: str) -> NoReturn:
        raise AccelerateError(f"accelerator.{name} cannot work in an elastic job", hint=hint)


def _is_no(plugin: Any) -> bool:
    """True for a TorchDynamoPlugin that compiles nothing, which transformers always passes."""
    return str(getattr(plugin, "backend", plugin)).rpartition(".")[2].upper() == "NO"


def _has_tensors(data: Any) -> bool:
    """True if the data consists of tensors only, so that Accelerate gathers it as tensors."""
    try:
        recursively_apply(lambda one: one, data, error_on_other_type=True)
    except TypeError:
        return False
    return True


def _kept(part: Any, loader: PreparedLoader) -> int:
    """Return how many of a rank's samples remain when the gathered batch is cut to the epoch's remainder."""
    return max(0, min(len(part), loader.remainder - loader.rank * len(part)))


def draws_here(loader: DataLoader[Any]) -> bool:
    """Return True if loading a mini-batch in this process draws random numbers. Generators are restored."""
    generators = Generators()
    before = generators.capture()
    index = next(iter(loader.batch_sampler))  # type: ignore[arg-type]
    loader.collate_fn([loader.dataset[one] for one in index])
    drawn = generators.capture() != before
    generators.restore(before)
    return drawn


class _StockAccelerator(accelerate.Accelerator):
    """Accelerate's own class with `epochs`, used outside of a worker."""

    def epochs(self, count: int) -> Iterator[int]:
        """Yield all epochs, as `range` does."""
        return iter(range(count))


in_ring: Final = read_environment().resolved_mode() == "elastic"
if TYPE_CHECKING:
    Accelerator = ElasticAccelerator
else:
    Accelerator = ElasticAccelerator if in_ring else _StockAccelerator

__all__ = ["AccelerateError", "Accelerator"]
