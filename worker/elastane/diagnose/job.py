"""Job of mode "doctor": the script's own loop body is run for a few steps, observed and repeated.

The script runs unchanged: `prepare` examines its arguments, and the prepared loader feeds the loop. Each step
is run twice from the same state; the first one also under `OperatorWatch`. At the end the process exits from
within the loader, so that nothing after the loop (evaluation, saving) runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import torch
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict
from torch.utils.data import DataLoader, IterableDataset

from elastane.data.source import BatchSource
from elastane.diagnose import pipeline_findings, ps_findings
from elastane.diagnose.ending import end_script
from elastane.diagnose.findings import COMPLETE, Book, Severity, Timing
from elastane.diagnose.inspection import Inspection
from elastane.diagnose.operators import DeterminismWarnings, OperatorWatch
from elastane.diagnose.replay import StateKeeper, StepRun, StepWatch, digest
from elastane.diagnose.supply import RANK, ElasticSupply, ScriptSupply, Supply
from elastane.rng import Generators, seed_all
from elastane.runtime.accumulation import LocalCalls
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.options import TrainOptions
from elastane.runtime.pipelines.arguments import PipelineArguments
from elastane.runtime.pipelines.batch import steps as steps_of
from elastane.runtime.pipelines.stock_pipe import StockPipe
from elastane.runtime.prepared_objects import PreparedObjects, check_modules, intercept
from elastane.runtime.script_generators import roots_of
from elastane.runtime.slots.errors import NotPushedError
from elastane.runtime.slots.local import prepare_local
from elastane.runtime.slots.model import PsArguments
from elastane.runtime.slots.prepared import PreparedPs
from elastane.runtime.slots.task import PushTask
from elastane.runtime.stock import LocalJob, LocalTask
from elastane.state.codec import StateNotCarriedError
from elastane.state.train_state import TrainState
from elastane_common.errors import ElastaneError, StepError, UnsupportedError, reason_of
from elastane_planner.amounts import bytes_text

ESTS_DEFAULT: Final = 2
_WARM_UP_STEPS: Final = 3
_TIMED_STEPS_MIN: Final = 5
_TIMED_STEPS_MAX: Final = 200


class DoctorSettings(BaseSettings):
    """Settings that `elastane doctor` passes to the script's process, as ELASTANE_DOCTOR_<NAME>.

    report: file for the findings. task: "inspect" the script, or "time" its steps for `seconds`.
    """

    model_config = SettingsConfigDict(env_prefix="ELASTANE_DOCTOR_", extra="ignore")

    report: Path | None = None
    task: Literal["inspect", "time"] = "inspect"
    steps: int = Field(default=2, ge=1)
    seconds: float = Field(default=4.0, gt=0)


class DoctorLoader:
    """Replacement for the script's DataLoader. All loops continue the same examination."""

    def __init__(
        self, loader: DataLoader[Any], turns: Iterator[Any], steps: int, left: Callable[[], None]
    ) -> None:
        self._loader = loader
        self._turns = turns
        self._steps = steps
        self._left = left
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        if self._begun:  # the examination ends the process from within its one loop
            self._left()
        self._begun = True
        return self._turns

    def __len__(self) -> int:
        return self._steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class DoctorCalls(LocalCalls):
    """`LocalCalls` for steps that are repeated: each step gets its mini-batches explicitly."""

    def step(self, batches: Iterator[Any], count: int) -> Iterator[Any]:
        """Yield the `count` mini-batches of one run of a step."""
        self._batches = count
        for _, batch in self.mini_batches(batches):
            yield batch


class DoctorJob(LocalJob):
    """A process that acts as EST 0 of a job of N."""

    def __init__(self, environment: WorkerEnvironment, seed: int | None) -> None:
        super().__init__(environment, seed)
        self._settings = DoctorSettings()
        self._book = Book(self._settings.report)
        self.num_ests = environment.ests or ESTS_DEFAULT
        self.rank, self.is_leader = RANK, True
        self._turns: Iterator[Any] | None = None
        if self._settings.task == "inspect":
            DeterminismWarnings(self._operator_warned).install()
        self._book.stage("started")

    def _upload_turn(self) -> None:
        """Upload nothing: a script that is examined has no trained model."""

    def prepare(self, *objects: Any, **options: Any) -> Any:
        self._begin_prepare("prepare")
        try:
            prepared, chosen = PreparedObjects(objects), TrainOptions.of(options)
        except ElastaneError as error:
            self._refused("prepare", error)
            self._end()
        try:
            check_modules(prepared.model)
        except UnsupportedError as error:
            self._refused("prepare", error)  # the loop is examined all the same
        turns, steps = self._examine(prepared, chosen, "backward()", zeroing=chosen.accumulation_steps > 1)
        loader = DoctorLoader(prepared.loader, turns, steps, self._loop_left)
        result = tuple(loader if o is prepared.loader else o for o in objects)
        return result[0] if len(result) == 1 else result

    def _prepare_pipeline(self, given: PipelineArguments) -> Any:
        self._begin_prepare("prepare_pipeline")
        try:
            prepared = given.build(release=False)
        except ElastaneError as error:
            self._refused("prepare", error, where="job.prepare_pipeline")
            self._end()
        turns, steps = self._examine(
            prepared.objects, prepared.options.train, "optimizer.step()", zeroing=False
        )
        self._book.fact("units of the pipeline", prepared.units.count)
        for said in pipeline_findings.findings(prepared.units, self.num_ests):
            where = "job.prepare_pipeline"
            self._book.add(said.severity, pipeline_findings.KIND, said.what, where=where, todo=said.todo)
        pipe = StockPipe(prepared, prepared.objects.model, self._step_calls, lambda name, value: None)
        own_loader = DoctorLoader(given.loader, steps_of(turns, lambda: self.step), steps, self._loop_left)
        return prepared.returned(pipe, own_loader)

    def _prepare_ps(self, given: PsArguments) -> PreparedPs:
        self._begin_prepare("prepare_ps")
        where = "job.prepare_ps"
        try:
            prepared, local = prepare_local(given, self._seed or 0)
        except ElastaneError as error:
            self._refused("prepare", error, where=where)
            self._end()
        spec = local.spec
        self._book.fact("dense weights", bytes_text(ps_findings.dense_bytes(spec)))
        self._book.fact("embeddings by rows", ", ".join(table.name for table in spec.tables) or "none")
        self._book.fact("at parameter servers", f"{bytes_text(ps_findings.full_bytes(spec))} with all rows")
        for said in ps_findings.findings(spec, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
            self._book.add(said.severity, ps_findings.KIND, said.what, where=where, todo=said.todo)
        return prepared

    def _begin_prepare(self, name: str) -> None:
        if self._turns is not None:
            raise StepError(f"{name} was called in a prepared script", hint="pass everything to one call")
        self._book.stage("prepare")

    def _examine(
        self,
        prepared: PreparedObjects,
        options: TrainOptions,
        logs_until: Literal["backward()", "optimizer.step()"],
        *,
        zeroing: bool,
    ) -> tuple[Iterator[Any], int]:
        """Return the mini-batches of the examination, and the steps of an epoch."""
        self._prepared, self._options = prepared, options
        self._generators = Generators(_device(prepared.model))
        self._registry.freeze()
        self._calls = self._step_calls = DoctorCalls(prepared.model, options.accumulation_steps, None)
        self._watch = StepWatch(prepared.model, prepared.optimizers, self._generators, logs_until)
        self._state = TrainState(prepared.model, prepared.optimizers, prepared.schedulers, prepared.extras)
        intercept(prepared, self._step_calls, zeroing=zeroing)
        self._model = prepared.model
        if self._seed is not None:
            seed_all(self._seed + RANK)
        self._supply, steps = self._open_supply()
        self._facts(steps)
        self._turns = self._loop()
        return self._turns, steps

    def epochs(self, count: int, *, max_steps: int | None = None, progress: bool = True) -> Iterator[int]:
        if self._turns is None:
            raise StepError("job.epochs was called before job.prepare")
        self._book.stage("epochs")
        yield from range(count)

    def log(self, **values: Any) -> None:
        if self._turns is None:
            raise StepError("job.log was called before job.prepare")
        self._watch.log(values)

    def tasks(
        self, dataset: str, *, size: int, task_size: int, **settings: Any
    ) -> Iterator[LocalTask | PushTask]:
        """Yield the first task only: tasks are leased, and their order decides no bits.

        With parameter servers, the first few: what one pushes, the next one pulls.
        """
        self._book.stage("tasks")
        self._book.fact("tasks", f"of {dataset}, {task_size} each")
        if (prepared := self._ps) is None:
            yield LocalTask(0, range(min(size, task_size)))
            self._end()
            return
        for index, start in enumerate(range(0, size, task_size)[: self._settings.steps]):
            task = PushTask(0, index, range(start, min(start + task_size, size)), dataset=dataset)
            prepared.begin(task)
            yield task
            try:
                prepared.end().result()
            except NotPushedError as error:
                self._refused("loop body", error, where="the loop over job.tasks")
                break
        self._end()

    def _loop_left(self) -> None:
        self._book.add(
            Severity.REFUSED,
            "break",
            f"the loader loop was left in step {self.step}, before its end: by a break, a return, or "
            "next(iter(...))",
            where="the loader loop",
            todo="to stop after M steps: job.epochs(n, max_steps=M); for shorter epochs: "
            "job.prepare(..., steps_per_epoch=K)",
        )

    # ------------------------------------------------------------------ prepare

    def _open_supply(self) -> tuple[Supply, int]:
        """Return the batches as training would make them, or else the script's own.

        Also returns the steps in an epoch.
        """
        loader = self._prepared.loader
        try:
            source = BatchSource(
                loader,
                self.num_ests,
                registry=self._registry,
                accumulation_steps=self._options.accumulation_steps,
                steps_per_epoch=self._options.steps_per_epoch,
            )
            source.start()
            iterable = isinstance(loader.dataset, IterableDataset)
            supply = ElasticSupply(source, self._generators, self._registry, iterable=iterable)
            return supply, source.steps_per_epoch
        except ElastaneError as error:
            self._refused("data", error)
            with contextlib.suppress(TypeError):  # a loader of an IterableDataset has no length
                return self._script_supply(), len(loader)
            return self._script_supply(), 1

    def _script_supply(self) -> Supply:
        return ScriptSupply(
            self._prepared.loader, self._options.accumulation_steps, self._generators, self._registry
        )

    def _facts(self, steps: int) -> None:
        model, loader = self._prepared.model, self._prepared.loader
        device = _device(model)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        self._book.fact("device", name)
        self._book.fact("parameters", f"{sum(p.numel() for p in model.parameters()):,}")
        self._book.fact("logical workers (N)", self.num_ests)
        self._book.fact("batch of each", f"{loader.batch_size} x {self._options.accumulation_steps}")
        self._book.fact("steps in an epoch", steps)
        self._book.fact("data workers", loader.num_workers)
        self._book.fact("registered", ", ".join(self._registry.names) or "nothing")

    def _refused(self, kind: str, error: Exception, where: str = "") -> None:
        text = str(error.args[0]) if error.args else type(error).__name__
        hint = getattr(error, "hint", "")
        if text.startswith("Caught "):  # in a data worker: torch's text with its traceback
            text = reason_of(text).partition(": ")[2] or text
        where = where or {"data": "the DataLoader"}.get(kind, "job.prepare")
        self._book.add(Severity.REFUSED, kind, text, where=where, todo=hint)

    def _operator_warned(self, operator: str, where: str) -> None:
        self._book.add(
            Severity.REFUSED,
            "operator",
            f"{operator} has no deterministic kernel on this device",
            where=where,
            todo="use another operator: training ends with a RuntimeError there",
        )

    # ------------------------------------------------------------------ the loop

    def _loop(self) -> Iterator[Any]:
        """Yield all turns of the examination; exits the process at the end."""
        yield from self._inspect() if self._settings.task == "inspect" else self._time()
        self._supply.close()
        self._end()

    def _inspect(self) -> Iterator[Any]:
        """Run each step twice from the same state, and once more to find the cause if the results differ."""
        roots = roots_of(self._prepared.model, self._prepared.loader)
        known = {id(value) for value in self._registry.objects}
        known |= {id(generator) for generator in _kept_by_loader(self._prepared.loader)}
        inspection = Inspection(self._book, self._options, roots, known)
        keeper: StateKeeper | None = StateKeeper(self._state)
        for step in range(self._settings.steps):
            self.step = step
            self._book.stage(f"step {step}")
            if keeper is not None:
                try:
                    keeper.keep()
                except StateNotCarriedError as error:
                    # Without a copy of the state no step can be repeated; the rest is still examined.
                    self._refused("state", error)
                    keeper = None
            self._rewind()
            inspection.step_begins()
            first = yield from self._run_step()
            supply = self._supply
            inspection.step_ended(step, first, self._watch.trained, self._watch.logs_until)
            if keeper is None:
                self._supply.advance()
                continue
            self._book.stage(f"step {step}, second time")
            second = yield from self._run_again(keeper)
            if self._supply is supply and inspection.differs(first, second):
                inspection.restore_generators()
                third = yield from self._run_again(keeper)
                inspection.judge(step, first, second, third)
            if step == 0:
                self._book.stage("operators of step 0")
                watch = OperatorWatch()
                yield from self._run_again(keeper, watch)
                inspection.operators(watch, _device(self._prepared.model))
            self._supply.advance()
            if isinstance(self._supply, ElasticSupply) and self._supply.remakes_epoch:
                self._book.add(
                    Severity.COSTS,
                    "data",
                    "the IterableDataset has no states: after a ring change its epoch is repeated "
                    "from the start",
                    where="the DataLoader",
                    todo="give the dataset or its iterator state_dict and load_state_dict",
                )

    def _run_again(
        self, keeper: StateKeeper, watch: OperatorWatch | None = None
    ) -> Generator[Any, None, StepRun]:
        keeper.restore()
        self._rewind()
        return (yield from self._run_step(watch))

    def _run_step(self, watch: OperatorWatch | None = None) -> Generator[Any, None, StepRun]:
        """Run the step once: its mini-batches go through the script's loop body."""
        self._watch.begin()
        count, stepped = self._supply.batches, False
        batches = (self._begin(first=index == 0) for index in range(count))
        for batch in self._step_calls.step(batches, count):
            self._watch.begin_batch(batch)
            with watch if watch is not None else contextlib.nullcontext():
                yield batch
            stepped = stepped or self._step_calls.stepped
            self._supply.finish()
        run = self._watch.end()
        if stepped and not run.optimizer_steps:
            run.optimizer_steps = 1  # a GradScaler has skipped it, as it does until its scale fits
        return run

    def _rewind(self) -> None:
        try:
            self._supply.rewind()
        except ElastaneError as error:
            self._replace_supply(error)

    def _begin(self, *, first: bool) -> Any:
        try:
            return self._supply.begin()
        except ElastaneError as error:
            if not first:
                raise
            self._replace_supply(error)
            return self._supply.begin()

    def _replace_supply(self, error: ElastaneError) -> None:
        """Continue with the script's own loader where training would end with this error."""
        if isinstance(self._supply, ScriptSupply):
            raise error
        self._refused("data", error)
        self._supply.close()
        self._supply = self._script_supply()

    def _time(self) -> Iterator[Any]:
        """Run steps as fast as possible for the configured time, and time them."""
        timing = Timing(seconds=[])
        self._book.report.timing = timing
        self._supply.rewind()
        began = time.perf_counter()
        for step in itertools.count():
            self.step = step
            step_began = self._now()
            yield from self._run_step()
            self._supply.advance()
            seconds = self._now() - step_began
            if step == 0:
                timing.digest = digest(
                    p.grad for p in self._prepared.model.parameters() if p.grad is not None
                )
            if step < _WARM_UP_STEPS:
                began = time.perf_counter()
                continue
            timing.seconds.append(seconds)
            spent = time.perf_counter() - began
            if len(timing.seconds) >= _TIMED_STEPS_MAX or (
                len(timing.seconds) >= _TIMED_STEPS_MIN and spent > self._settings.seconds
            ):
                break
        self._book.fact("median step", f"{statistics.median(timing.seconds):.6f} s")

    def _now(self) -> float:
        if _device(self._prepared.model).type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _end(self) -> None:
        self._book.stage(COMPLETE)
        end_script()


def _device(model: torch.nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _kept_by_loader(loader: DataLoader[Any]) -> Iterator[torch.Generator]:
    """Yield the generators of the loader and its sampler: Elastane keeps them, or refuses them at prepare."""
    for owner in (
        loader,
        loader.sampler,
        loader.batch_sampler,
        getattr(loader.batch_sampler, "sampler", None),
    ):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            yield generator
