"""The job object of a worker connected to a master."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import structlog
from torch.utils.data import DataLoader

from elastane.context import EstContext
from elastane.data import current
from elastane.data.source import BatchSource
from elastane.registry import ITEM, is_metric
from elastane.runtime import distributed_calls, launcher_variables, rehearsal
from elastane.runtime.assembly import build_trainer
from elastane.runtime.comparison_report import write_elastic_report, write_pipeline_report
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.epoch_values import EpochValues
from elastane.runtime.gathering import synchronize_by
from elastane.runtime.job import Job, TurnPlace, checked_max_steps, prepared_already
from elastane.runtime.loop_exit import when_left
from elastane.runtime.options import TrainOptions
from elastane.runtime.pipeline_assembly import build_pipeline_trainer
from elastane.runtime.pipeline_calls import PipelineCalls
from elastane.runtime.pipelines.arguments import PipelineArguments
from elastane.runtime.pipelines.clips import refuse_clips
from elastane.runtime.pipelines.partial_state import refuse_partial_state
from elastane.runtime.pipelines.parts import PipelineState
from elastane.runtime.prepared_objects import (
    PreparedObjects,
    check_modules,
    check_schedulers,
    intercept,
    refuse_new_groups,
    refuse_other_scalers,
    replace_method,
    set_to_none,
)
from elastane.runtime.rank_reads import how_asked
from elastane.runtime.rng_watch import OutsideRank, RngWatch, refuse_rank_seed
from elastane.runtime.sampler_epoch import watch_set_epoch
from elastane.runtime.slots.errors import PsModeError
from elastane.runtime.slots.model import PsArguments
from elastane.runtime.slots.prepared import PreparedPs
from elastane.runtime.slots.remote import prepare_remote
from elastane.runtime.slots.reports import PushingTasks
from elastane.runtime.slots.task import PushTask
from elastane.runtime.step_calls import ElasticCalls
from elastane.runtime.tasks import LeasedTask, TaskSession, lease_tasks
from elastane.runtime.trainer import Trainer
from elastane.runtime.wrapper_names import give_wrapper_names
from elastane.script_source.places import place_of
from elastane.state.train_state import TrainState
from elastane.state.unit_fingerprint import pieces
from elastane.tracking.process import TrackerProcesses
from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_common.errors import ElastaneError, StepError, UnsupportedError

_log = structlog.get_logger(__name__)


class LeaderUnknownError(UnsupportedError):
    """The script reads `is_leader` before a ring exists."""

    code = "ELA342"


class ElasticLoader:
    """Replacement for the script's DataLoader: each iteration is one EST's mini-batch.

    `len` is the number of mini-batches of an EST in an epoch, as for a stock rank's loader; a worker that
    hosts k ESTs iterates k times as often, and more when a step is replayed. Other attributes are the
    DataLoader's.
    """

    def __init__(self, loader: DataLoader[Any], trainer: Trainer, batches_per_epoch: int) -> None:
        self._loader = loader
        self._trainer = trainer
        self._batches_per_epoch = batches_per_epoch

    def __iter__(self) -> Iterator[Any]:
        distributed_calls.check()
        return self._trainer.turns()

    def __len__(self) -> int:
        return self._batches_per_epoch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class ElasticJob(Job):
    """A job that trains in a master's ring."""

    def __init__(self, environment: WorkerEnvironment, seed: int | None) -> None:
        super().__init__(environment, seed)
        rehearsal.install()
        self.num_ests = environment.ests
        self._trainer: Trainer | None = None
        self._epoch_values: EpochValues | None = None
        self._order_warning = ""
        #: Until prepare, only seeds derived from the rank are looked for, and only if prepare does not seed.
        self._watch = RngWatch(lambda place: None, lambda names, done: None)
        if self._seed is None:
            self._watch.start()
        self._task_session: TaskSession | None = None
        #: For `gather`; opened when it is first needed, after data workers were forked.
        self._client: MasterClient | None = None

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Virtual rank of the EST now running; between epochs, of the EST whose generators are in place."""
        trainer = self._trainer
        if current.rank is not None:
            return current.rank
        if trainer is not None and trainer.steps.est_step is not None:
            trainer.steps.est_step.asked_rank = True
            return trainer.steps.est_step.rank
        if trainer is not None:
            trainer.interval.asked("rank", sys._getframe(1))
            running_rank = trainer.interval.est_step
            return OutsideRank(trainer.interval.rank) if running_rank is None else running_rank
        if self._seed is None and (how := how_asked(sys._getframe(1))).seeds:
            raise refuse_rank_seed(how.place)
        return OutsideRank(0)

    @property
    def is_leader(self) -> bool:  # type: ignore[override]
        """True if this worker hosts EST 0; in `each_rank`, True in EST 0's turn."""
        trainer = self._trainer
        if trainer is None or not trainer.joined:
            raise LeaderUnknownError(
                f"job.is_leader was read in {place_of(sys._getframe(1))}, before this worker joined the "
                "ring in job.epochs: there is no leader yet",
                hint=(
                    "read it in the loop over job.epochs or after it; before the loop do only what every "
                    "worker may do, such as os.makedirs(folder, exist_ok=True)"
                ),
            )
        if trainer.steps.est_step is not None:
            trainer.steps.est_step.asked_rank = True
        trainer.interval.asked("is_leader", sys._getframe(1))
        return trainer.is_leader and trainer.interval.est_step in (None, 0)

    def _upload_turn(self) -> int | None:
        # Unlike `is_leader`, the answer has no influence on what the script draws, and is not noted.
        trainer = self._trainer
        if trainer is None and self._ps is not None:
            return 0  # once all tasks are done, `job.evaluate` gives every worker the same weights
        if trainer is None or not trainer.joined:
            raise LeaderUnknownError(
                "elastane.save_model was called before this worker joined the ring in job.epochs",
                hint="call it in the loop over job.epochs or after it",
            )
        if trainer.steps.est_step is not None or trainer.interval.est_step is not None:
            # A turn of one EST: the others follow, and a step may not wait.
            if trainer.steps.est_step is not None:
                trainer.steps.stepped(trainer.steps.est_step)
            rank = self._running_rank(trainer)
            return 0 if trainer.is_leader and rank == 0 else None
        return trainer.place

    def _place(self) -> TurnPlace | None:
        turn = self._trainer.steps.est_step if self._trainer is not None else None
        if turn is None:
            return None
        return TurnPlace(turn.step, turn.micro, turn.rank, first=turn.slot == 0 and turn.guest is None)

    def _leads(self) -> bool:
        return self._trainer is not None and self._trainer.joined and self._trainer.is_leader

    def _end_after_epoch(self) -> None:
        assert self._trainer is not None
        self._trainer.end_after_epoch()

    def _ring_changes(self) -> bool:
        return self._trainer is not None and self._trainer.ring_changes

    @staticmethod
    def _running_rank(trainer: Trainer) -> int | None:
        est_step = trainer.steps.est_step
        return trainer.interval.est_step if est_step is None else est_step.rank

    def each_rank(self) -> Iterator[int]:
        trainer = self._trainer
        if trainer is None or trainer.steps.est_step is not None:
            raise StepError(
                "job.each_rank was called " + ("in the loader loop" if trainer else "before job.prepare"),
                hint="use it for code between epochs, which runs once in a worker of several ranks",
            )
        return trainer.interval.each_rank()

    @contextlib.contextmanager
    def isolated_rng(self) -> Iterator[None]:
        interval = self._trainer.interval if self._trainer is not None else None
        with super().isolated_rng(), interval.isolated() if interval else contextlib.nullcontext():
            yield

    @property
    def step(self) -> int:  # type: ignore[override]
        """The global step now running; between steps, the next one."""
        if self._trainer is None:
            return 0
        steps = self._trainer.steps
        if steps.est_step is None:
            return self._trainer.applied_step
        return steps.decided_step(steps.est_step)

    @property
    def stepped(self) -> bool:  # type: ignore[override]
        """True if this turn has applied the global step in this worker."""
        steps = self._trainer.steps if self._trainer is not None else None
        if steps is None or steps.est_step is None:
            return False
        steps.est_step.asked_stepped = True
        if steps.est_step.applied:
            steps.once_began()
        return steps.stepped(steps.est_step)

    def prepare(self, *objects: Any, **options: Any) -> Any:
        self._check_unprepared("prepare")
        self._watch.stop()
        try:
            prepared, chosen = PreparedObjects(objects), TrainOptions.of(options)
            check_modules(prepared.model)
            check_schedulers(prepared)
            source = self._open_source(prepared.loader, chosen)
            trainer = build_trainer(
                self._environment, prepared, chosen, source, self._carried, seed=self._seed
            )
        except ElastaneError as error:
            sys.stderr.write(f"elastane: {error.line()}\n")
            raise SystemExit(error.exit_code) from error
        refuse_other_scalers(prepared)
        give_wrapper_names(prepared.model)
        calls, adds = ElasticCalls(trainer), chosen.accumulation_steps > 1
        self._install(trainer, prepared, source, calls, zeroing=adds)
        for optimizer in prepared.optimizers if not adds else ():
            replace_method(optimizer, "zero_grad", set_to_none)
        loader = ElasticLoader(prepared.loader, trainer, source.batches_per_epoch)
        result = tuple(loader if o is prepared.loader else o for o in objects)
        return result[0] if len(result) == 1 else result

    def _prepare_pipeline(self, given: PipelineArguments) -> Any:
        self._check_unprepared("prepare_pipeline")
        self._watch.stop()
        try:
            prepared = given.build(release=True)
            source = self._open_source(given.loader, prepared.options.train)
            built = build_pipeline_trainer(
                self._environment, prepared, source, self._carried, seed=self._seed
            )
        except ElastaneError as error:
            sys.stderr.write(f"elastane: {error.line()}\n")
            raise SystemExit(error.exit_code) from error
        refuse_other_scalers(prepared.objects)
        refuse_clips(prepared.objects.model)
        refuse_partial_state(prepared.units, prepared.optimizer.optimizer)
        calls = PipelineCalls(built.trainer, built.runner)
        self._install(built.trainer, prepared.objects, source, calls, zeroing=False)
        return prepared.returned(
            built.pipe, ElasticLoader(given.loader, built.trainer, source.steps_per_epoch)
        )

    def refuse_another(self) -> None:
        """Raise StepError if the script has been prepared: a process takes part in one training."""
        if self._trainer is not None:
            raise prepared_already("elastane.init")

    def _check_unprepared(self, name: str) -> None:
        if self._trainer is not None:
            raise prepared_already(name)
        if self._ps is not None:
            raise PsModeError(
                f"job.{name} was called beside prepare_ps",
                hint="call one of them",
            )
        if self._task_session is not None:
            raise StepError(
                f"job.{name} was called after job.tasks", hint="a job either trains or leases tasks, not both"
            )

    def _open_source(self, loader: DataLoader[Any], options: TrainOptions) -> BatchSource:
        source = BatchSource(
            loader,
            self.num_ests,
            registry=self._registry,
            accumulation_steps=options.accumulation_steps,
            steps_per_epoch=options.steps_per_epoch,
        )
        self._registry.freeze()
        # Fork data workers before a gRPC channel exists: gRPC's threads and locks do not survive a fork,
        # and the child may hang.
        source.start()
        return source

    def _install(
        self,
        trainer: Trainer,
        prepared: PreparedObjects,
        source: BatchSource,
        calls: ElasticCalls,
        *,
        zeroing: bool,
    ) -> None:
        """Let the script's calls reach its trainer. zeroing: zero_grad and clipping too."""
        trainer.sampler_epoch = watch_set_epoch(prepared.loader)
        intercept(prepared, calls, zeroing=zeroing)
        refuse_new_groups(prepared)
        self._trainer = trainer
        self._epoch_values = EpochValues(prepared, source.registry.objects)
        self._note_schedules(prepared, source.steps_per_epoch)
        self._order_warning = source.order_warning()

    def epochs(self, count: int, *, max_steps: int | None = None, progress: bool = True) -> Iterator[int]:
        if self._trainer is None:
            raise StepError("job.epochs was called before job.prepare")
        trainer = self._trainer
        self._training = True
        trackers = TrackerProcesses(
            self._trackers,
            job=self._environment.job,
            master=self._environment.master,
            worker_id=self._environment.worker_id,
            timeout_seconds=self._environment.master_timeout_seconds,
        )
        trainer.join(
            count,
            checked_max_steps(max_steps),
            trackers=trackers,
            shows_progress=self._shows_progress(progress),
        )
        if trainer.is_leader and trainer.applied_step == 0:
            self._warn_of_schedules(count)
            if self._order_warning:
                _log.warning(self._order_warning)
        assert self._epoch_values is not None
        self._epoch_values.begin(
            sys._getframe(1),
            trainer.current_epoch,
            leads=trainer.is_leader,
            lost=trainer.values_lost and trainer.applied_step < trainer.total_steps,
        )
        try:
            while True:
                while trainer.applied_step < trainer.total_steps and not trainer.ended_early:
                    trainer.epoch = trainer.values_epoch = trainer.current_epoch
                    if trainer.values_lost:
                        self._epoch_values.refuse_lost(trainer.epoch)
                    yield trainer.epoch
                    distributed_calls.check()
                    trainer.close_epoch(trainer.epoch)
                    trainer.values_epoch = trainer.epoch + 1
                if self._end(trainer, trackers, ""):
                    return
        except GeneratorExit:
            when_left(lambda place: self._end_at(trainer, trackers, place))
            raise

    def _end_at(self, trainer: Trainer, trackers: TrackerProcesses, left_at: str) -> None:
        """End training where the script has left its loop over epochs. Raises StepError if the job has gone
        back to an earlier step meanwhile: the loop is over, so only a new process can train on."""
        if not self._end(trainer, trackers, left_at):
            raise StepError(
                f"the job went back to step {trainer.applied_step} after the loop over epochs was left at"
                f" {left_at}",
                hint="the master restarted with a store that has lost the last steps; start the worker again",
            )

    def _end(self, trainer: Trainer, trackers: TrackerProcesses, left_at: str) -> bool:
        """End training; False if the job goes back to an earlier step instead, from which it must go on.

        left_at: where the script left its loop over epochs; empty if the loop ran to its end.
        """
        ends_early = left_at or trainer.ended_early
        if not (trainer.end_early(left_at) if ends_early else trainer.finish()):
            return False
        if not trackers.finish(trainer.applied_step, meanwhile=trainer.finish):
            trackers.lead(trainer.is_leader)
            return False
        directory, step, leads = self._environment.report_dir, trainer.applied_step, trainer.is_leader
        if directory and isinstance(trainer.state, TrainState):
            write_elastic_report(self._environment, trainer.state, step=step, is_leader=leads)
        elif directory and isinstance(trainer.state, PipelineState):
            worker, found = self._environment.worker_id, pieces(trainer.state.units)
            write_pipeline_report(
                directory, f"elastic-{worker}", found, worker=worker, leader=leads, step=step
            )
        return True

    def log(self, **values: Any) -> None:
        if self._trainer is None:
            raise StepError("job.log was called before job.prepare")
        self._trainer.steps.log(values)

    def register(self, name: str, value: Any) -> None:
        super().register(name, value)
        if is_metric(value) and self.num_ests > 1:
            distributed_calls.know("torchmetrics")
            launcher_variables.know("torchmetrics")
            synchronize_by(value, lambda: self._states_of_ranks(value, "gather"))

    def _gathered(self, name: str, asked: str) -> list[bytes]:
        trainer = self._trainer
        if trainer is None or not trainer.joined:
            raise StepError(
                f"job.{asked} was called before job.epochs", hint="call it in the loop over job.epochs"
            )
        if isinstance(trainer.state, PipelineState):
            raise UnsupportedError(
                f"job.{asked} in a pipeline: its workers are stages, not ranks",
                hint="job.log: trackers and `elastane curve` have the mean over the ranks",
            )
        part = ITEM + name
        rank, own = trainer.contexts_to_gather(asked)
        if self._registry.captured(name) != own[rank].parts[part]:
            raise StepError(
                f"{name!r} was changed after the loader loop, or after backward(): job.{asked} has what the"
                " ranks had then",
                hint=f"call job.{asked} before it is reset or changed",
                item=name,
            )
        step = own[rank].step
        try:
            return [
                own[other].parts[part] if other in own else self._context_of(other, step).parts[part]
                for other in range(self.num_ests)
            ]
        except RequestRefusedError as error:
            if error.reason != "not_found":
                raise
            trainer.start_anew(f"job.{asked}: the job has gone on or back without this worker: {error}")

    def _context_of(self, rank: int, step: int) -> EstContext:
        """Read the context of an EST of another worker."""
        if self._client is None:
            seconds = self._environment.master_timeout_seconds
            self._client = MasterClient(self._environment.master, timeout_seconds=seconds)
        return EstContext.from_proto(self._client.get_context(self._environment.job, rank, step))

    def _pushing(self, ahead: int) -> PushingTasks | None:
        return None if self._ps is None else PushingTasks(self._ps, ahead, own_seeds=self._ps.journal)

    def _prepare_ps(self, given: PsArguments) -> PreparedPs:
        if self._trainer is not None:
            raise PsModeError("job.prepare_ps was called beside job.prepare", hint="call one of them")
        self._watch.stop()
        try:
            return prepare_remote(self._environment, given, self._seed or 0, self._require_open)
        except ElastaneError as error:
            sys.stderr.write(f"elastane: {error.line()}\n")
            raise SystemExit(error.exit_code) from error

    def _require_open(self) -> None:
        if self._task_session is not None:
            self._task_session.require_open()

    def tasks(
        self, dataset: str, *, size: int, task_size: int, **settings: Any
    ) -> Iterator[LeasedTask | PushTask]:
        if self._trainer is not None:
            raise StepError(
                "job.tasks was called after job.prepare", hint="a job either trains or leases tasks, not both"
            )
        if self._task_session is None:
            self._task_session = TaskSession(self._environment)
        return lease_tasks(
            self._environment,
            self._task_session,
            dataset,
            size=size,
            task_size=task_size,
            seed=self._seed or 0,
            pushes=self._pushing(settings.get("prefetch", 0)),
            **settings,
        )
