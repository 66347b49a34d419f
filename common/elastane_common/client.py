"""Blocking client of the master's unary services: for agent, CLI, demo and tests.

Every call is retried with backoff, at the next of the masters' addresses, until a stated time has passed; a
master that is being restarted, or another that takes over, is a pause and not an error. Writes carry a
request id, so a repeated one takes effect once. A refusal by the master is raised as `RequestRefusedError`
with its reason, facts and hint, decoded from google.rpc.Status; no answer at all as `MasterUnreachableError`.
NOT_FOUND for a job that a master knew before counts only when it is repeated.

The watches are iterators that subscribe again after a break and continue where they were.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Protocol, TypeVar

import grpc
import tenacity
from google.protobuf import duration_pb2
from grpc_status import rpc_status

from elastane_common.addresses import AddressBook
from elastane_common.backoff import wait_backoff
from elastane_common.credentials import TLS_HINT, credentials_stamp, open_channel
from elastane_common.errors import ElastaneError, MasterUnreachableError, RefusedError
from elastane_common.message_size import size_options
from elastane_proto import versions
from elastane_proto.channels import KEEPALIVE_TIMEOUT_MILLISECONDS, channel_options
from elastane_proto.error_codes import wire_code
from elastane_proto.v1 import (
    context_pb2,
    context_pb2_grpc,
    errors_pb2,
    job_pb2,
    job_pb2_grpc,
    ring_pb2,
    ring_pb2_grpc,
    shard_pb2,
    shard_pb2_grpc,
)

#: Time limit of one attempt of a call that the master answers at once.
ATTEMPT_SECONDS = 10.0

_CHANNEL_OPTIONS = [
    # A restarted master is found when it is needed (`backoff`), not within gRPC's two minutes.
    *channel_options(reconnect_milliseconds_max=200),
    # Without it, a call to a stopped peer whose kernel still answers would wait without end.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MILLISECONDS),
]
#: Protocol version of this client, sent with every call.
_METADATA = ((versions.METADATA_KEY, str(versions.PROTOCOL)),)
#: A watch that lasted longer than connecting takes was connected to a master, which may have had nothing to
#: send: a quiet job has no event for hours.
STOOD_SECONDS = 5.0
#: Upper limit of the backoff after a standby master's answer: another one leads, or soon will.
STANDBY_SECONDS_MAX = 0.5
#: Delay before asking again for a known job that is not found: the default duration of a leader's lease.
NOT_FOUND_SECONDS = 3.0
#: Page size of a list: half a megabyte, since a master of 100,000 jobs also has other callers.
JOBS_IN_A_PAGE = 2000
#: Number of jobs named in an error that asks the caller to choose one.
JOBS_NAMED = 20
MESSAGE_TOO_LARGE_HINT = "a message was larger than the master or this process takes; see docs/limits.md"
#: CANCELLED comes from a server that is shutting down, or from gRPC under load: this client cancels only in
#: `close`.
_TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}

#: gRPC reports some lost connections with code UNKNOWN and this text (grpc/grpc#34076).
_CONNECTION_LOST = "Stream removed"

Response = TypeVar("Response")


class RequestRefusedError(RefusedError):
    """The master refused a request.

    reason: an ErrorReason in lower case ("not_found", ...), or the gRPC status if the master gave none.
    """

    def __init__(self, message: str, *, reason: str, hint: str = "", **facts: object) -> None:
        self.code = wire_code(reason)
        super().__init__(message, hint=hint, **facts)
        self.reason = reason


class ClientClosedError(ElastaneError):
    """The client was closed during a call."""

    code = "ELA403"


class _Call(Protocol):
    """A unary or a streaming method of a stub."""

    def __call__(self, request: Any, *, metadata: Any = None) -> Any: ...

    def with_call(self, request: Any, *, timeout: float | None = None, metadata: Any = None) -> Any: ...


class StreamEndedError(Exception):
    """A stream ended normally during the wait for an answer; the request must be sent again."""


def call_metadata() -> tuple[tuple[str, str], ...]:
    """Return the metadata sent with every call."""
    return _METADATA


def new_request_id() -> str:
    """Return an id that makes a retried write take effect once."""
    return uuid.uuid4().hex


class MasterClient:
    """A connection to a master, or to whichever of several leads now.

    addresses: "host:port", several separated by commas; a name stands for all its addresses
    (`elastane_common.addresses`). Raises ValueError if they are invalid. timeout_seconds: how long a call
    waits for a master that does not answer; may be infinite. on_wait(seconds, error): called before each wait
    between two attempts. Thread-safe; `close` ends waiting calls and watches.
    """

    def __init__(
        self,
        addresses: str,
        *,
        timeout_seconds: float = 10.0,
        on_wait: Callable[[float, str], None] | None = None,
    ) -> None:
        self._book = AddressBook(addresses)
        self.addresses = self._book.given
        self._timeout_seconds = timeout_seconds
        self._on_wait = on_wait
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs: dict[tuple[str, Callable[[grpc.Channel], Any]], Any] = {}
        self._stamp = credentials_stamp()
        #: Jobs that a master has answered for, and the times since which jobs are not found.
        self._known: set[str] = set()
        self._missing_since: dict[str, float] = {}

    def __enter__(self) -> MasterClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all waiting calls. Idempotent."""
        self._closing.set()
        with self._lock:
            for channel in self._channels.values():
                channel.close()
            self._forget()

    # ------------------------------------------------------------------ jobs

    def create_job(
        self, name: str, settings: job_pb2.JobSettings, request_id: str | None = None
    ) -> tuple[job_pb2.Job, bool]:
        """Create a job, or find the one of that name with equal settings; returns (job, created)."""
        request = job_pb2.JobServiceCreateRequest(
            name=name, settings=settings, request_id=request_id or new_request_id()
        )
        response = self._unary(job_pb2_grpc.JobServiceStub, "Create", request)
        return response.job, response.created

    def get_job(self, name: str) -> job_pb2.Job:
        """Return one job with its workers."""
        request = job_pb2.JobServiceGetRequest(name=name)
        return self._unary(job_pb2_grpc.JobServiceStub, "Get", request).job

    def list_jobs(self) -> list[job_pb2.Job]:
        """Return all jobs of the master, by name."""
        return list(self.iter_jobs())

    def iter_jobs(self) -> Iterator[job_pb2.Job]:
        """Iterate over all jobs of the master, by name; fetches a page at a time."""
        page_token = ""
        while True:
            request = job_pb2.JobServiceListRequest(page_size=JOBS_IN_A_PAGE, page_token=page_token)
            response = self._unary(job_pb2_grpc.JobServiceStub, "List", request)
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
        return self._unary(job_pb2_grpc.JobServiceStub, "Scale", request).job

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
        """Set how the master chooses the number of workers, within limits; 0: they stay as they are.

        scaling: as JobSettings.scaling; "off": the maximum decides again. over_budget: "cheapest" or
        "suspend". spot_policy: "wide" or "uniform". None: unchanged. dry_run: nothing is changed;
        `decisions` of the response are what would be decided.
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
            found = self._unary(job_pb2_grpc.JobServiceStub, "Scale", probe)
            if not (workers_min or workers_max):
                return found
        return self._unary(job_pb2_grpc.JobServiceStub, "Scale", request)

    def suspend_job(self, name: str, request_id: str | None = None) -> job_pb2.Job:
        """Save a checkpoint, then drain every worker."""
        request = job_pb2.JobServiceSuspendRequest(name=name, request_id=request_id or new_request_id())
        return self._unary(job_pb2_grpc.JobServiceStub, "Suspend", request).job

    def resume_job(self, name: str, request_id: str | None = None) -> job_pb2.Job:
        """Resume a suspended job."""
        request = job_pb2.JobServiceResumeRequest(name=name, request_id=request_id or new_request_id())
        return self._unary(job_pb2_grpc.JobServiceStub, "Resume", request).job

    def cancel_job(self, name: str, request_id: str | None = None) -> job_pb2.Job:
        """End the job at once; its checkpoints are kept."""
        request = job_pb2.JobServiceCancelRequest(name=name, request_id=request_id or new_request_id())
        return self._unary(job_pb2_grpc.JobServiceStub, "Cancel", request).job

    def delete_job(self, name: str, *, force: bool = False, request_id: str | None = None) -> None:
        """Delete a finished job and everything the master keeps of it.

        force: also one that is not finished.
        """
        request = job_pb2.JobServiceDeleteRequest(
            name=name, force=force, request_id=request_id or new_request_id()
        )
        self._unary(job_pb2_grpc.JobServiceStub, "Delete", request)

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
        return self._unary(job_pb2_grpc.JobServiceStub, "SetPrices", request).job

    def drain_worker(
        self, name: str, worker_id: str, request_id: str | None = None, *, reason: str = ""
    ) -> job_pb2.Job:
        """Ask one worker to leave at the next step boundary.

        reason: who requests it, and why; empty: an operator.
        """
        request = job_pb2.JobServiceDrainWorkerRequest(
            name=name, worker_id=worker_id, request_id=request_id or new_request_id(), reason=reason
        )
        return self._unary(job_pb2_grpc.JobServiceStub, "DrainWorker", request).job

    def checkpoint_job(
        self, name: str, request_id: str | None = None, *, wait_seconds: float = 600.0
    ) -> job_pb2.JobServiceCheckpointResponse:
        """Request a checkpoint; returns when it is complete, within `wait_seconds`."""
        request = job_pb2.JobServiceCheckpointRequest(name=name, request_id=request_id or new_request_id())
        return self._unary(job_pb2_grpc.JobServiceStub, "Checkpoint", request, attempt_seconds=wait_seconds)

    def repair_job(
        self, name: str, *, accept_loss: bool = False, request_id: str | None = None
    ) -> job_pb2.JobServiceRepairResponse:
        """Check a damaged job again. accept_loss: continue without what is lost."""
        request = job_pb2.JobServiceRepairRequest(
            name=name, accept_loss=accept_loss, request_id=request_id or new_request_id()
        )
        return self._unary(job_pb2_grpc.JobServiceStub, "Repair", request)

    def watch_job(self, name: str) -> Iterator[job_pb2.Job]:
        """Yield the job now and at each change, until the client is closed."""
        request = job_pb2.JobServiceWatchRequest(name=name)
        for response in self._watch(job_pb2_grpc.JobServiceStub, "Watch", lambda: request):
            yield response.job

    # ------------------------------------------------------------------ the ring, events, contexts

    def get_ring(self, job: str) -> ring_pb2.GetRingResponse:
        """Return the current ring."""
        return self._unary(ring_pb2_grpc.RingServiceStub, "GetRing", ring_pb2.GetRingRequest(job=job))

    def worker_figures(self, job: str, worker_ids: Iterable[str]) -> Mapping[str, ring_pb2.WorkerFigures]:
        """Return the latest figures of these workers, by id, as far as the master has any."""
        request = ring_pb2.GetWorkerFiguresRequest(job=job, worker_ids=worker_ids)
        return self._unary(ring_pb2_grpc.RingServiceStub, "GetWorkerFigures", request).figures

    def events(self, job: str, *, since: int = 0, follow: bool = False) -> Iterator[ring_pb2.Event]:
        """Yield events from a sequence number on; with `follow` new ones too, until the client is closed."""
        next_wanted = since

        def request() -> ring_pb2.WatchEventsRequest:
            return ring_pb2.WatchEventsRequest(job=job, since=next_wanted, follow=follow)

        for response in self._watch(ring_pb2_grpc.RingServiceStub, "WatchEvents", request, endless=follow):
            if response.event.sequence >= next_wanted:
                next_wanted = response.event.sequence + 1
                yield response.event

    def get_context(self, job: str, virtual_rank: int, step: int | None = None) -> Any:
        """Return one EstContext with its bytes; step None: the newest."""
        request = context_pb2.ContextServiceGetRequest(job=job, virtual_rank=virtual_rank, step=step)
        return self._unary(context_pb2_grpc.ContextServiceStub, "Get", request).context

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
        response = self._unary(shard_pb2_grpc.ShardServiceStub, "CreateDataset", request)
        return response.progress, response.created

    def lease_tasks(self, request: shard_pb2.LeaseTasksRequest) -> shard_pb2.LeaseTasksResponse:
        """Report finished tasks and lease new ones; waits on the server as long as `request.wait` says."""
        if not request.request_id:
            request.request_id = new_request_id()
        wait_seconds = request.wait.ToTimedelta().total_seconds() or 20.0
        return self._unary(
            shard_pb2_grpc.ShardServiceStub,
            "LeaseTasks",
            request,
            attempt_seconds=ATTEMPT_SECONDS + wait_seconds,
        )

    def extend_dataset(
        self,
        job: str,
        dataset: str,
        *,
        watermark: int,
        closed: bool = False,
        request_id: str | None = None,
    ) -> shard_pb2.Progress:
        """Extend or close a stream source."""
        request = shard_pb2.ExtendDatasetRequest(
            job=job,
            dataset=dataset,
            watermark=watermark,
            closed=closed,
            request_id=request_id or new_request_id(),
        )
        return self._unary(shard_pb2_grpc.ShardServiceStub, "ExtendDataset", request).progress

    def get_progress(self, job: str = "", dataset: str = "") -> list[shard_pb2.Progress]:
        """Return the progress of one dataset, or of all datasets of a job."""
        request = shard_pb2.GetProgressRequest(job=job, dataset=dataset)
        return list(self._unary(shard_pb2_grpc.ShardServiceStub, "GetProgress", request).datasets)

    def watch_progress(
        self, job: str = "", dataset: str = "", *, interval_seconds: float = 0.5
    ) -> Iterator[list[shard_pb2.Progress]]:
        """Yield the progress now and whenever it changes, until the client is closed."""
        interval = duration_pb2.Duration()
        interval.FromNanoseconds(int(interval_seconds * 1e9))
        request = shard_pb2.WatchProgressRequest(job=job, dataset=dataset, interval=interval)
        for response in self._watch(shard_pb2_grpc.ShardServiceStub, "WatchProgress", lambda: request):
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

    # ------------------------------------------------------------------ any service

    def call(self, stub: Callable[[grpc.Channel], Any], method: str, request: Any) -> Any:
        """Call a unary method with retries; for `elastane_common.logged`.

        Raises RequestRefusedError, MasterUnreachableError.
        """
        return self._unary(stub, method, request)

    def subscribe(
        self,
        stub: Callable[[grpc.Channel], Any],
        method: str,
        request: Callable[[], Any],
        *,
        endless: bool = True,
    ) -> Iterator[Any]:
        """Watch a stream, subscribed again with a new `request()` after a break.

        endless: subscribe again after its normal end too.
        """
        return self._watch(stub, method, request, endless=endless)

    # ------------------------------------------------------------------ internals

    def _pages(self, method: str, request: Any) -> Iterator[Any]:
        while True:
            page = self._unary(shard_pb2_grpc.ShardServiceStub, method, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _unary(
        self,
        stub: Callable[[grpc.Channel], Any],
        method: str,
        request: Any,
        *,
        attempt_seconds: float = ATTEMPT_SECONDS,
    ) -> Any:
        """Call with retries. Raises RequestRefusedError or MasterUnreachableError."""
        deadline = time.monotonic() + self._timeout_seconds + attempt_seconds - ATTEMPT_SECONDS

        def attempt(service: Any) -> Any:
            left = max(deadline - time.monotonic(), 0.05)
            call: _Call = getattr(service, method)
            response, served = call.with_call(
                request, timeout=min(left, attempt_seconds), metadata=call_metadata()
            )
            # Before the answer is used: an older master may have ignored fields that this client relies on.
            require_master(served.trailing_metadata())
            self._answered(request)
            return response

        return self.retried(stub, attempt, wait_seconds=attempt_seconds - ATTEMPT_SECONDS)

    def retried(
        self,
        stub: Callable[[grpc.Channel], Any],
        attempt: Callable[[Any], Response],
        *,
        wait_seconds: float = 0.0,
    ) -> Response:
        """Run `attempt` with a stub of the master until it succeeds, and return its result.

        wait_seconds: how long the master may delay an answer. Raises RequestRefusedError or
        MasterUnreachableError.
        """
        for trial in self._retrying(self._timeout_seconds + wait_seconds):
            with trial:
                address = self._book.current()
                try:
                    return attempt(self._stub(address, stub))
                except StreamEndedError as error:
                    raise _TransientError(str(error), "", address=address) from None
                except (grpc.RpcError, ValueError) as error:
                    raise self._translated(error, address) from None
        raise AssertionError("tenacity returns or raises")

    def _watch(
        self,
        stub: Callable[[grpc.Channel], Any],
        method: str,
        request: Callable[[], Any],
        *,
        endless: bool = True,
    ) -> Iterator[Any]:
        """Yield responses of a stream, subscribed again after a break; ends when the client is closed."""
        last_contact = time.monotonic()
        failures = 0
        while not self._closing.is_set():
            served, began = False, time.monotonic()
            address = self._book.current()
            try:
                call: _Call = getattr(self._stub(address, stub), method)
                asked = request()
                for response in call(asked, metadata=call_metadata()):
                    served = True
                    self._answered(asked)
                    yield response
                if not endless:
                    return
                failures = 0
            except ClientClosedError:
                return
            except (grpc.RpcError, ValueError) as error:
                translated = self._translated(error, address)
                if isinstance(translated, ClientClosedError):
                    return
                if not isinstance(translated, _TransientError):
                    raise translated from None
                # There was a master until now, so the timeout starts again.
                if served or time.monotonic() - began > STOOD_SECONDS:
                    last_contact, failures = time.monotonic(), 0
                elif time.monotonic() - last_contact > self._timeout_seconds:
                    raise translated.refusal or self._unreachable(self._timeout_seconds, translated) from None
                self._book.failed(address, translated.leader)
                pause_seconds = NOT_FOUND_SECONDS if translated.refusal else _watch_pause_seconds(failures)
                self._report_wait(pause_seconds, str(translated))
            else:
                pause_seconds = _watch_pause_seconds(failures)
            if self._closing.wait(pause_seconds):
                return
            failures += 1

    def _stub(self, address: str, stub: Callable[[grpc.Channel], Any]) -> Any:
        """Return a service's stub on the channel to an address.

        Created under the lock that `close` takes: gRPC crashes with SIGSEGV if a stub is created from a
        channel that another thread has closed (grpc/grpc#43455). A call on a closed channel only raises
        ValueError.
        """
        with self._lock:
            if self._closing.is_set():
                raise ClientClosedError("the connection to the master was closed")
            if (stamp := credentials_stamp()) != self._stamp:
                # Certificates were renewed. Calls of other threads keep their channels until they end.
                self._stamp = stamp
                self._forget()
            if address not in self._channels:
                self._channels[address] = open_channel(
                    address, _CHANNEL_OPTIONS + size_options(), name=self._book.name_of(address)
                )
            if (address, stub) not in self._stubs:
                self._stubs[address, stub] = stub(self._channels[address])
            return self._stubs[address, stub]

    def _forget(self) -> None:
        self._channels.clear()
        self._stubs.clear()

    def _retrying(self, timeout_seconds: float) -> tenacity.Retrying:
        def before_sleep(state: tenacity.RetryCallState) -> None:
            assert state.outcome is not None and state.next_action is not None
            error = state.outcome.exception()
            assert isinstance(error, _TransientError)
            self._book.failed(error.address, error.leader)
            self._report_wait(state.next_action.sleep, str(error))

        def give_up(state: tenacity.RetryCallState) -> Any:
            assert state.outcome is not None
            error = state.outcome.exception()
            if isinstance(error, _TransientError):
                raise error.refusal or self._unreachable(timeout_seconds, error)
            assert error is not None
            raise error

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_TransientError),
            stop=tenacity.stop_any(
                tenacity.stop_before_delay(timeout_seconds), tenacity.stop_when_event_set(self._closing)
            ),
            wait=_wait,
            sleep=tenacity.sleep_using_event(self._closing),
            before_sleep=before_sleep,
            retry_error_callback=give_up,
        )

    def _report_wait(self, seconds: float, error: str) -> None:
        if self._on_wait is not None:
            self._on_wait(seconds, plain_cause(error))

    def _unreachable(self, timeout_seconds: float, error: _TransientError) -> MasterUnreachableError:
        return MasterUnreachableError(
            f"no master answered at {self._book} within {timeout_seconds:.3g} s: {plain_cause(str(error))}",
            hint=error.hint
            or f"is it running, and is its address right? Set --master or ELASTANE_MASTER; {TLS_HINT}",
            last_error=str(error),
        )

    def _answered(self, request: Any) -> None:
        """Note that a master has answered, and so knows the job that the request names."""
        if job := getattr(request, "job", "") or getattr(request, "name", ""):
            self._known.add(job)
            self._missing_since.pop(job, None)

    def _is_gone(self, refusal: RequestRefusedError) -> bool:
        """True if a missing object is gone for good; False at first for a job that was known."""
        job, now = refusal.facts.get("job", ""), time.monotonic()
        if set(refusal.facts) != {"job"} or job not in self._known:
            return True  # a worker or dataset, or a job that was never known
        return now - self._missing_since.setdefault(job, now) >= NOT_FOUND_SECONDS

    def _translated(self, error: Exception, address: str) -> Exception:
        """Return the error to raise for gRPC's error, or a _TransientError if the call may be retried."""
        if self._closing.is_set():
            return ClientClosedError("the connection to the master was closed")
        if isinstance(error, ValueError):
            # gRPC has no type of its own for a call on a channel that `close` has closed meanwhile.
            if "closed channel" in str(error):
                return ClientClosedError("the connection to the master was closed")
            return error
        assert isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call)
        detail = _detail(error)
        text = error.details() or error.code().name.lower()
        if detail is not None and not detail.retryable:
            reason = errors_pb2.ErrorReason.Name(detail.reason).removeprefix("ERROR_REASON_").lower()
            refusal = RequestRefusedError(text, reason=reason, hint=detail.hint, **dict(detail.facts))
            if reason == "not_found" and not self._is_gone(refusal):
                return _TransientError(text, detail.hint, address=address, refusal=refusal)
            return refusal
        if detail is not None:
            standby = detail.reason == errors_pb2.ERROR_REASON_NOT_LEADING
            leader = detail.facts.get("leader", "")
            return _TransientError(text, detail.hint, address=address, leader=leader, standby=standby)
        if error.code() in _TRANSIENT or _CONNECTION_LOST in text:
            return _TransientError(text, "", address=address)
        if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
            return RequestRefusedError(text, reason="limit_exceeded", hint=MESSAGE_TOO_LARGE_HINT)
        return RequestRefusedError(text, reason=error.code().name.lower())


class _TransientError(Exception):
    """A failed attempt that may be retried. refusal: the error to raise if retries run out, if any."""

    def __init__(
        self,
        message: str,
        hint: str,
        *,
        address: str,
        leader: str = "",
        standby: bool = False,
        refusal: RequestRefusedError | None = None,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.address = address
        self.leader = leader
        self.standby = standby
        self.refusal = refusal


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the wait before the next attempt; short after a standby master, because a leader is near."""
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, _TransientError) and error.refusal is not None:
        return NOT_FOUND_SECONDS
    seconds = wait_backoff(state)
    return (
        min(seconds, STANDBY_SECONDS_MAX) if isinstance(error, _TransientError) and error.standby else seconds
    )


def require_master(metadata: Sequence[tuple[str, str | bytes]] | None) -> None:
    """Raise RequestRefusedError if the master that answered with `metadata` is too old for this client."""
    version = next((str(value) for key, value in metadata or () if key == versions.METADATA_KEY), "")
    fault, hint = versions.master_fault(version)
    if fault:
        raise RequestRefusedError(fault, reason="incompatible", hint=hint, version=version)


def plain_cause(error: str) -> str:
    """Return the cause in gRPC's text of a failed connection, without the addresses and layers around it."""
    return error.rpartition("Failed to connect to remote host: ")[2] or error


def _watch_pause_seconds(failures: int) -> float:
    return float(min(0.05 * 2.0 ** min(failures, 10), 2.0))


def _detail(error: grpc.Call) -> errors_pb2.ErrorDetail | None:
    """Return the ErrorDetail of a refused call, if it has one."""
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # status and details contradict each other: not one of our errors
        return None
    for packed in status.details if status is not None else ():
        detail = errors_pb2.ErrorDetail()
        if packed.Unpack(detail):
            return detail
    return None
