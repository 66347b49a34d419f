"""A master of canned answers behind real gRPC: what the client and the commands are tested against."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2, timestamp_pb2
from google.rpc import code_pb2, status_pb2
from grpc_status import rpc_status

from elastane_proto.v1 import (
    errors_pb2,
    job_pb2,
    job_pb2_grpc,
    metric_pb2,
    metric_pb2_grpc,
    ring_pb2,
    ring_pb2_grpc,
    shard_pb2,
    shard_pb2_grpc,
)
from spoken_version import TellsVersion


def refuse(
    context: grpc.ServicerContext,
    reason: errors_pb2.ErrorReason,
    message: str,
    *,
    code: int = code_pb2.FAILED_PRECONDITION,
    hint: str = "",
    retryable: bool = False,
    **facts: str,
) -> None:
    """End the call as a master does."""
    detail = any_pb2.Any()
    detail.Pack(errors_pb2.ErrorDetail(reason=reason, hint=hint, facts=facts, retryable=retryable))
    status = status_pb2.Status(code=code, message=message, details=[detail])
    context.abort_with_status(rpc_status.to_status(status))


def running_job(name: str = "train") -> job_pb2.Job:
    """Two workers with two ESTs each, in the second epoch."""
    job = job_pb2.Job(
        name=name,
        settings=job_pb2.JobSettings(ests=4, workers_min=1, workers_max=4),
        phase=job_pb2.JOB_PHASE_RUNNING,
        reason="2 workers",
        generation=3,
        step=12,
        epoch=1,
        steps_per_epoch=10,
        epochs=3,
        saved_step=-1,
        revision=7,
    )
    for number in range(2):
        worker = job.workers.add(
            worker_id=f"w{number}",
            state=job_pb2.WORKER_STATE_MEMBER,
            applied_step=12,
            host="here",
            pid=100 + number,
            reason="joined",
        )
        worker.ests.start, worker.ests.end = 2 * number, 2 * number + 2
        worker.last_heard.GetCurrentTime()
    return job


class FakeMaster(
    job_pb2_grpc.JobServiceServicer,
    ring_pb2_grpc.RingServiceServicer,
    shard_pb2_grpc.ShardServiceServicer,
    metric_pb2_grpc.MetricServiceServicer,
):
    """Canned state, and a record of every request."""

    def __init__(self) -> None:
        self.jobs = {"train": running_job()}
        self.requests: list[Any] = []
        self.decisions: list[job_pb2.ScalingDecision] = []  # of a dry run
        self.fail_next: list[Any] = []  # callables taking the context, one per call to come
        self.events = [
            ring_pb2.Event(
                sequence=number,
                time=timestamp_pb2.Timestamp(seconds=1_700_000_000 + number),
                kind="worker_lost" if number == 2 else "worker_joined",
                worker_id=f"w{number}",
                reason=f"reason {number}",
                generation=1,
                step=number,
            )
            for number in range(1, 4)
        ]
        self.event_streams_broken = 0
        #: What a stream that follows brings before it is refused; None: nothing, and it stands.
        self.events_followed: list[ring_pb2.Event] | None = None
        #: Of each stream that follows: set, it breaks.
        self.following: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        self.progress: list[list[shard_pb2.Progress]] = [
            [_progress(done=2, todo=1, doing=1)],
            [_progress(done=4, todo=0, doing=0, complete=True)],
        ]
        self.history: list[shard_pb2.AuditEntry] = []
        self.series = [
            metric_pb2.Series(
                name="loss",
                points=[
                    metric_pb2.Point(step=step, steps=1, mean=2.0 / (step + 1), last=2.0 / (step + 1))
                    for step in range(12)
                ],
            )
        ]
        self.steps: list[metric_pb2.StepValues] = []
        self.figures: dict[str, ring_pb2.WorkerFigures] = {}
        self.resources: dict[str, list[ring_pb2.ResourceSample]] = {}
        self.address = ""
        self.page_entries = 3
        self._changed = threading.Condition()

    def _seen(self, request: Any, context: grpc.ServicerContext) -> None:
        self.requests.append(request)
        if self.fail_next:
            self.fail_next.pop(0)(context)

    def _job(self, name: str, context: grpc.ServicerContext) -> job_pb2.Job:
        if name not in self.jobs:
            refuse(
                context,
                errors_pb2.ERROR_REASON_NOT_FOUND,
                f"no job {name!r}",
                code=code_pb2.NOT_FOUND,
                hint="look with elastane jobs",
                job=name,
            )
        return self.jobs[name]

    # ------------------------------------------------------------------ JobService

    def Create(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        created = request.name not in self.jobs
        new = job_pb2.Job(name=request.name, settings=request.settings, phase=job_pb2.JOB_PHASE_WAITING)
        self.jobs.setdefault(request.name, new)
        return job_pb2.JobServiceCreateResponse(job=self.jobs[request.name], created=created)

    def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        return job_pb2.JobServiceGetResponse(job=self._job(request.name, context))

    def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        return job_pb2.JobServiceListResponse(jobs=self.jobs.values())

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self._seen(request, context)
        context.add_callback(self._wake)
        revision = -1
        while context.is_active():
            job = self._job(request.name, context)
            if job.revision != revision:
                revision = job.revision
                yield job_pb2.JobServiceWatchResponse(job=job)
            with self._changed:
                while job.revision == revision and context.is_active():
                    self._changed.wait()

    def change(self, name: str, **fields: Any) -> None:
        """Set fields of a job (workers_max among them) and tell who watches."""
        job = self.jobs[name]
        with self._changed:
            for field, value in fields.items():
                setattr(job.settings if field.startswith("workers_") else job, field, value)
            job.revision += 1
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def Scale(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        job = self._job(request.name, context)
        if request.HasField("scaling"):
            if not request.dry_run:
                job.settings.scaling = job.scaling.mode = request.scaling
            return job_pb2.JobServiceScaleResponse(job=job, decisions=self.decisions)
        job.settings.workers_min, job.settings.workers_max = request.workers_min, request.workers_max
        return job_pb2.JobServiceScaleResponse(job=job)

    def Suspend(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        job = self._job(request.name, context)
        job.phase, job.reason = job_pb2.JOB_PHASE_SUSPENDED, "on request"
        return job_pb2.JobServiceSuspendResponse(job=job)

    def Resume(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        return job_pb2.JobServiceResumeResponse(job=self._job(request.name, context))

    def Cancel(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        return job_pb2.JobServiceCancelResponse(job=self._job(request.name, context))

    def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        job = self._job(request.name, context)
        if job.phase == job_pb2.JOB_PHASE_RUNNING and not request.force:
            refuse(context, errors_pb2.ERROR_REASON_WRONG_PHASE, "the job is running")
        del self.jobs[request.name]
        return job_pb2.JobServiceDeleteResponse()

    def SetPrices(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        job = self._job(request.name, context)
        for name in ("spot_price_micros", "on_demand_price_micros"):
            if request.HasField(name):
                setattr(job.cost, name, getattr(request, name))
        return job_pb2.JobServiceSetPricesResponse(job=job)

    def DrainWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        return job_pb2.JobServiceDrainWorkerResponse(job=self._job(request.name, context))

    def Checkpoint(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        return job_pb2.JobServiceCheckpointResponse(step=13, url="file:///saved")

    # ------------------------------------------------------------------ RingService

    def GetWorkerFigures(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        self._job(request.job, context)
        wanted = {worker: self.figures[worker] for worker in request.worker_ids if worker in self.figures}
        return ring_pb2.GetWorkerFiguresResponse(figures=wanted)

    def GetWorkerResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        known = [
            ring_pb2.WorkerResources(worker_id=worker, samples=self.resources[worker])
            for worker in request.worker_ids or self.resources
            if worker in self.resources
        ]
        return ring_pb2.GetWorkerResourcesResponse(workers=known)

    def WatchEvents(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self._seen(request, context)
        self._job(request.job, context)
        for event in self.events:
            if event.sequence >= request.since:
                yield ring_pb2.WatchEventsResponse(event=event)
                if self.event_streams_broken:
                    self.event_streams_broken -= 1
                    context.abort(grpc.StatusCode.UNAVAILABLE, "going down")
        if request.follow and self.events_followed is not None:
            for event in self.events_followed:
                yield ring_pb2.WatchEventsResponse(event=event)
            refuse(context, errors_pb2.ERROR_REASON_WRONG_PHASE, "no more")
        if request.follow:
            over = threading.Event()
            if not context.add_callback(over.set):
                return  # the caller has left already
            self.following.put(over)
            over.wait()
            if context.is_active():
                context.abort(grpc.StatusCode.UNAVAILABLE, "going down")

    # ------------------------------------------------------------------ ShardService

    def GetProgress(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        return shard_pb2.GetProgressResponse(datasets=self.progress[0])

    def WatchProgress(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self._seen(request, context)
        for datasets in self.progress:
            yield shard_pb2.WatchProgressResponse(datasets=datasets)

    def GetAuditLog(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        start = int(request.page_token or 0)
        end = start + self.page_entries
        token = str(end) if end < len(self.history) else ""
        return shard_pb2.GetAuditLogResponse(entries=self.history[start:end], next_page_token=token)

    # ------------------------------------------------------------------ MetricService

    def GetSeries(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        found = [one for one in self.series if one.name in request.names or not request.names]
        return metric_pb2.GetSeriesResponse(series=found, step=12)

    def WatchSeries(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self._seen(request, context)
        yield metric_pb2.WatchSeriesResponse(series=self.series, step=12)
        gone = threading.Event()
        context.add_callback(gone.set)
        gone.wait()

    def WatchSteps(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self._seen(request, context)
        created = self.jobs[request.job].created
        yield metric_pb2.WatchStepsResponse(token=request.after, job_created=created)
        yield metric_pb2.WatchStepsResponse(steps=self.steps, token="9-0", job_created=created)


def _progress(*, done: int, todo: int, doing: int, complete: bool = False) -> shard_pb2.Progress:
    progress = shard_pb2.Progress(
        dataset="digits", epoch=0, epochs=1, todo=todo, doing=doing, done=done, total=4, requeued=1,
        samples_done=done * 10, samples_per_second=5.0, complete=complete,
    )  # fmt: skip
    progress.eta.seconds = 0 if complete else 4
    return progress


@contextmanager
def serving(master: FakeMaster, address: str = "127.0.0.1:0") -> Iterator[str]:
    """The master on a port of this machine; gives its address."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), interceptors=[TellsVersion()])
    job_pb2_grpc.add_JobServiceServicer_to_server(master, server)
    ring_pb2_grpc.add_RingServiceServicer_to_server(master, server)
    shard_pb2_grpc.add_ShardServiceServicer_to_server(master, server)
    metric_pb2_grpc.add_MetricServiceServicer_to_server(master, server)
    port = server.add_insecure_port(address)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
