"""The training service of one master: taken over and given up together with the jobs of its store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from redis.exceptions import RedisError

from elastane_common.cancellation import cancel
from elastane_common.errors import ElastaneError
from elastane_common.record_writing import RunFacts
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs import machine as runs_machine
from elastane_master.decisions.runs import views
from elastane_master.decisions.runs.effects import CancelElasticJob, CreateElasticJob, WriteRecord
from elastane_master.decisions.runs.events import (
    DataResolved,
    ElasticJobEnded,
    ElasticJobScaled,
    MasterStarted,
    RecordWritten,
    RunDeleted,
)
from elastane_master.decisions.runs.machine import RunsMachine
from elastane_master.decisions.runs.run import OVER, Run
from elastane_master.decisions.runs.state import FAIR_SHARE, ServiceSettings
from elastane_master.decisions.runs.views import RunView
from elastane_master.decisions.snapshot_version import version_of
from elastane_master.decisions.state import JobState
from elastane_master.errors import MachineBroken
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.limits import Limits
from elastane_master.runs import records
from elastane_master.runs.artifacts import RunArtifacts
from elastane_master.runs.code_archives import CodeArchives
from elastane_master.runs.data_service import FILE_URL, DataService
from elastane_master.runs.datasets import Datasets
from elastane_master.runs.elastic_jobs import ElasticJobs, settings_of
from elastane_master.runs.forecasts import Forecasts
from elastane_master.runs.record_writer import EndedRun, RecordWriter
from elastane_master.runs.run_progress import run_progress
from elastane_master.runs.run_server import RunServer, RunServerOwner
from elastane_master.runs.scheduler import RunScheduler
from elastane_master.store.errors import (
    Damage,
    Fenced,
    HeldError,
    JobDamaged,
    JobTooNew,
    StoreError,
    StoreFormatUnknown,
)
from elastane_master.store.keys import RUNS, RUNS_STORED_KEY, JobKeys
from elastane_master.store.log import JobLog, LogOptions
from elastane_proto.v1 import training_pb2

logger = structlog.get_logger(__name__)
STORE_RETRY_SECONDS = 1.0

OVERDUE_SECONDS = 60.0
"""Interval of checks for finished runs that are kept no longer."""

SWEEP_SECONDS = 3600.0
"""Interval of checks for code archives that no run needs."""


@dataclass(frozen=True)
class ServiceOptions:
    """Settings of the training service.

    artifact_url: fsspec URL of the folder of code archives and artifacts. dataset_root: of the folder of all
    datasets; empty: submissions name a URL. data_service: HOST:PORT of the service that prepares datasets;
    empty: none. data_service_url: URL of what it names. settings: what decisions depend on.
    """

    artifact_url: str = ""
    dataset_root: str = ""
    data_service: str = ""
    data_service_url: str = FILE_URL
    settings: ServiceSettings = field(default_factory=ServiceSettings)


class TrainingRuns(RunServerOwner):
    """Runs and runners of a master's store. A companion of its jobs; used from one event loop.

    message_of: makes the message of a run and its artifact URL, for records.
    """

    def __init__(
        self,
        jobs: JobServers,
        options: ServiceOptions,
        log_options: LogOptions,
        limits: Limits,
        message_of: Callable[[RunView, str], training_pb2.Run],
    ) -> None:
        self.name = RUNS
        self._message_of = message_of
        self.options = options
        self._jobs = jobs
        self._log_options = replace(log_options, state_version=runs_machine.VERSION, version_of=version_of)
        self._limits = limits
        self._server: RunServer | None = None
        self._held: HeldError | None = None
        self._elastic_jobs = ElasticJobs(jobs, self._job_ended, self._job_scaled)
        self.forecasts = Forecasts(jobs)
        self._records = RecordWriter(self._ended_run, self._record_written)
        service = None
        if options.data_service:
            service = DataService(options.data_service, options.data_service_url)
        self.datasets = Datasets(options.dataset_root, service=service)
        self.artifacts = RunArtifacts(options.artifact_url)
        self.code_archives = CodeArchives(options.artifact_url, self._archives_used)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def server(self) -> RunServer:
        """The server of the runs. Raises Rejection while this master does not serve, and HeldError."""
        self._jobs.require_serving()
        if self._held is not None:
            raise self._held.with_traceback(None)
        if self._server is None:
            raise Rejection("store_unavailable", "the runs are not served yet", hint="ask again in a moment")
        return self._server

    # ---------------------------------------------------------------- with the jobs

    async def read(self, may_lead: Callable[[], bool]) -> None:
        """Take the runs over. Raises StoreError and redis errors."""
        self._server, self._held = None, None
        try:
            self._server, _ = await self._open(accept_loss=False)
        except (JobDamaged, JobTooNew) as error:
            self._hold(error)

    async def repair(self, *, accept_loss: bool) -> tuple[Damage, ...]:
        """Serve runs that are held; return the accepted damages, () if they are served. Raises StoreError."""
        if self._held is None:
            return ()
        try:
            server, accepted = await self._open(accept_loss=accept_loss)
        except (JobDamaged, JobTooNew) as error:
            self._hold(error)
            raise
        self._jobs.require_serving()
        self._server, self._held = server, None
        await self.serve()
        logger.warning("the runs are served again", lost="; ".join(str(damage) for damage in accepted))
        return accepted

    async def _open(self, *, accept_loss: bool) -> tuple[RunServer, tuple[Damage, ...]]:
        """Take the log over, and replay it; with accept_loss as far as that is possible."""
        redis = self._jobs.store.redis
        is_stored = bool(await redis.exists(RUNS_STORED_KEY))
        log, recovered = await JobLog.open(redis, RUNS, self._log_options, accept_loss=accept_loss)
        accepted = recovered.damages
        if is_stored and not recovered.exists:
            gone = Damage(JobKeys.of(RUNS).fence, 1, "it and every other key are gone")
            if not accept_loss:
                raise JobDamaged(RUNS, [gone])
            accepted = (*accepted, gone)
        try:
            machine = self._replayed(recovered.snapshot, recovered.records)
        except JobDamaged as error:
            if not accept_loss:
                raise
            accepted = (*accepted, *error.damages)
            machine = RunsMachine.create(self.options.settings)
        log.measures = self._jobs.opening.measures
        return RunServer(machine, log, self._jobs.clock, self, self._limits), accepted

    async def serve(self) -> None:
        """Serve the runs that were read."""
        if self._server is None:
            return
        await self._server.start(self._started())
        redis: Any = self._jobs.store.redis
        await redis.set(RUNS_STORED_KEY, "1", nx=True)
        self._tasks = [
            asyncio.create_task(self._note_artifact_url(self._server), name="artifact URL"),
            asyncio.create_task(self._watch_datasets(self._server), name="datasets of runs"),
            asyncio.create_task(self._keep_deleting(self._server), name="finished runs"),
            asyncio.create_task(self._keep_sweeping(self._server), name="code archives"),
        ]
        policy = self.options.settings.scheduling_policy
        if policy != FAIR_SHARE:
            scheduler = RunScheduler(self._server, policy, lambda state: run_progress(state, self._job_state))
            self._tasks.append(asyncio.create_task(scheduler.run(), name="scheduling policy"))

    async def _note_artifact_url(self, server: RunServer) -> None:
        """Store where the artifacts are, and warn if the master before had others. Storage may be slow."""
        redis: Any = self._jobs.store.redis
        url, mark = self.options.artifact_url, await self.artifacts.mark()
        while True:
            try:
                await server.confirm()  # that no other master has taken over
                stored = (await redis.set(RUNS_STORED_KEY, f"{mark}#{url}", get=True) or b"").decode()
                break
            except (Rejection, StoreError, RedisError, OSError):
                await asyncio.sleep(STORE_RETRY_SECONDS)
        mark_before, known, url_before = stored.partition("#")
        changed = url_before != url or (mark and mark_before and mark_before != mark)
        if known and changed and server.machine.state.runs:
            logger.warning(
                "models and logs of earlier runs are elsewhere: the artifact URL or its folder has changed",
                before=url_before,
                now=url,
                hint="give all masters of a store the same --artifact-url, which all of them reach",
            )

    async def stop(self, refusal: Rejection) -> None:
        await self._quiet()
        if self._server is not None:
            await self._server.stop(refusal)

    def pause(self, refusal: Rejection) -> None:
        if self._server is not None:
            self._server.pause(refusal)

    def resume(self) -> None:
        if self._server is not None and self._server.log.failure is None:
            self._server.resume(self._started())

    async def abandon(self, refusal: Rejection) -> None:
        await self._quiet()
        if self._server is not None:
            server, self._server = self._server, None
            await server.abandon(refusal)

    def is_fenced(self) -> bool:
        return self._server is not None and isinstance(self._server.log.failure, Fenced)

    async def _quiet(self) -> None:
        await cancel(*self._tasks)
        self._tasks = []
        await self._elastic_jobs.close()
        await self.datasets.close()
        await self._records.close()

    def _started(self) -> MasterStarted:
        return MasterStarted(self._jobs.master, self.options.settings)

    def _replayed(self, snapshot: bytes | None, stored: list[bytes]) -> RunsMachine:
        try:
            machine = (
                RunsMachine.restore(snapshot)
                if snapshot is not None
                else RunsMachine.create(self.options.settings)
            )
            # Deadlines are in the state: on a machine whose clock is behind they would lie far away.
            self._jobs.clock.at_least(machine.state.decided_at)
            for record in stored:
                event = records.decode_event(record)
                machine.handle(event.event, event.now)
                self._jobs.clock.at_least(event.now)
        except Exception as error:  # bytes that were spoiled can contradict each other in any way
            unknown = error if isinstance(error, StoreFormatUnknown) else repr(error)
            damage = Damage(JobKeys.of(RUNS).snapshot, 0, f"the stored state is inconsistent: {unknown}")
            raise JobDamaged(RUNS, [damage]) from error
        return machine

    def _hold(self, error: HeldError) -> None:
        self._held = error
        logger.error("the runs are held and not served", error=str(error), hint=error.hint, **error.facts)

    # ---------------------------------------------------------------- datasets

    async def _watch_datasets(self, server: RunServer) -> None:
        """Ask again for the datasets that runs wait for."""

        def waiting() -> list[Run]:
            machine = server.machine
            return [machine.state.runs[run_id] for run_id in sorted(machine.index.waiting_data)]

        while True:
            seen = server.changed.count
            for run in waiting():
                if run.spec.dataset is None:
                    continue
                verdict, url, reason = await self.datasets.resolve(run.spec.dataset)
                try:
                    await server.submit(DataResolved(run.run_id, verdict, url, reason))
                except (Rejection, StoreError, RedisError, MachineBroken) as error:
                    logger.info(
                        "a change of a dataset could not be recorded", run=run.run_id, error=str(error)
                    )
            if waiting():
                await asyncio.sleep(self.datasets.poll_seconds)
            else:
                await server.changed.beyond(seen)

    # ---------------------------------------------------------------- retention

    async def _keep_deleting(self, server: RunServer) -> None:
        while True:
            await asyncio.sleep(OVERDUE_SECONDS)
            await self.delete_overdue(server)

    async def delete_overdue(self, server: RunServer) -> None:
        """Delete finished runs that are kept no longer, with their logs; models and records stay."""
        for run_id in views.overdue(server.machine, self._jobs.finished.retention, server.clock()):
            try:
                await self.artifacts.remove_logs(run_id)
                await server.submit(RunDeleted(run_id))
                logger.info("finished run deleted", run=run_id, reason="kept no longer")
            except (Rejection, StoreError, RedisError, MachineBroken) as error:
                logger.info("a finished run could not be deleted yet", run=run_id, error=str(error))

    async def _keep_sweeping(self, server: RunServer) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep_archives(server)

    async def sweep_archives(self, server: RunServer) -> None:
        """Remove code archives that no run needs; none while it is unsure that these are all runs."""
        try:
            await self.code_archives.sweep(server.confirm)
        except (ElastaneError, Rejection, StoreError, RedisError, OSError) as error:
            logger.info("code archives could not be removed yet", error=str(error))

    def _archives_used(self) -> Collection[str]:
        if self._server is None:
            return ()
        return {
            run.spec.code.archive_sha256
            for run in self._server.machine.state.runs.values()
            if run.spec.code is not None and run.spec.code.archive_sha256 is not None
        }

    # ---------------------------------------------------------------- elastic jobs

    def create_job(self, effect: CreateElasticJob) -> None:
        run = self._server.machine.state.runs.get(effect.run_id) if self._server is not None else None
        if run is not None:
            settings = settings_of(run, self.artifacts.checkpoint_url(run.run_id))
            self._elastic_jobs.create(effect.run_id, effect.job, settings)

    def cancel_job(self, effect: CancelElasticJob) -> None:
        self._elastic_jobs.cancel(effect.run_id, effect.job)

    def _job_ended(self, event: ElasticJobEnded) -> None:
        if self._server is None:
            return
        try:
            self._server.begin(event)
        except (Rejection, StoreError, MachineBroken) as error:
            logger.warning("the end of a run's job could not be recorded", job=event.job, error=str(error))

    def _job_scaled(self, event: ElasticJobScaled) -> None:
        if self._server is None:
            return
        try:
            self._server.begin(event)
        except (Rejection, StoreError, MachineBroken) as error:
            logger.warning("the target of a run's job could not be recorded", job=event.job, error=str(error))

    def _job_state(self, job: str) -> JobState | None:
        try:
            return self._jobs.get(job).machine.state
        except (Rejection, StoreError):
            return None

    # ---------------------------------------------------------------- records

    def write_record(self, effect: WriteRecord) -> None:
        self._records.begin(effect.run_id)

    def _ended_run(self, run_id: int) -> EndedRun | None:
        """Return a run that is over, and what is known of it."""
        server = self._server
        view = views.run_view(server.machine, run_id, server.clock()) if server is not None else None
        if view is None or view.state not in OVER:
            return None
        url = self.artifacts.run_url(run_id)
        return EndedRun(RunFacts(self._message_of(view, url)), url, view.data_url)

    def _record_written(self, run_id: int) -> None:
        if self._server is None:
            return
        try:
            self._server.begin(RecordWritten(run_id))
        except (Rejection, StoreError, MachineBroken) as error:
            logger.info("that a run's record is written could not be recorded", run=run_id, error=str(error))

    # ---------------------------------------------------------------- from the server

    def server_failed(self, server: RunServer, error: StoreError) -> None:
        if not isinstance(error, JobDamaged):
            self._jobs.lead_lost(error)
        elif server is self._server:
            self._server = None
            for task in self._tasks:  # what they would remove may be needed by runs that are not known now
                task.cancel()
            self._hold(error)

    def store_reachable(self, server: RunServer, reachable: bool) -> None:
        self._jobs.store_reachable(server, reachable)

    async def revive_store(self) -> None:
        await self._jobs.revive_store()

    async def store_mended(self) -> None:
        redis: Any = self._jobs.store.redis
        await redis.set(RUNS_STORED_KEY, "1", nx=True)
