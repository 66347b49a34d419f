"""Blocking client of the master's unary services: for agent, CLI, demo and tests.

Calls are retried, and watches resume after a break where they were (`connection`). Writes carry a request id,
so a repeated one takes effect once. A refusal by the master is raised as `RequestRefusedError`, no answer at
all as `MasterUnreachableError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from google.protobuf import duration_pb2

from elastane_common.client_errors import ClientClosedError, RequestRefusedError
from elastane_common.connection import ATTEMPT_SECONDS, MasterConnection, new_request_id
from elastane_proto.v1 import (
    capture_pb2,
    capture_pb2_grpc,
    common_pb2,
    context_pb2,
    context_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    log_pb2,
    log_pb2_grpc,
    ps_pb2,
    ps_pb2_grpc,
    ring_pb2,
    ring_pb2_grpc,
    shard_pb2,
    shard_pb2_grpc,
)

#: Page size of a list: half a megabyte, since a master of 100,000 jobs also has other callers.
JOBS_IN_A_PAGE = 2000
#: Time for a part of a capture: the master answers once the command has room for it.
DELIVER_SECONDS = 60.0
#: Number of jobs named in an error that asks the caller to choose one.
JOBS_NAMED = 20


class MasterClient(MasterConnection):
    """A master, or whichever of several leads now. Arguments: see `MasterConnection`. Thread-safe."""

    # ------------------------------------------------------------------ jobs

    def create_job(
        self, name: str, settings: job_pb2.JobSettings, request_id: str | None = None
    ) -> tuple[job_pb2.Job, bool]:
        """Create a job, or find the one of that name with equal settings; returns (job, created)."""
        request = job_pb2.JobServiceCreateRequest(
            name=name, settings=settings, request_id=request_id or new_request_id()
        )
        response = self.call(job_pb2_grpc.JobServiceStub, "Create", request)
        return response.job, response.created

    def get_job(self, name: str) -> job_pb2.Job:
        """Return one job with its workers."""
        request = job_pb2.JobServiceGetRequest(name=name)
        return self.call(job_pb2_grpc.JobServiceStub, "Get", request).job

    def list_jobs(self) -> list[job_pb2.Job]:
        """Return all jobs of the master, by name."""
        return list(self.iter_jobs())

    def iter_jobs(self) -> Iterator[job_pb2.Job]:
        """Iterate over all jobs of the master, by name; fetches a page at a time."""
        page_token = ""
        while True:
            request = job_pb2.JobServiceListRequest(page_size=JOBS_IN_A_PAGE, page_token=page_token)
            response = self.call(job_pb2_grpc.JobServiceStub, "List", request)
            yield from response.jobs
            page_token = response.next_page_token  # an older master gives all, and no token
            if not page_token:
                return

    def only_job(self, name: str | None) -> str:
        """Return `name`, or the name of the only job.

        Raises RequestRefusedError if there are none or several.
        """
        if name:
            return name
        names = sorted(job.name for job in islice(self.iter_jobs(), JOBS_NAMED + 1))
        if len(names) == 1:
            return names[0]
        if not names:
            raise RequestRefusedError(
                "the master has no job", reason="not_found", hint="start one with `elastane run`"
            )
        many = len(names) > JOBS_NAMED
        raise RequestRefusedError(
            f"the master has {f'more than {JOBS_NAMED}' if many else len(names)} jobs",
            reason="not_found",
            hint=f"name one of: {', '.join(names[:JOBS_NAMED])}" + (" and more" if many else ""),
        )

    def scale_job(
        self, name: str, workers_min: int, workers_max: int, request_id: str | None = None
    ) -> job_pb2.Job:
        """Change the minimum and maximum number of workers; takes effect at a step boundary.

        workers_min: 0: unchanged, or workers_max if that is less.
        """
        request = job_pb2.JobServiceScaleRequest(
            name=name,
            workers_min=workers_min,
            workers_max=workers_max,
            request_id=request_id or new_request_id(),
        )
        return self.call(job_pb2_grpc.JobServiceStub, "Scale", request).job

    def scale_job_by_itself(
        self,
        name: str,
        scaling: str,
        workers_min: int = 0,
        workers_max: int = 0,
        *,
        over_budget: str | None = None,
        on_demand_workers: int | None = None,
        spot_policy: str | None = None,
        cold_start_seconds: float | None = None,
        dry_run: bool = False,
        request_id: str | None = None,
    ) -> job_pb2.JobServiceScaleResponse:
        """Set how the master chooses the number of workers, and the limits; 0: limit unchanged.

        scaling: as JobSettings.scaling; "off": use workers_max again. over_budget: "cheapest" or
        "suspend". spot_policy: "wide" or "uniform". None: unchanged. dry_run: change nothing; `decisions` of
        the response show what would be decided.
        """
        request = job_pb2.JobServiceScaleRequest(
            name=name,
            workers_min=workers_min,
            workers_max=workers_max,
            request_id=request_id or new_request_id(),
            scaling=scaling,
            on_demand_workers=on_demand_workers,
            dry_run=dry_run,
        )
        if over_budget is not None:
            request.over_budget = {
                "cheapest": job_pb2.OVER_BUDGET_CHEAPEST,
                "suspend": job_pb2.OVER_BUDGET_SUSPEND,
            }[over_budget]
        if spot_policy is not None:
            request.spot_policy = {
                "wide": job_pb2.SPOT_POLICY_WIDE,
                "uniform": job_pb2.SPOT_POLICY_UNIFORM,
            }[spot_policy]
        if cold_start_seconds is not None:
            request.cold_start.FromNanoseconds(round(cold_start_seconds * 1e9))
        if dry_run:
            # A master that does not know dry runs would set the limits. Without any it refuses the request.
            probe = job_pb2.JobServiceScaleRequest()
            probe.CopyFrom(request)
            probe.workers_min = probe.workers_max = 0
            found = self.call(job_pb2_grpc.JobServiceStub, "Scale", probe)
            if not (workers_min or workers_max):
                return found
        return self.call(job_pb2_grpc.JobServiceStub, "Scale", request)

    def suspend_job(self, name: str, request_id: str | None = None) -> job_pb2.Job:
        """Save a checkpoint, then drain every worker."""
        request = job_pb2.JobServiceSuspendRequest(name=name, request_id=request_id or new_request_id())
        return self.call(job_pb2_grpc.JobServiceStub, "Suspend", request).job

    def resume_job(self, name: str, request_id: str | None = None) -> job_pb2.Job:
        """Resume a suspended job."""
        request = job_pb2.JobServiceResumeRequest(name=name, request_id=request_id or new_request_id())
        return self.call(job_pb2_grpc.JobServiceStub, "Resume", request).job

    def cancel_job(self, name: str, request_id: str | None = None) -> job_pb2.Job:
        """End the job at once; its checkpoints are kept."""
        request = job_pb2.JobServiceCancelRequest(name=name, request_id=request_id or new_request_id())
        return self.call(job_pb2_grpc.JobServiceStub, "Cancel", request).job

    def delete_job(self, name: str, *, force: bool = False, request_id: str | None = None) -> None:
        """Delete a finished job and everything the master keeps of it.

        force: also one that is not finished.
        """
        request = job_pb2.JobServiceDeleteRequest(
            name=name, force=force, request_id=request_id or new_request_id()
        )
        self.call(job_pb2_grpc.JobServiceStub, "Delete", request)

    def set_prices(
        self,
        name: str,
        *,
        spot_price_micros: int | None = None,
        on_demand_price_micros: int | None = None,
        currency: str = "",
        devices: Iterable[job_pb2.DevicePrice] = (),
        expires: datetime | None = None,
        request_id: str | None = None,
    ) -> job_pb2.Job:
        """Set a worker's price per hour, in millionths of the currency; None: unchanged.

        devices: prices by device type, other than those of all types. expires: when newer prices will come.
        """
        request = job_pb2.JobServiceSetPricesRequest(
            name=name,
            spot_price_micros=spot_price_micros,
            on_demand_price_micros=on_demand_price_micros,
            currency=currency,
            devices=devices,
            expires=expires,
            request_id=request_id or new_request_id(),
        )
        return self.call(job_pb2_grpc.JobServiceStub, "SetPrices", request).job

    def drain_worker(
        self, name: str, worker_id: str, request_id: str | None = None, *, reason: str = ""
    ) -> job_pb2.Job:
        """Ask one worker to leave at the next step boundary.

        reason: who requests it, and why; empty: an operator.
        """
        request = job_pb2.JobServiceDrainWorkerRequest(
            name=name, worker_id=worker_id, request_id=request_id or new_request_id(), reason=reason
        )
        return self.call(job_pb2_grpc.JobServiceStub, "DrainWorker", request).job

    def checkpoint_job(
        self, name: str, request_id: str | None = None, *, wait_seconds: float = 600.0
    ) -> job_pb2.JobServiceCheckpointResponse:
        """Request a checkpoint; returns when it is complete, within `wait_seconds`."""
        request = job_pb2.JobServiceCheckpointRequest(name=name, request_id=request_id or new_request_id())
        return self.call(job_pb2_grpc.JobServiceStub, "Checkpoint", request, attempt_seconds=wait_seconds)

    def repair_job(
        self, name: str, *, accept_loss: bool = False, request_id: str | None = None
    ) -> job_pb2.JobServiceRepairResponse:
        """Check a damaged job again. accept_loss: continue without what is lost."""
        request = job_pb2.JobServiceRepairRequest(
            name=name, accept_loss=accept_loss, request_id=request_id or new_request_id()
        )
        return self.call(job_pb2_grpc.JobServiceStub, "Repair", request)

    def watch_job(self, name: str) -> Iterator[job_pb2.Job]:
        """Yield the job now and at each change, until the client is closed."""
        request = job_pb2.JobServiceWatchRequest(name=name)
        for response in self.subscribe(job_pb2_grpc.JobServiceStub, "Watch", lambda: request):
            yield response.job

    # ------------------------------------------------------------------ the ring, events

    def get_context(self, job: str, rank: int, step: int) -> common_pb2.EstContext:
        """Return the context of one EST at the start of `step`.

        Raises RequestRefusedError, reason "not_found", if the contexts of that step are no longer kept.
        """
        request = context_pb2.ContextServiceGetRequest(job=job, virtual_rank=rank, step=step)
        return self.call(context_pb2_grpc.ContextServiceStub, "Get", request).context

    def get_ring(self, job: str) -> ring_pb2.GetRingResponse:
        """Return the current ring."""
        return self.call(ring_pb2_grpc.RingServiceStub, "GetRing", ring_pb2.GetRingRequest(job=job))

    def worker_figures(self, job: str, worker_ids: Iterable[str]) -> Mapping[str, ring_pb2.WorkerFigures]:
        """Return the latest figures of these workers, by id, as far as the master has any."""
        request = ring_pb2.GetWorkerFiguresRequest(job=job, worker_ids=worker_ids)
        return self.call(ring_pb2_grpc.RingServiceStub, "GetWorkerFigures", request).figures

    def worker_resources(
        self, job: str, worker_ids: Iterable[str] = ()
    ) -> Mapping[str, Sequence[ring_pb2.ResourceSample]]:
        """Return what workers used over the last minutes, by id, oldest sample first.

        worker_ids: empty: of all that attend. {} from a master that is too old for it.
        """
        request = ring_pb2.GetWorkerResourcesRequest(job=job, worker_ids=worker_ids)
        try:
            response = self.call(ring_pb2_grpc.RingServiceStub, "GetWorkerResources", request)
        except RequestRefusedError as error:
            if error.reason in ("unimplemented", "permission_denied"):
                return {}
            raise
        return {worker.worker_id: worker.samples for worker in response.workers}

    def events(self, job: str, *, since: int = 0, follow: bool = False) -> Iterator[ring_pb2.Event]:
        """Yield events from a sequence number on; with `follow` new ones too, until the client is closed."""
        next_wanted = since

        def request() -> ring_pb2.WatchEventsRequest:
            return ring_pb2.WatchEventsRequest(job=job, since=next_wanted, follow=follow)

        for response in self.subscribe(ring_pb2_grpc.RingServiceStub, "WatchEvents", request, endless=follow):
            if response.event.sequence >= next_wanted:
                next_wanted = response.event.sequence + 1
                yield response.event

    # ------------------------------------------------------------------ output of workers

    def report_output(self, request: log_pb2.LogServiceReportRequest) -> str:
        """Report output of workers; return the id of the memory in which the master keeps it."""
        return str(self.call(log_pb2_grpc.LogServiceStub, "Report", request).memory)

    def read_output(
        self, job: str, worker_id: str = "", *, lines: int | None = None, follow: bool = False
    ) -> Iterator[log_pb2.LogServiceReadResponse]:
        """Yield the last lines of a worker; with `follow` new ones too, until the job is over.

        worker_id: empty: of all workers. lines: of each to begin with; None: all that the master has.
        """
        after: dict[str, str] = {}

        def request() -> log_pb2.LogServiceReadRequest:
            return log_pb2.LogServiceReadRequest(
                job=job, worker_id=worker_id, lines=lines, follow=follow, after=after
            )

        for response in self.subscribe(log_pb2_grpc.LogServiceStub, "Read", request, endless=False):
            if response.token:
                after[response.worker_id] = response.token
            yield response

    # ------------------------------------------------------------------ captures

    def capture(
        self,
        job: str,
        worker_ids: Iterable[str] = (),
        *,
        trace_steps: int = 0,
        wait_seconds: float | None = None,
    ) -> Iterator[capture_pb2.CaptureServiceCaptureResponse]:
        """Order traces of the next steps, or stacks, from workers, and yield their answers.

        After a broken connection the capture begins again, as another first answer with `worker_ids` shows.
        worker_ids: empty: all. trace_steps: 0: stacks. wait_seconds: how long workers may take.
        """
        request = capture_pb2.CaptureServiceCaptureRequest(
            job=job, worker_ids=worker_ids, trace_steps=trace_steps
        )
        if wait_seconds is not None:
            request.wait.FromNanoseconds(int(wait_seconds * 1e9))
        yield from self.subscribe(
            capture_pb2_grpc.CaptureServiceStub, "Capture", lambda: request, endless=False
        )

    def deliver_capture(self, request: capture_pb2.CaptureServiceDeliverRequest) -> bool:
        """Send a part of a worker's answer; False if nobody waits for it."""
        response = self.call(
            capture_pb2_grpc.CaptureServiceStub, "Deliver", request, attempt_seconds=DELIVER_SECONDS
        )
        return bool(response.wanted)

    # ------------------------------------------------------------------ data

    def create_dataset(
        self,
        job: str,
        dataset: str,
        settings: shard_pb2.DatasetSettings,
        request_id: str | None = None,
    ) -> tuple[shard_pb2.Progress, bool]:
        """Create a dynamic dataset, or find it if its settings are equal; returns (progress, created)."""
        request = shard_pb2.CreateDatasetRequest(
            job=job, dataset=dataset, settings=settings, request_id=request_id or new_request_id()
        )
        response = self.call(shard_pb2_grpc.ShardServiceStub, "CreateDataset", request)
        return response.progress, response.created

    def lease_tasks(self, request: shard_pb2.LeaseTasksRequest) -> shard_pb2.LeaseTasksResponse:
        """Report finished tasks and lease new ones; waits on the server as long as `request.wait` says."""
        if not request.request_id:
            request.request_id = new_request_id()
        wait_seconds = request.wait.ToTimedelta().total_seconds() or 20.0
        return self.call(
            shard_pb2_grpc.ShardServiceStub,
            "LeaseTasks",
            request,
            attempt_seconds=ATTEMPT_SECONDS + wait_seconds,
        )

    def get_progress(self, job: str = "", dataset: str = "") -> list[shard_pb2.Progress]:
        """Return the progress of one dataset, or of all datasets of a job."""
        request = shard_pb2.GetProgressRequest(job=job, dataset=dataset)
        return list(self.call(shard_pb2_grpc.ShardServiceStub, "GetProgress", request).datasets)

    def watch_progress(
        self, job: str = "", dataset: str = "", *, interval_seconds: float = 0.5
    ) -> Iterator[list[shard_pb2.Progress]]:
        """Yield the progress now and whenever it changes, until the client is closed."""
        interval = duration_pb2.Duration()
        interval.FromNanoseconds(int(interval_seconds * 1e9))
        request = shard_pb2.WatchProgressRequest(job=job, dataset=dataset, interval=interval)
        for response in self.subscribe(shard_pb2_grpc.ShardServiceStub, "WatchProgress", lambda: request):
            yield list(response.datasets)

    def list_tasks(
        self, job: str, dataset: str, state: shard_pb2.TaskState | None = None
    ) -> Iterator[shard_pb2.TaskInfo]:
        """Yield the tasks of a dataset, from all pages."""
        request = shard_pb2.ListTasksRequest(job=job, dataset=dataset, state=state, page_size=1000)
        for page in self._pages("ListTasks", request):
            yield from page.tasks

    def audit_log(self, job: str, dataset: str = "") -> Iterator[shard_pb2.AuditEntry]:
        """Yield the committed history in the order of commits, from all pages."""
        request = shard_pb2.GetAuditLogRequest(job=job, dataset=dataset, page_size=1000)
        for page in self._pages("GetAuditLog", request):
            yield from page.entries

    # ------------------------------------------------------------------ parameter servers

    def get_slots(self, job: str) -> ps_pb2.GetSlotsResponse:
        """Return the slots of a job's model, its parameter servers, and the state that limits leases."""
        return self.call(ps_pb2_grpc.SlotServiceStub, "GetSlots", ps_pb2.GetSlotsRequest(job=job))

    def find_slots(self, job: str) -> ps_pb2.GetSlotsResponse | None:
        """As `get_slots`; None without parameter servers, on a master too old for them, or for a held job."""
        try:
            found = self.get_slots(job)
        except RequestRefusedError:
            return None
        return found if found.processes or found.HasField("model") else None

    def slot_map(self, job: str) -> ps_pb2.SlotMap:
        """Return the map of slots, with the secrets of the parameter servers' data ports."""
        request = ps_pb2.WatchMapRequest(job=job)
        for response in self.subscribe(ps_pb2_grpc.SlotServiceStub, "WatchMap", lambda: request):
            return response.map
        raise ClientClosedError("the connection to the master was closed")

    def checkpoint_slots(
        self, job: str, *, in_flight: bool = False, request_id: str | None = None, wait_seconds: float = 600.0
    ) -> ps_pb2.CheckpointSlotsResponse:
        """Save all slots as one checkpoint; returns when it is complete, within `wait_seconds`.

        in_flight: do not wait for tasks in flight; they are listed.
        """
        request = ps_pb2.CheckpointSlotsRequest(
            job=job, in_flight=in_flight, request_id=request_id or new_request_id()
        )
        return self.call(
            ps_pb2_grpc.SlotServiceStub, "CheckpointSlots", request, attempt_seconds=wait_seconds
        )

    def rewind_slots(self, job: str, checkpoint: str, request_id: str | None = None) -> int:
        """Take all slots back to a checkpoint; return the generation of the slot map that orders it."""
        request = ps_pb2.RewindSlotsRequest(
            job=job, checkpoint=checkpoint, request_id=request_id or new_request_id()
        )
        response = self.call(ps_pb2_grpc.SlotServiceStub, "RewindSlots", request)
        return int(response.generation)

    def drain_ps(self, job: str, ps_id: str, *, reason: str = "", request_id: str | None = None) -> None:
        """Ask one parameter server to leave, once its slots have moved."""
        request = ps_pb2.DrainPsRequest(
            job=job, ps_id=ps_id, reason=reason, request_id=request_id or new_request_id()
        )
        self.call(ps_pb2_grpc.SlotServiceStub, "DrainPs", request)

    def _pages(self, method: str, request: Any) -> Iterator[Any]:
        while True:
            page = self.call(shard_pb2_grpc.ShardServiceStub, method, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
