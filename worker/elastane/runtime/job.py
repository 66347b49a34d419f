"""The job object of a training script, as `elastane.init` returns it for the environment's mode."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import structlog
import torch
from torch.utils.data import DataLoader

from elastane.registry import Registry, from_bytes, is_metric
from elastane.rng import Generators, seed_all
from elastane.runtime.carried import Carried, CarriedValues
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.gathering import reduce_states
from elastane.runtime.pipelines.arguments import PipelineArguments
from elastane.runtime.schedules import Lengths, schedule_warnings
from elastane.runtime.slots.errors import NotPushedError, PsModeError
from elastane.runtime.slots.model import Initial, PsArguments, RowsOf
from elastane.runtime.slots.prepared import PreparedPs, Push
from elastane.tracking.tracker import parse_specs
from elastane_common import determinism
from elastane_common.errors import StepError

if TYPE_CHECKING:
    from elastane.runtime.prepared_objects import PreparedObjects


@dataclasses.dataclass(frozen=True, slots=True)
class TurnPlace:
    """Where the loop body is.

    step: the global step. micro: index of the mini-batch in it. rank: virtual rank. first: the turn is of the
    first EST that this process hosts, and not run for a comparison only.
    """

    step: int
    micro: int
    rank: int
    first: bool


_log = structlog.get_logger(__name__)


class Job(abc.ABC):
    """A training run as the script sees it.

    Attributes: num_ests (N), rank (virtual rank of the EST now running), is_leader (True in the one worker
    that hosts EST 0: evaluate, print and save there), step (the global step now running; between steps, the
    next one), stepped (True after optimizer.step() in the turn in which this process applied the global step:
    update weights or averages there, once a step).
    """

    num_ests: int
    rank: int
    is_leader: bool
    step: int
    stepped: bool

    def __init__(self, environment: WorkerEnvironment, seed: int | None) -> None:
        self._environment = environment
        self._seed = seed if seed is not None else environment.seed
        self._registry = Registry()
        self._carried = CarriedValues()
        self._trackers = parse_specs(environment.log_to or "")
        self._training = False
        self._schedules: tuple[list[Any], Lengths] | None = None
        self._ps: PreparedPs | None = None
        torch.set_num_threads(environment.torch_threads)
        determinism.apply(environment.determinism)
        if self._seed is not None:
            # All processes build the same model; EST r is reseeded with seed + r at prepare.
            seed_all(self._seed)

    @abc.abstractmethod
    def prepare(self, *objects: Any, **options: Any) -> Any:
        """Make model, optimizer(s), training loader and scheduler(s) part of the job; call it once.

        Takes them in any order and returns them in the same order. A GradScaler, an AveragedModel or EMA
        copy, and any object with state_dict and load_state_dict that is the same on all ranks, may be passed
        along. The objects passed in stay usable: the script's own model and optimizer hold the result.
        options: see `elastane.runtime.options.TrainOptions` (find_unused_parameters, static_graph,
        gradient_as_bucket_view, bucket_cap_mb, accumulation_steps, steps_per_epoch). Raises UnsupportedError
        for anything that would change the bits.
        """

    def prepare_pipeline(
        self,
        units: Any,
        optimizer: Any,
        loader: Any,
        *extras: Any,
        loss_fn: Any,
        scheduler: Any = None,
        split: Any = None,
        memory: str | int | None = None,
        profile: Any = None,
        **options: Any,
    ) -> Any:
        """Train a model that no worker need hold whole: in place of `prepare`, once.

            pipe, optimizer, loader = job.prepare_pipeline(units, optimizer, loader, loss_fn=...)
            for epoch in job.epochs(10):
                for batch in loader:
                    loss = pipe(batch)
                    optimizer.step()

        The result is that of the same units in one nn.Sequential under `prepare`. Each turn of the loop is
        one global step in every mode; gradients are zeroed by `pipe(batch)`.

        units: an nn.Sequential (nested ones are flattened), a list of modules or of functions that build them
        (only then does no worker hold the whole model at its start), or a model that
        torch.distributed.pipelining has split. optimizer: function of the parameters that returns one
        optimizer; they have `.named()`, too. loader: the training DataLoader. extras: objects with state_dict
        and load_state_dict that are the same on all ranks. loss_fn: function of the last unit's output and
        the target. scheduler: function of the optimizer; the result is returned as a fourth object. split:
        function of a mini-batch that returns (input, target); without it a mini-batch is such a pair. memory:
        that this worker's stage may use, in bytes or like "2GiB". profile: file written by `elastane
        profile`. options: accumulation_steps, steps_per_epoch, bucket_cap_mb, as of `prepare`. Raises
        UnsupportedError for anything that would change the bits. What is returned: see
        `elastane.runtime.pipelines.pipe`.
        """
        return self._prepare_pipeline(
            PipelineArguments(
                units, optimizer, loader, extras, loss_fn, scheduler, split, memory, profile, options
            )
        )

    @abc.abstractmethod
    def _prepare_pipeline(self, given: PipelineArguments) -> Any:
        """Carry out `prepare_pipeline`."""

    def prepare_ps(
        self,
        net: Any,
        optimizer: Any,
        *,
        rows: RowsOf | None = None,
        initial: Initial | Mapping[str, Initial] | None = None,
    ) -> Any:
        """Train asynchronously, with weights and optimizer at parameter servers: in place of `prepare`, once.

            model, optimizer = job.prepare_ps(model, optimizer)
            for task in job.tasks("clicks", size=..., task_size=...):
                with job.push(task):
                    loss_of(model, task.indices).backward()

        Every task's gradients are applied once in every part of the model, whoever joins, leaves or dies.
        Returns model and optimizer, as they were passed. nn.Embedding and nn.EmbeddingBag with sparse=True
        become remote in place: only the rows that a task uses are pulled, and they are no parameters any
        more, so they may be built on the meta device. Without a master everything is in this process, with
        the bits of one worker. There is no optimizer.step().

        optimizer: torch.optim.SGD, Adagrad, Adam or AdamW, or a list; embeddings need elastane.RowOptimizer,
        SparseAdam or plain SGD. Rates are read at every push: schedulers are stepped as ever. rows: function
        of a task's positions that returns, by name of an embedding, the ids that it will use: they are
        pulled with the dense weights, in one request; others are pulled when they are used. initial:
        ("uniform" | "normal" | "zeros", scale) of new rows, or by name of the embedding; scale is the bound
        or the standard deviation. Default: normal, 1.0. Raises PsModelError, PsOptimizerError, PsModeError.
        """
        if self._ps is not None:
            raise prepared_already("prepare_ps")
        self._ps = self._prepare_ps(PsArguments(net, optimizer, rows, initial))
        if self._seed is not None:
            seed_all(self._seed)
        return net, optimizer

    def _prepare_ps(self, given: PsArguments) -> PreparedPs:
        """Carry out `prepare_ps`; hook for the mode."""
        raise PsModeError(
            f"{type(self).__name__} knows no parameter servers",
            hint="start the script with `elastane run --ps 2`, or alone with python",
        )

    def push(self, task: Any) -> Push:
        """Return the block in which a task's gradients are computed; they are pushed where it ends.

        Weights are pulled where it begins, and gradients are None then. Several backward() add up. After the
        block: `push.applied`, `push.staleness`. A task that is given back, as after the death of a parameter
        server, comes again later, and `applied` is False. Raises NotPushedError, NonFiniteGradientError,
        PsUnreachableError.
        """
        return self._require_ps("push").push(task)

    def skip(self, task: Any) -> None:
        """Count a task as done without gradients. Raises NotPushedError, PsUnreachableError."""
        self._require_ps("skip").skip(task)

    def evaluate(self) -> AbstractContextManager[None]:
        """Return a block without gradients in which the model has the parameter servers' newest weights.

        Between tasks, or after the last; other workers go on pushing meanwhile. Raises PsUnreachableError.
        """
        return self._require_ps("evaluate").evaluate()

    def _require_ps(self, name: str) -> PreparedPs:
        if self._ps is None:
            raise NotPushedError(f"job.{name} was called before job.prepare_ps")
        return self._ps

    def register(self, name: str, value: Any) -> None:
        """Keep a separate state of `value` for every EST, as stock ranks do; call it before `prepare`.

        value: a generator (NumPy's Generator or RandomState, random.Random, torch.Generator), a tensor or a
        dict that is changed in place, a torchmetrics Metric, or an object with state_dict and
        load_state_dict, such as a dataset that changes as it is read. name: letters, digits, "_", "." and
        "-". `gather` and `reduce` return what all ranks have. Raises RegistryError.
        """
        self._registry.register(name, value)

    def gather(self, value: Any) -> list[Any]:
        """Return the state that a registered object has in each rank, in the order of the ranks.

            seen = {"hits": 0, "samples": 0}
            job.register("seen", seen)                                  # before prepare
            ...
                    seen["hits"] += int((scores.argmax(1) == y).sum())  # in the loop, before backward()
            ...
            print(job.gather(seen))                                     # between epochs

        Call it between epochs, after the loader loop, or once a step, after optimizer.step() under `if
        job.stepped:`, in every worker alike. It is what the ranks of DDP exchange with all_gather: the state
        when backward() ran, after the step in which it ran. The `compute()` of a registered torchmetrics
        Metric does the same by itself. Raises StepError elsewhere, for an object that is not registered, and
        for one that was changed after the loader loop or backward().
        """
        states = self._states_of_ranks(value, "gather")
        return [state["states"] for state in states] if is_metric(value) else states

    def reduce(self, value: Any, operation: str = "sum") -> Any:
        """Return the sum, mean, maximum or minimum over all ranks of a registered tensor or dict of numbers.

        With the bits of DDP's all_reduce over gloo. Called as `gather`. operation: "sum", "mean", "max",
        "min". Raises StepError as `gather` does, and for states that cannot be reduced.
        """
        return reduce_states(self._states_of_ranks(value, "reduce"), operation)

    def _states_of_ranks(self, value: Any, asked: str) -> list[Any]:
        """Return the state of a registered object in each rank. asked: the method's name."""
        name = self._registry.name_of(value)
        if name is None:
            raise StepError(
                f"job.{asked} was given a {type(value).__name__} that is not registered",
                hint='job.register("name", value) before job.prepare makes it an object that each rank has'
                " for itself; in the loop it is then changed in place",
            )
        if self._place() is not None and not self.stepped:
            raise not_stepped(asked)
        return [from_bytes(name, state)[1] for state in self._gathered(name, asked)]

    def _gathered(self, name: str, asked: str) -> list[bytes]:
        """Return the encoded state of a registered object in each rank; hook for the mode."""
        return [self._registry.captured(name)] * self.num_ests

    def carry(self, **values: Any) -> Carried:
        """Make Python values that live across epochs part of the job; call it before `epochs`.

        Returns an object with the values as attributes. A joining worker receives them with the weights, and
        checkpoints contain them. values: initial values by name: numbers, strings, None, tensors, NumPy
        arrays, and lists, tuples and dicts of them. Set them between epochs, or after optimizer.step() `if
        job.stepped:`, in the same way in every worker:

            best = job.carry(loss=float("inf"), epoch=-1)
            ...
            if loss < best.loss: best.loss, best.epoch = loss, epoch

        Raises StateNotCarriedError for a value that cannot be encoded, here and where it is set; StepError
        for a duplicate name, and once training has begun.
        """
        if self._training:
            raise StepError(
                "job.carry was called after job.epochs", hint="name the values before the loop over epochs"
            )
        return self._carried.add(values)

    @abc.abstractmethod
    def epochs(self, count: int, *, max_steps: int | None = None, progress: bool = True) -> Iterator[int]:
        """Yield the epochs still to be trained, out of `count`; a worker may join at any of them.

        max_steps: limit of global steps; the loader loop of the last epoch ends with that step. Leaving the
        loop by `break` ends training if all workers do so in the same epoch; if another worker continues, the
        job fails. The loader loop inside must always run to its end. progress: show progress on the leader's
        stderr, as a bar on a terminal, else one line an epoch; ELASTANE_PROGRESS=0 or 1 overrides it.
        """

    @abc.abstractmethod
    def log(self, **values: Any) -> None:
        """Store values of the current mini-batch (numbers or 0-dim tensors) with the committed step.

        Call it inside the loader loop and before `loss.backward()`: hooks that run in backward are too late.
        Replays count once.
        """

    def log_to(self, *trackers: str) -> None:
        """Also write the values of `log` to trackers; call it before `epochs`. ELASTANE_LOG_TO does the same.

        trackers: "tensorboard:FOLDER", "mlflow:EXPERIMENT", "wandb:PROJECT". For each committed step the
        leader writes the mean over all logical workers, in a separate process: once, whoever leads and
        however often the step was replayed. Nothing is written if ELASTANE_LOG_TO is set and empty, as in the
        runs of `elastane verify`. Raises RefusedError for a tracker that is unknown or not installed,
        StepError once training has begun.
        """
        if self._training:
            raise StepError(
                "job.log_to was called after job.epochs", hint="name the trackers before the loop over epochs"
            )
        specs = parse_specs(",".join(trackers))
        if self._environment.log_to != "":
            self._trackers += specs

    def _upload_turn(self) -> int | None:
        """Return 0 in the process that uploads the model, n in the n-th to do so if it fails, else None."""
        return 0 if self.is_leader else None

    # Hooks for elastane.integrations, which run a loop in the script's place. Unlike what a script reads, the
    # answers do not influence what it draws, and are not noted.

    @abc.abstractmethod
    def _place(self) -> TurnPlace | None:
        """Return the place of the running turn; None between loader loops."""

    @abc.abstractmethod
    def _leads(self) -> bool:
        """True in the process that hosts EST 0; False before it is known which one does."""

    @abc.abstractmethod
    def _end_after_epoch(self) -> None:
        """End training when `epochs` is next asked for one, as a `break` out of its loop would."""

    def _ring_changes(self) -> bool:
        """True if the processes that train with this one change, so that the leader may be lost."""
        return False

    def _shows_progress(self, asked: bool) -> bool:
        """True if the leader shows progress; ELASTANE_PROGRESS overrides the script."""
        configured = self._environment.progress
        return asked if configured is None else configured

    def _note_schedules(self, prepared: PreparedObjects, steps_per_epoch: int) -> None:
        """Note the schedules seen by `prepare`; the number of epochs is known later."""
        with contextlib.suppress(TypeError):  # an IterableDataset without a length
            lengths = Lengths(before=len(prepared.loader), after=steps_per_epoch, epochs=0)
            self._schedules = prepared.schedulers, lengths

    def _warn_of_schedules(self, epochs: int) -> None:
        """Warn of schedules whose length was computed before `prepare`. Called once a job, by its leader."""
        if self._schedules is not None:
            schedulers, lengths = self._schedules
            for text in schedule_warnings(schedulers, dataclasses.replace(lengths, epochs=epochs)):
                _log.warning(text)

    @abc.abstractmethod
    def tasks(self, dataset: str, *, size: int, task_size: int, **settings: Any) -> Iterator[Any]:
        """Lease the tasks of a dynamic dataset, each worker at its own pace.

        Yields tasks with `.indices` (a range of positions), `.index` and `.attempt`; requesting the next one
        reports the previous one as done. A task whose worker dies is leased to another. settings: epochs,
        lease_seconds, max_attempts; prefetch: tasks leased in advance while others are running, for tasks of
        milliseconds (0 by default). A repeated task draws the random numbers of its first attempt; with
        prefetch each task has its own seed. Fewer tasks are leased in advance while tasks take long: one that
        waits for longer than lease_seconds goes to another worker.

        A job does the tasks of a data set once: a second loop over all of them yields nothing, also without a
        master. Leaving the loop gives back what is leased, uncounted.
        """

    def steps_per_epoch(self, loader: Any, *, accumulation_steps: int = 1) -> int:
        """Return the global steps in an epoch of the training loader; a schedule has `epochs * steps` in all.

        loader: the DataLoader to be passed to `prepare`, or the one it returned. accumulation_steps: as given
        to `prepare`. Raises UnsupportedError for a loader that `prepare` would refuse.
        """
        from elastane.data.order import orders_of

        batches = (
            orders_of(loader, self.num_ests, accumulation_steps=1, steps_per_epoch=None).batches
            if isinstance(loader, DataLoader)
            else len(loader)
        )
        return -(-batches // accumulation_steps)

    def each_rank(self) -> Iterator[int]:
        """Run the loop body between epochs once for every rank, with that rank's random numbers.

        `for rank in job.each_rank():` is for code that does not draw the same numbers of values in all ranks:
        its draws depend on the rank, the data or the state (`random.shuffle`), or it seeds generators.
        `job.rank` is then `rank`, with that rank's generators and registered items. A worker that hosts
        several ranks runs the body for each; a process of stock DDP for its own. Run the loop to its end: no
        `break`.
        """
        yield self.rank

    @contextlib.contextmanager
    def isolated_rng(self) -> Iterator[None]:
        """Restore all generators after the block, for example around an evaluation within an epoch."""
        generators = Generators(torch.device("cuda") if torch.cuda.is_available() else None)
        before = generators.capture()
        try:
            yield
        finally:
            generators.restore(before)


def not_stepped(asked: str) -> StepError:
    """Return the error for `gather` or `reduce` in a turn that has not applied its step."""
    return StepError(
        f"job.{asked} was called in the loader loop, in a turn that has not applied the step: there are no"
        " values of all ranks yet",
        hint="call it after optimizer.step(), under `if job.stepped:`, or between epochs, with a registered"
        " object that the turns change before backward()",
    )


def prepared_already(name: str) -> StepError:
    """Return the error for a script that calls `prepare` or `prepare_pipeline` again."""
    return StepError(
        f"{name} was called in a script that has been prepared already",
        hint="call prepare or prepare_pipeline once, and pass everything to that call; a second phase of"
        " training is a job of its own, which begins from the weights that this one saves",
    )


def checked_max_steps(max_steps: int | None) -> int:
    """Return `max_steps`, 0 for None. Raises StepError if it is below 1."""
    if max_steps is not None and max_steps < 1:
        raise StepError(
            f"job.epochs was given max_steps={max_steps}", hint="give at least 1, or leave it out"
        )
    return max_steps or 0
