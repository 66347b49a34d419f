"""The master's unary services, from a program that waits for the answer: agent, CLI, demo, tests.

Every call is tried again with backoff, at the next of the masters' addresses, until a stated time has
passed; a master that is being restarted, or another that takes over, is a pause and not an error. Writes
carry a request id, so a repeated one takes effect once. What the master refuses comes back as
`RequestRefusedError` with its reason, facts and hint, decoded from google.rpc.Status; nothing at all as
`MasterUnreachableError`. That there is no job which a master knew before is believed the second time.

The watches are iterators that subscribe again after a break and go on where they were.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import grpc
import tenacity
from google.protobuf import duration_pb2
from grpc_status import rpc_status

from elastane.addresses import AddressBook
from elastane.backoff import wait_backoff
from elastane.credentials import TLS_HINT, credentials_stamp, open_channel
from elastane.errors import ElastaneError, MasterUnreachableError, RefusedError
from elastane.message_size import size_options
from elastane_proto import versions
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

DEFAULT_MASTER = "127.0.0.1:50051"
#: One attempt of a call that the master answers at once.
ATTEMPT_SECONDS = 10.0

_CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Without it a peer that is stopped, whose kernel still answers, is waited for without end.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
    # A restarted master is found when it is asked for (`backoff`), not within gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    # This one is the time a connection may take to be made, whatever its name says.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 200),
]
#: Which protocol this client speaks, with every call.
_METADATA = ((versions.METADATA_KEY, str(versions.PROTOCOL)),)
#: A watch that stood for longer than a connection takes to be made or refused had a master, which may have
#: had nothing to say: of a quiet job no event comes for hours.
STOOD_SECONDS = 5.0
#: A master that stands by answers at once; another one leads, or will in a moment.
STANDBY_SECONDS_MAX = 0.5
#: A job that was there and is not found is asked for again after so long: a leader's lease, by default.
NOT_FOUND_SECONDS = 3.0
#: Of a list: half a megabyte, and a master of 100,000 jobs has other callers, too.
JOBS_IN_A_PAGE = 2000
#: So many are named where one has to be chosen.
JOBS_NAMED = 20
MESSAGE_TOO_LARGE_HINT = "a message was larger than the master or this process takes; see docs/limits.md"
#: CANCELLED comes of a server that ends, or of its gRPC under load: this client cancels only to close.
_TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}

Response = TypeVar("Response")


class RequestRefusedError(RefusedError):
    """The master refused a request. reason: an ErrorReason in lower case ("not_found", ...), or the
    gRPC status where the master gave none."""

    def __init__(self, message: str, *, reason: str, hint: str = "", **facts: object) -> None:
        self.code = wire_code(reason)
        super().__init__(message, hint=hint, **facts)
        self.reason = reason


class ClientClosedError(ElastaneError):
    """The client was closed while a call waited."""

    code = "ELA403"


class _Call(Protocol):
    """A unary or a streaming method of a stub."""

    def __call__(self, request: Any, *, metadata: Any = None) -> Any: ...

    def with_call(self, request: Any, *, timeout: float | None = None, metadata: Any = None) -> Any: ...


class StreamEndedError(Exception):
    """A stream ended in good order while an answer was waited for: ask again."""


def call_metadata() -> tuple[tuple[str, str], ...]:
    """What goes with every call."""
    return _METADATA


def new_request_id() -> str:
    """An id that makes a retried write take effect once."""
    return uuid.uuid4().hex


class MasterClient:
    """A connection to a master, or to whichever of several is the one now.

    addresses: "host:port", several separated by commas; a name stands for all its addresses
    (`elastane.addresses`). Raises ValueError when it is none. timeout_seconds: how long a call waits for a
    master that does not answer; infinite is allowed. on_wait(seconds, error): called before each wait
    between two attempts. Thread-safe; `close` ends calls and watches that wait.
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
        #: Jobs that a master has answered for, and since when they are not found.
        self._known: set[str] = set()
        self._missing_since: dict[str, float] = {}

    def __enter__(self) -> MasterClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that waits. Idempotent."""
        self._closing.set()
        with self._lock:
            for channel in self._channels.values():
                channel.close()
            self._forget()

    # ------------------------------------------------------------------ jobs

    def create_job(
        self, name: str, settings: job_pb2.JobSettings, request_id: str | None = None
    ) -> tuple[job_pb2.Job, bool]:
        """Creates a job, or finds the one of that name with equal settings; (job, created)."""
        request = job_pb2.JobServiceCreateRequest(
            name=name, settings=settings, request_id=request_id or new_request_id()
        )
        response = self._unary(job_pb2_grpc.JobServiceStub, "Create", request)
        return response.job, response.created

    def get_job(self, name: str) -> job_pb2.Job:
        """One job with its workers."""
        request = job_pb2.JobServiceGetRequest(name=name)
        return self._unary(job_pb2_grpc.JobServiceStub, "Get", request).job

    def list_jobs(self) -> list[job_pb2.Job]:
        """All jobs of the master, by name."""
        return list(self.iter_jobs())

    def iter_jobs(self) -> Iterator[job_pb2.Job]:
        """All jobs of the master, by name, asked for a page at a time."""
        page_token = ""
        while True:
            request = job_pb2.JobServiceListRequest(page_size=JOBS_IN_A_PAGE, page_token=page_token)
            response = self._unary(job_pb2_grpc.JobServiceStub, "List", request)
            yield from response.jobs
            page_token = response.next_page_token  # an older master gives all, and no token
            if not page_token:
                return

    def only_job(self, name: str | None) -> str:
        """`name`, or the name of the only job there is; refused when there are none or several."""
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
        """Changes the least and the most workers; takes effect at a step boundary.

        workers_min: 0: as it is, or workers_max where that is less.
        """
        request = job_pb2.JobServiceScaleRequest(
            name=name,
            workers_min=workers_min,
            workers_max=workers_max,
            request_id=request_id or new_request_id(),
        )
        return self._unary(job_pb2_grpc.JobServiceStub, "Scale", request).job

    def suspend_job(self, name: str, request_id: str | None = None) -> job_pb2.Job:
        """Saves a checkpoint, then sends every worker away."""
        request = job_pb2.JobServiceSuspendRequest(name=name, request_id=request_id or new_request_id())
        return self._unary(job_pb2_grpc.JobServiceStub, "Suspend", request).job

    def resume_job(self, name: str, request_id: str | None = None) -> job_pb2.Job:
        """Lets a suspended job go on."""
        request = job_pb2.JobServiceResumeRequest(name=name, request_id=request_id or new_request_id())
        return self._unary(job_pb2_grpc.JobServiceStub, "Resume", request).job

    def cancel_job(self, name: str, request_id: str | None = None) -> job_pb2.Job:
        """Ends the job at once; its checkpoints stay."""
        request = job_pb2.JobServiceCancelRequest(name=name, request_id=request_id or new_request_id())
        return self._unary(job_pb2_grpc.JobServiceStub, "Cancel", request).job

    def delete_job(self, name: str, *, force: bool = False, request_id: str | None = None) -> None:
        """Deletes a finished job and all that the master keeps of it. force: also one that is not over."""
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
        request_id: str | None = None,
    ) -> job_pb2.Job:
        """What a worker costs an hour from now on, in millionths of the currency; None: as before."""
        request = job_pb2.JobServiceSetPricesRequest(
            name=name,
            spot_price_micros=spot_price_micros,
            on_demand_price_micros=on_demand_price_micros,
            currency=currency,
            request_id=request_id or new_request_id(),
        )
        return self._unary(job_pb2_grpc.JobServiceStub, "SetPrices", request).job

    def drain_worker(
        self, name: str, worker_id: str, request_id: str | None = None, *, reason: str = ""
    ) -> job_pb2.Job:
        """Asks one worker to leave at the next step boundary.

        reason: who asks, and why; empty: an operator.
        """
        request = job_pb2.JobServiceDrainWorkerRequest(
            name=name, worker_id=worker_id, request_id=request_id or new_request_id(), reason=reason
        )
        return self._unary(job_pb2_grpc.JobServiceStub, "DrainWorker", request).job

    def checkpoint_job(
        self, name: str, request_id: str | None = None, *, wait_seconds: float = 600.0
    ) -> job_pb2.JobServiceCheckpointResponse:
        """Asks for a checkpoint; returns when it is complete, within `wait_seconds`."""
        request = job_pb2.JobServiceCheckpointRequest(name=name, request_id=request_id or new_request_id())
        return self._unary(job_pb2_grpc.JobServiceStub, "Checkpoint", request, attempt_seconds=wait_seconds)

    def repair_job(
        self, name: str, *, accept_loss: bool = False, request_id: str | None = None
    ) -> job_pb2.JobServiceRepairResponse:
        """Has a damaged job looked at again; accept_loss: it goes on without what is lost."""
        request = job_pb2.JobServiceRepairRequest(
            name=name, accept_loss=accept_loss, request_id=request_id or new_request_id()
        )
        return self._unary(job_pb2_grpc.JobServiceStub, "Repair", request)

    def watch_job(self, name: str) -> Iterator[job_pb2.Job]:
        """The job now and at each change, until the client is closed."""
        request = job_pb2.JobServiceWatchRequest(name=name)
        for response in self._watch(job_pb2_grpc.JobServiceStub, "Watch", lambda: request):
            yield response.job

    # ------------------------------------------------------------------ the ring, events, contexts

    def get_ring(self, job: str) -> ring_pb2.GetRingResponse:
        """The ring as it stands."""
        return self._unary(ring_pb2_grpc.RingServiceStub, "GetRing", ring_pb2.GetRingRequest(job=job))

    def events(self, job: str, *, since: int = 0, follow: bool = False) -> Iterator[ring_pb2.Event]:
        """Events from a sequence number on; with `follow` new ones too, until the client is closed."""
        next_wanted = since

        def request() -> ring_pb2.WatchEventsRequest:
            return ring_pb2.WatchEventsRequest(job=job, since=next_wanted, follow=follow)

        for response in self._watch(ring_pb2_grpc.RingServiceStub, "WatchEvents", request, endless=follow):
            if response.event.sequence >= next_wanted:
                next_wanted = response.event.sequence + 1
                yield response.event

    def list_contexts(self, job: str) -> list[context_pb2.ContextInfo]:
        """The stored contexts, without their bytes."""
        request = context_pb2.ContextServiceListRequest(job=job)
        return list(self._unary(context_pb2_grpc.ContextServiceStub, "List", request).contexts)

    def get_context(self, job: str, virtual_rank: int, step: int | None = None) -> Any:
        """One EstContext with its bytes; step None: the newest."""
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
        """Creates a dynamic dataset, or finds it when its settings are equal; (progress, created)."""
        request = shard_pb2.CreateDatasetRequest(
            job=job, dataset=dataset, settings=settings, request_id=request_id or new_request_id()
        )
        response = self._unary(shard_pb2_grpc.ShardServiceStub, "CreateDataset", request)
        return response.progress, response.created

    def lease_tasks(self, request: shard_pb2.LeaseTasksRequest) -> shard_pb2.LeaseTasksResponse:
        """Reports finished tasks and leases new ones; waits on the server as long as `request.wait` says."""
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
        """Grows or closes a stream source."""
        request = shard_pb2.ExtendDatasetRequest(
            job=job,
            dataset=dataset,
            watermark=watermark,
            closed=closed,
            request_id=request_id or new_request_id(),
        )
        return self._unary(shard_pb2_grpc.ShardServiceStub, "ExtendDataset", request).progress

    def get_progress(self, job: str = "", dataset: str = "") -> list[shard_pb2.Progress]:
        """Progress of one dataset, or of all of a job's."""
        request = shard_pb2.GetProgressRequest(job=job, dataset=dataset)
        return list(self._unary(shard_pb2_grpc.ShardServiceStub, "GetProgress", request).datasets)

    def watch_progress(
        self, job: str = "", dataset: str = "", *, interval_seconds: float = 0.5
    ) -> Iterator[list[shard_pb2.Progress]]:
        """Progress now and whenever it changes, until the client is closed."""
        interval = duration_pb2.Duration()
        interval.FromNanoseconds(int(interval_seconds * 1e9))
        request = shard_pb2.WatchProgressRequest(job=job, dataset=dataset, interval=interval)
        for response in self._watch(shard_pb2_grpc.ShardServiceStub, "WatchProgress", lambda: request):
            yield list(response.datasets)

    def list_tasks(
        self, job: str, dataset: str, state: shard_pb2.TaskState | None = None
    ) -> Iterator[shard_pb2.TaskInfo]:
        """Tasks of a dataset, all pages."""
        request = shard_pb2.ListTasksRequest(job=job, dataset=dataset, state=state, page_size=1000)
        for page in self._pages("ListTasks", request):
            yield from page.tasks

    def audit_log(self, job: str, dataset: str = "") -> Iterator[shard_pb2.AuditEntry]:
        """The committed history in the order of commits, all pages."""
        request = shard_pb2.GetAuditLogRequest(job=job, dataset=dataset, page_size=1000)
        for page in self._pages("GetAuditLog", request):
            yield from page.entries

    # ------------------------------------------------------------------ any service

    def call(self, stub: Callable[[grpc.Channel], Any], method: str, request: Any) -> Any:
        """One call of a unary method, as those above; for `elastane.logged`. Raises as they do."""
        return self._unary(stub, method, request)

    def subscribe(
        self,
        stub: Callable[[grpc.Channel], Any],
        method: str,
        request: Callable[[], Any],
        *,
        endless: bool = True,
    ) -> Iterator[Any]:
        """A watch, subscribed again with a new `request()` after a break; `endless`, or until it is told."""
        return self._watch(stub, method, request, endless=endless)

    # ------------------------------------------------------------------ inside

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
        """One call with retries; raises RequestRefusedError or MasterUnreachableError."""
        deadline = time.monotonic() + self._timeout_seconds + attempt_seconds - ATTEMPT_SECONDS

        def attempt(service: Any) -> Any:
            left = max(deadline - time.monotonic(), 0.05)
            call: _Call = getattr(service, method)
            response, served = call.with_call(
                request, timeout=min(left, attempt_seconds), metadata=call_metadata()
            )
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
        """What `attempt` gives with a stub of the master, after as many attempts as it takes.

        wait_seconds: how long the master may keep an attempt waiting. Raises RequestRefusedError or
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
        """Responses of a stream, subscribed again after a break; ends when the client is closed."""
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
            except (grpc.RpcError, ValueError) as error:
                translated = self._translated(error, address)
                if isinstance(translated, ClientClosedError):
                    return
                if not isinstance(translated, _TransientError):
                    raise translated from None
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
        """A service at an address, on the channel to it.

        Made under the lock that `close` takes: gRPC ends the process by SIGSEGV where a stub is made of a
        channel that another thread has closed (grpc/grpc#43455). A call on one raises ValueError.
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
        """A master has answered: it knows the job that the request names."""
        if job := getattr(request, "job", "") or getattr(request, "name", ""):
            self._known.add(job)
            self._missing_since.pop(job, None)

    def _is_gone(self, refusal: RequestRefusedError) -> bool:
        """Whether what is not found is gone for good; False of a job that was there, the first time."""
        job, now = refusal.facts.get("job", ""), time.monotonic()
        if set(refusal.facts) != {"job"} or job not in self._known:
            return True  # a worker, or a dataset, or a job that never was
        return now - self._missing_since.setdefault(job, now) >= NOT_FOUND_SECONDS

    def _translated(self, error: Exception, address: str) -> Exception:
        """Our error for one of gRPC's."""
        if self._closing.is_set():
            return ClientClosedError("the connection to the master was closed")
        if isinstance(error, ValueError):
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
        if error.code() in _TRANSIENT:
            return _TransientError(text, "", address=address)
        if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
            return RequestRefusedError(text, reason="limit_exceeded", hint=MESSAGE_TOO_LARGE_HINT)
        return RequestRefusedError(text, reason=error.code().name.lower())


class _TransientError(Exception):
    """An attempt failed in a way that the next one may not. refusal: what to raise when there is none."""

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
    """Before the next attempt; where a master stands by, one that leads is not far."""
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, _TransientError) and error.refusal is not None:
        return NOT_FOUND_SECONDS
    seconds = wait_backoff(state)
    return (
        min(seconds, STANDBY_SECONDS_MAX) if isinstance(error, _TransientError) and error.standby else seconds
    )


def require_master(metadata: Sequence[tuple[str, str | bytes]] | None) -> None:
    """Raises RequestRefusedError when the master that answered with `metadata` is too old for us."""
    told = next((str(value) for key, value in metadata or () if key == versions.METADATA_KEY), "")
    fault, hint = versions.master_fault(told)
    if fault:
        raise RequestRefusedError(fault, reason="incompatible", hint=hint, version=told)


def plain_cause(error: str) -> str:
    """What gRPC says of a connection that it could not make, without the addresses and layers around it."""
    return error.rpartition("Failed to connect to remote host: ")[2] or error


def _watch_pause_seconds(failures: int) -> float:
    return float(min(0.05 * 2.0 ** min(failures, 10), 2.0))


def _detail(error: grpc.Call) -> errors_pb2.ErrorDetail | None:
    """The ErrorDetail of a refused call, if it bears one."""
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # code or message differ between status and details: not ours
        return None
    for packed in status.details if status is not None else ():
        detail = errors_pb2.ErrorDetail()
        if packed.Unpack(detail):
            return detail
    return None
