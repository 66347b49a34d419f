"""Run the same script without a master: as a plain single process, or under stock DistributedDataParallel.

The DDP mode is the reference for all comparisons; it therefore uses torch's own classes and adds nothing to a
step but counting it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import structlog
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from elastane.data import set_epoch, stock_loader
from elastane.rng import Generators, seed_all
from elastane.runtime.accumulation import LocalCalls
from elastane.runtime.comparison_report import write_pipeline_report, write_slots_report, write_stock_report
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.epoch_progress import EpochProgress, LastValues, ProgressLine
from elastane.runtime.gathering import reduce_states
from elastane.runtime.job import Job, TurnPlace, checked_max_steps, prepared_already
from elastane.runtime.loop_exit import when_left
from elastane.runtime.options import TrainOptions
from elastane.runtime.pipelines.arguments import PipelineArguments
from elastane.runtime.pipelines.clips import refuse_clips
from elastane.runtime.pipelines.prepared import PreparedPipeline
from elastane.runtime.pipelines.stock_pipe import ENDED, StockPipe, StockPipelineLoader
from elastane.runtime.prepared_objects import PreparedObjects, intercept, intercept_zero_grad
from elastane.runtime.slots.errors import PsModeError
from elastane.runtime.slots.local import LocalSlots, prepare_local
from elastane.runtime.slots.model import PsArguments
from elastane.runtime.slots.prepared import PreparedPs
from elastane.runtime.slots.task import PushTask
from elastane.runtime.step_trace import StepTrace, open_trace
from elastane.state.unit_fingerprint import pieces
from elastane.state.unit_state import UnitState
from elastane.tracking.process import TrackerProcesses
from elastane_common.errors import StepError, UnsupportedError
from elastane_slots.placement import SLOTS

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True)
class LocalTask:
    """A task of a dynamic dataset in a process without a master."""

    index: int
    indices: range
    attempt: int = 1


class LocalLoader:
    """Counts an epoch's mini-batches in one process; all other attributes are the DataLoader's."""

    def __init__(self, loader: DataLoader[Any], job: LocalJob, options: TrainOptions) -> None:
        self._loader = loader
        self._job = job
        self._options = options

    def __iter__(self) -> Iterator[Any]:
        return self._job.turns(itertools.islice(iter(self._loader), self._options.steps_per_epoch))

    def __len__(self) -> int:
        return self._options.steps_per_epoch or len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class LocalJob(Job):
    """Common base of the two modes without a master: one process is one rank throughout."""

    def __init__(self, environment: WorkerEnvironment, seed: int | None) -> None:
        super().__init__(environment, seed)
        self._calls: LocalCalls | None = None
        self._model: torch.nn.Module | None = None
        self._trace: StepTrace | None = None
        self._logged: list[dict[str, float]] = []
        self._pending: dict[str, Any] = {}
        self._writers: TrackerProcesses | None = None
        self._progress: ProgressLine | None = None
        self._steps_per_epoch = 0
        self._steps_max = environment.steps_max
        self.step = 0
        self._micro: int | None = None
        self._ends_early = False
        #: Why a pipeline may not be evaluated now, as in a ring; empty: it may.
        self._refusal = "before job.epochs"
        self._is_pipeline = self._warned_of_late_log = False

    @property
    def stepped(self) -> bool:  # type: ignore[override]
        """True if the optimizer has stepped in this mini-batch."""
        return self._calls is not None and self._calls.stepped

    @property
    def _over(self) -> bool:
        return self._ends_early or 0 < self._steps_max <= self.step

    def _place(self) -> TurnPlace | None:
        return None if self._micro is None else TurnPlace(self.step, self._micro, self.rank, first=True)

    def _leads(self) -> bool:
        return self.is_leader

    def _end_after_epoch(self) -> None:
        self._ends_early = True

    def log(self, **values: Any) -> None:
        """Keep the values for the report of the run, by step.

        Warns, once, where a worker in a ring would refuse: its step is reported by then.
        """
        calls = self._calls
        if calls is not None and not self._warned_of_late_log and self.is_leader:
            # Within a pipeline's `pipe(batch)`, a step is reported in optimizer.step().
            late = calls.stepped if self._is_pipeline else calls.backward_done
            if late:
                before = "optimizer.step()" if self._is_pipeline else "loss.backward()"
                self._warned_of_late_log = True
                _log.warning(
                    f"job.log({', '.join(values)}) came after {before}: `elastane run` refuses that (ELA302),"
                    f" since the values are stored with the step: call it before {before}"
                )
        self._pending.update(values)

    def turns(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the epoch's mini-batches; work after each is done when the loop requests the next."""
        calls, model, trace = self._calls, self._model, self._trace
        assert calls is not None and model is not None
        generators = Generators(next(model.parameters()).device)
        for micro, batch in calls.mini_batches(batches):
            if isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = calls.sync  # same effect as no_sync()
            if trace is not None:
                parts = generators.capture() | self._registry.capture()
                trace.mini_batch_began(self.step, self.rank, micro, batch, parts)
            self._refusal = f"in the loader loop, in step {self.step}"
            self._micro = micro
            yield batch
            self._refusal, self._micro = "", None
            if trace is not None:
                parts = generators.capture() | self._registry.capture()
                trace.mini_batch_ended(self.step, self.rank, micro, parts, self._pending)
            if not calls.sync:
                continue
            if trace is not None:
                trace.step_applied(self.step)
            values = {name: _number(value) for name, value in self._pending.items()}
            self._logged.append(values)
            self._pending = {}
            if self._writers is not None:
                self._writers.write({"step": self.step, "committed": time.time(), "values": values})
            self.step += 1
            if self._progress is not None:
                self._progress.reach(self.step, self._last_values)
            if self._over:
                break
        if self._progress is not None:
            self._progress.end(self._last_values())

    def _last_values(self) -> LastValues:
        own = f"rank {self.rank} of {self.num_ests}" if self.num_ests > 1 else ""
        return LastValues(self._logged[-1] if self._logged else {}, own)

    def epochs(self, count: int, *, max_steps: int | None = None, progress: bool = True) -> Iterator[int]:
        """Yield the epochs.

        The leader shows progress and writes to trackers; the values are its own rank's.
        """
        if limit := checked_max_steps(max_steps):
            self._steps_max = min(limit, self._steps_max or limit)
        if self._shows_progress(progress) and self.is_leader:
            total = count * self._steps_per_epoch
            total = min(total, self._steps_max) if self._steps_max else total
            self._progress = ProgressLine(EpochProgress(self._steps_per_epoch, total, count))
        self._training = True
        if self.is_leader:
            self._warn_of_schedules(count)
        if self._trackers and self.is_leader:
            self._writers = TrackerProcesses(self._trackers, job=self._environment.job, created=time.time())
            self._writers.lead(True)
        try:
            for epoch in range(count):
                if self._over:
                    break
                if self._progress is not None:
                    self._progress.begin(epoch, self.step)
                self._begin_epoch(epoch)
                self._refusal = ""
                yield epoch
        except GeneratorExit:
            when_left(lambda place: self._end())
            raise
        except BaseException:
            self._close_writers()
            raise
        self._end()

    def _begin_epoch(self, epoch: int) -> None:
        """Hook for the mode, before each epoch."""

    def _end(self) -> None:
        """End training: all epochs are done, or the script left its loop over them."""
        self._refusal = ENDED
        if self._writers is not None:
            self._writers.finish(self.step)
        self._close_writers()

    def _close_writers(self) -> None:
        if self._writers is not None:
            self._writers.close()

    def _control(
        self,
        prepared: PreparedObjects,
        model: torch.nn.Module,
        loader: DataLoader[Any],
        options: TrainOptions,
        *,
        zeroing: bool | None = None,
    ) -> LocalLoader:
        """Intercept the prepared objects' methods, so that they take effect once a step.

        zeroing: zero_grad and clipping too; None: if the body runs for several mini-batches of a step.
        """
        try:
            batches = options.steps_per_epoch or len(loader)
        except TypeError as error:  # an IterableDataset without a length
            raise UnsupportedError(
                "the DataLoader has no length",
                hint="pass steps_per_epoch to prepare, or give the dataset __len__",
            ) from error
        self._model = model
        self._steps_per_epoch = -(-batches // options.accumulation_steps)
        self._calls = LocalCalls(model, options.accumulation_steps, batches)
        zeroing = options.accumulation_steps > 1 if zeroing is None else zeroing
        intercept(prepared, self._calls, zeroing=zeroing)
        if model is not prepared.model and zeroing:
            intercept_zero_grad(model, self._calls)  # the script holds DDP's wrapper
        self._note_schedules(prepared, self._steps_per_epoch)
        self._registry.freeze()
        return LocalLoader(loader, self, options)

    def _prepare_pipeline(self, given: PipelineArguments) -> Any:
        self._check_unprepared("prepare_pipeline")
        prepared = given.build(release=False)
        self._is_pipeline = True
        model, own_loader = self._wrap_pipeline(prepared)
        mini_batches = self._control(
            prepared.objects, model, own_loader, prepared.options.train, zeroing=False
        )
        assert self._calls is not None
        refuse_clips(prepared.objects.model)
        pipe = StockPipe(
            prepared, model, self._calls, self._log_loss, lambda: self._refusal, leads=self.is_leader
        )
        if self._seed is not None:
            seed_all(self._seed + self.rank)
        return prepared.returned(
            pipe, StockPipelineLoader(mini_batches, self._steps_per_epoch, lambda: self.step)
        )

    def _check_unprepared(self, name: str) -> None:
        """Raise StepError if the script has been prepared, as in a ring."""
        if self._calls is not None:
            raise prepared_already(name)
        if self._ps is not None:
            raise PsModeError(
                f"job.{name} was called beside prepare_ps",
                hint="call one of them",
            )

    def _log_loss(self, name: str, value: torch.Tensor) -> None:
        self._pending.setdefault(name, value)

    def _wrap_pipeline(self, prepared: PreparedPipeline) -> tuple[torch.nn.Module, DataLoader[Any]]:
        """Hook for the mode: return the model that trains the units, and the loader of this rank."""
        return prepared.objects.model, prepared.objects.loader


class PlainJob(LocalJob):
    """A single process, N = 1: `prepare` only replaces the loader, by one that counts steps."""

    def __init__(self, environment: WorkerEnvironment, seed: int | None) -> None:
        super().__init__(environment, seed)
        self.num_ests, self.rank, self.is_leader = 1, 0, True
        #: By data set, how many of its tasks are done.
        self._done: dict[str, int] = {}
        self._local: LocalSlots | None = None

    def prepare(self, *objects: Any, **options: Any) -> Any:
        self._check_unprepared("prepare")
        prepared = PreparedObjects(objects)
        chosen = TrainOptions.of(options)
        loader = self._control(prepared, prepared.model, prepared.loader, chosen)
        if self._seed is not None:
            seed_all(self._seed)
        return _replaced(objects, {id(prepared.loader): loader})

    def _prepare_ps(self, given: PsArguments) -> PreparedPs:
        if self._calls is not None:
            raise PsModeError("job.prepare_ps was called beside job.prepare", hint="call one of them")
        slots = SLOTS if self._environment.report_dir else 1  # a report has those of a job
        prepared, self._local = prepare_local(given, self._seed or 0, slots=slots)
        return prepared

    def tasks(
        self, dataset: str, *, size: int, task_size: int, **settings: Any
    ) -> Iterator[LocalTask | PushTask]:
        if size < 1 or task_size < 1:
            raise UnsupportedError(
                f"dataset {dataset!r}: size {size}, task_size {task_size}: both at least 1"
            )
        starts = range(0, size, task_size)
        total = int(settings.get("epochs", 1)) * len(starts)
        if self._done.get(dataset, 0) >= total:
            _log.warning(
                f"all tasks of {dataset!r} are done, and a job does them once: for several passes use"
                " epochs=, or a name for each"
            )
        while (number := self._done.get(dataset, 0)) < total:
            epoch, index = divmod(number, len(starts))
            indices = range(starts[index], min(starts[index] + task_size, size))
            if self._ps is None:
                yield LocalTask(index, indices)
            else:
                task = PushTask(epoch, index, indices, dataset=dataset)
                self._ps.begin(task)
                try:
                    yield task
                except GeneratorExit:
                    if self._ps.ended:
                        self._done[dataset] = number + 1
                    self._ps.leave()
                    raise
                self._ps.end().result()
            self._done[dataset] = number + 1
        if self._local is not None and self._environment.report_dir:
            done = sum(self._done.values())
            write_slots_report(self._environment.report_dir, self._local.digests(), tasks=done)


class DdpJob(LocalJob):
    """Stock DDP under torchrun: the reference that the elastic result must equal."""

    def __init__(self, environment: WorkerEnvironment, seed: int | None) -> None:
        super().__init__(environment, seed)
        dist.init_process_group(environment.ddp_backend or _backend())
        # When DDP's reducer is destroyed, torch joins gloo's thread while holding the GIL, and that thread
        # may be waiting for the GIL. The extra reference makes the group outlive everything.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
        self.num_ests = dist.get_world_size()
        self.rank = dist.get_rank()
        self.is_leader = self.rank == 0
        self._prepared: PreparedObjects | None = None
        self._loader: DataLoader[Any] | None = None
        self._units: UnitState | None = None

    def prepare(self, *objects: Any, **options: Any) -> Any:
        self._check_unprepared("prepare")
        prepared = self._prepared = PreparedObjects(objects)
        chosen = TrainOptions.of(options)
        self._trace = open_trace(f"ddp-{self.rank}", prepared, self._registry)
        model = self._distributed(prepared.model, chosen)
        self._loader = stock_loader(
            prepared.loader, self.num_ests, self.rank, steps_per_epoch=chosen.steps_per_epoch
        )
        loader = self._control(prepared, model, self._loader, chosen)
        if self._seed is not None:
            seed_all(self._seed + self.rank)
        return _replaced(objects, {id(prepared.model): model, id(prepared.loader): loader})

    def _wrap_pipeline(self, prepared: PreparedPipeline) -> tuple[torch.nn.Module, DataLoader[Any]]:
        objects = self._prepared = prepared.objects
        self._units = UnitState(prepared.units, prepared.optimizer, objects.schedulers, objects.extras)
        self._units.active = prepared.units.held
        options = prepared.options.train
        self._trace = open_trace(f"ddp-{self.rank}", objects, self._registry)
        self._loader = stock_loader(
            objects.loader, self.num_ests, self.rank, steps_per_epoch=options.steps_per_epoch
        )
        return self._distributed(objects.model, options), self._loader

    def _gathered(self, name: str, asked: str) -> list[bytes]:
        # Not all_gather_object, which unpickles.
        own = torch.frombuffer(bytearray(self._registry.captured(name)), dtype=torch.uint8)
        sizes = [int(size) for size in self._all_gather(torch.tensor([len(own)]))]
        padded = torch.nn.functional.pad(own, (0, max(sizes) - len(own)))
        states = self._all_gather(padded)
        return [bytes(state[:size].numpy()) for state, size in zip(states, sizes, strict=True)]

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return this tensor of every rank, on the CPU."""
        sent = tensor.to(_collective_device())
        found = [torch.empty_like(sent) for _ in range(self.num_ests)]
        dist.all_gather(found, sent)
        return [one.cpu() for one in found]

    def reduce(self, value: Any, operation: str = "sum") -> Any:
        return reduce_states(self._states_of_ranks(value, "reduce"), operation, self._all_reduce)

    def _all_reduce(self, tensors: Sequence[torch.Tensor], operation: str) -> torch.Tensor:
        """Reduce with torch's own collective, which sends this rank's tensor alone."""
        own = tensors[self.rank]
        result = own.clone().to(_collective_device())
        dist.all_reduce(result, getattr(dist.ReduceOp, operation.upper()))
        return result.to(own.device)

    def _distributed(self, model: torch.nn.Module, options: TrainOptions) -> DistributedDataParallel:
        device_ids = [int(os.environ.get("LOCAL_RANK", "0"))] if dist.get_backend() == "nccl" else None
        return DistributedDataParallel(model, device_ids=device_ids, **options.ddp_arguments())

    def epochs(self, count: int, *, max_steps: int | None = None, progress: bool = True) -> Iterator[int]:
        if self._prepared is None:
            raise StepError("job.epochs was called before job.prepare")
        return super().epochs(count, max_steps=max_steps, progress=progress)

    def _begin_epoch(self, epoch: int) -> None:
        assert self._loader is not None
        set_epoch(self._loader, epoch)

    def _end(self) -> None:
        super()._end()
        assert self._prepared is not None
        directory, rank = self._environment.report_dir, self.rank
        if directory and self._units is not None:
            found, steps = pieces(self._units), len(self._logged)
            write_pipeline_report(directory, f"ddp-{rank}", found, rank=rank, step=steps, logged=self._logged)
        elif directory:
            write_stock_report(directory, self._prepared, rank=rank, logged=self._logged)
        dist.barrier()
        dist.destroy_process_group()

    def tasks(self, dataset: str, *, size: int, task_size: int, **settings: Any) -> Iterator[LocalTask]:
        raise UnsupportedError("dynamic datasets need a master", hint="start the script with `elastane run`")


def _backend() -> str:
    """Return "nccl" if every rank of this host has a separate GPU, which NCCL requires, else "gloo"."""
    ranks_here = os.environ.get("LOCAL_WORLD_SIZE") or os.environ["WORLD_SIZE"]
    has_gpus = torch.cuda.is_available() and int(ranks_here) <= torch.cuda.device_count()
    return "nccl" if has_gpus else "gloo"


def _collective_device() -> torch.device:
    """Return the device on which this process group's collectives take tensors."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def _replaced(objects: tuple[Any, ...], replaced: dict[int, Any]) -> Any:
    result = tuple(replaced.get(id(o), o) for o in objects)
    return result[0] if len(result) == 1 else result


def _number(value: Any) -> float:
    return float(value.item()) if isinstance(value, torch.Tensor) else float(value)
