"""gRPC client for the masters of the jobs: reading their views and sending requests.

One channel per master and credentials; among several addresses of a master the leader is found by trying.

Every call has a timeout, because an unreachable master is an input of the decisions.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import msgspec
from google.protobuf.message import Message
from google.rpc import status_pb2

from elastane_common.addresses import AddressBook
from elastane_common.credentials import on_loopback
from elastane_operator.decisions.observed import MasterView
from elastane_operator.decisions.spec import JobSpec
from elastane_operator.edge import translate
from elastane_proto import versions
from elastane_proto.channels import channel_options
from elastane_proto.v1 import (
    errors_pb2,
    job_pb2,
    job_pb2_grpc,
    ring_pb2,
    ring_pb2_grpc,
    shard_pb2,
    shard_pb2_grpc,
)

_OPTIONS: list[tuple[str, Any]] = channel_options(reconnect_milliseconds_max=1_000)
IDLE_SECONDS_MAX = 900.0
"""An unused channel is closed after this time: per-job masters come and go, and certificates change."""

_WATCH_PAUSE_SECONDS = 2.0
_DETAILS_KEY = "grpc-status-details-bin"


class MasterRefusedError(Exception):
    """The master refused the request; the text says why."""


class MasterAwayError(Exception):
    """No master answers, or none can serve now; the text says why."""


class Access(msgspec.Struct, frozen=True):
    """Address and credentials of a master.

    ca, cert, key: PEM; without a ca, no TLS. plain_token: the token may be sent unencrypted beyond this
    machine.
    """

    address: str
    token: str = ""
    ca: bytes = b""
    cert: bytes = b""
    key: bytes = b""
    server_name: str = ""
    plain_token: bool = False


class Masters:
    """Connections to all masters named by jobs. timeout_seconds: limit for one call."""

    def __init__(
        self, timeout_seconds: float = 5.0, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._monotonic = monotonic
        self._channels: dict[tuple[str, str], grpc.aio.Channel] = {}
        self._asked: dict[tuple[str, str], float] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._books: dict[str, AddressBook] = {}

    async def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()
        await asyncio.gather(*self._closing)

    async def view(
        self, access: Access, name: str, *, measured: bool = False, tasks: bool = False
    ) -> MasterView:
        """Return the master's view of a job; never raises if the master is unreachable.

        measured: also request the speed of its workers. tasks: the job does tasks, so also request their
        progress without a ring.
        """
        try:
            request = job_pb2.JobServiceGetRequest(name=name)
            response = await self._call(access, job_pb2_grpc.JobServiceStub, "Get", request)
        except MasterAwayError as error:
            return MasterView(False, error=str(error))
        except _NotFoundError:
            return MasterView(True)
        except MasterRefusedError as error:
            return MasterView(False, error=f"refused: {error}")
        progress = await self._progress(access, response.job, tasks=tasks)
        speed = await self._est_seconds(access, response.job) if measured else {}
        return MasterView(True, translate.job_view(response.job, progress, speed))

    async def ask(self, access: Access, what: str, name: str, spec: JobSpec) -> None:
        """Send one of the requests of `AskMaster.what`. Raises MasterRefusedError or MasterAwayError."""
        request_id = uuid.uuid4().hex
        plain = {
            "Suspend": job_pb2.JobServiceSuspendRequest,
            "Resume": job_pb2.JobServiceResumeRequest,
            "Cancel": job_pb2.JobServiceCancelRequest,
        }
        request: Any
        if what == "Create":
            request = job_pb2.JobServiceCreateRequest(
                name=name, settings=translate.job_settings(spec), request_id=request_id
            )
        elif what == "Scale":
            request = job_pb2.JobServiceScaleRequest(
                name=name,
                workers_min=spec.workers.min,
                workers_max=spec.workers.max,
                request_id=request_id,
            )
        elif what == "SetScaling":
            what, request = "Scale", translate.scaling(spec, name, request_id)
        elif what == "SetPrices":
            request = translate.prices(spec, name, request_id)
        else:
            request = plain[what](name=name, request_id=request_id)
        await self._call(access, job_pb2_grpc.JobServiceStub, what, request)

    async def changes(self, access: Access, name: str) -> AsyncIterator[job_pb2.Job]:
        """Yield the job now and at each change, until the stream breaks.

        Raises MasterAwayError, MasterRefusedError.
        """
        address = await asyncio.to_thread(self._book(access).current)
        options = self._options(access)
        options.pop("timeout")
        stub = job_pb2_grpc.JobServiceStub(self._channel(access, address))
        try:
            async for response in stub.Watch(job_pb2.JobServiceWatchRequest(name=name), **options):
                yield response.job
        except grpc.aio.AioRpcError as error:
            raise self._translated(error, access, address) from None

    async def _progress(
        self, access: Access, job: job_pb2.Job, *, tasks: bool
    ) -> Sequence[shard_pb2.Progress]:
        """Return the progress of its datasets; empty after an error, which may be temporary."""
        if job.phase != job_pb2.JOB_PHASE_RUNNING and not tasks:
            return ()
        try:
            request = shard_pb2.GetProgressRequest(job=job.name)
            response = await self._call(access, shard_pb2_grpc.ShardServiceStub, "GetProgress", request)
        except (MasterAwayError, MasterRefusedError, _NotFoundError):
            return ()
        progress: Sequence[shard_pb2.Progress] = response.datasets
        return progress

    async def _est_seconds(self, access: Access, job: job_pb2.Job) -> dict[str, float]:
        """Return the seconds that each EST adds to a step, from workers that have measured them."""
        members = [each.worker_id for each in job.workers if each.state == job_pb2.WORKER_STATE_MEMBER]
        if job.phase != job_pb2.JOB_PHASE_RUNNING or not members:
            return {}
        try:
            request = ring_pb2.GetWorkerFiguresRequest(job=job.name, worker_ids=members)
            response = await self._call(access, ring_pb2_grpc.RingServiceStub, "GetWorkerFigures", request)
        except (MasterAwayError, MasterRefusedError, _NotFoundError):
            return {}
        return {
            name: each.est_seconds + each.after_est_seconds
            for name, each in response.figures.items()
            if each.est_steps
        }

    async def _call(self, access: Access, stub: Callable[[Any], Any], rpc: str, request: Message) -> Any:
        """Try each address once. Raises MasterAwayError, MasterRefusedError, _NotFoundError."""
        book = self._book(access)
        tried: set[str] = set()
        last = MasterAwayError("it has no address")
        while True:
            address = await asyncio.to_thread(book.current)
            if address in tried:
                raise last
            tried.add(address)
            try:
                call = getattr(stub(self._channel(access, address)), rpc)
                return await call(request, **self._options(access))
            except grpc.aio.AioRpcError as error:
                translated = self._translated(error, access, address)
                if not isinstance(translated, MasterAwayError):
                    raise translated from None
                last = translated

    def _translated(self, error: grpc.aio.AioRpcError, access: Access, address: str) -> Exception:
        text, detail = error.details() or error.code().name.lower(), _detail(error)
        if detail is not None and detail.reason == errors_pb2.ERROR_REASON_NOT_FOUND:
            return _NotFoundError(text)
        if detail is None or detail.retryable:
            leader = detail.facts.get("leader", "") if detail is not None else ""
            self._book(access).failed(address, leader)
            return MasterAwayError(f"{address}: {text}")
        return MasterRefusedError(f"{text} ({detail.hint})" if detail.hint else text)

    def _book(self, access: Access) -> AddressBook:
        if access.address not in self._books:
            self._books[access.address] = AddressBook(access.address)
        return self._books[access.address]

    def _options(self, access: Access) -> dict[str, Any]:
        metadata = [(versions.METADATA_KEY, str(versions.PROTOCOL))]
        if access.token:
            metadata.append(("authorization", f"Bearer {access.token}"))
        return {"timeout": self._timeout_seconds, "metadata": tuple(metadata)}

    def _channel(self, access: Access, address: str) -> grpc.aio.Channel:
        if access.token and not access.ca and not access.plain_token and not on_loopback(address):
            raise MasterAwayError(
                f"the token would go to {address} unencrypted: name a master.tlsSecret, "
                "or set the operator's ELASTANE_INSECURE=1"
            )
        # The files of a secret may be renewed: different credentials need a new channel.
        credentials = hashlib.sha256(b"\0".join((access.ca, access.cert, access.key))).hexdigest()
        key = (address, credentials)
        now = self._asked[key] = self._monotonic()
        if key not in self._channels:
            self._close_idle(now)
            self._channels[key] = self._open(access, address)
        return self._channels[key]

    def _close_idle(self, now: float) -> None:
        for key in [each for each, asked in self._asked.items() if now - asked > IDLE_SECONDS_MAX]:
            del self._asked[key]
            if (channel := self._channels.pop(key, None)) is not None:
                task = asyncio.create_task(channel.close(None))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def _open(self, access: Access, address: str) -> grpc.aio.Channel:
        if not access.ca:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        options = list(_OPTIONS)
        name = access.server_name or self._book(access).name_of(address)
        if not address.startswith(name):
            options.append(("grpc.ssl_target_name_override", name))
        ca = None if access.ca == b"system" else access.ca
        credentials = grpc.ssl_channel_credentials(ca, access.key or None, access.cert or None)
        return grpc.aio.secure_channel(address, credentials, options=options)


class _NotFoundError(Exception):
    """The master has no job of that name."""


def _detail(error: grpc.aio.AioRpcError) -> errors_pb2.ErrorDetail | None:
    """The master's error detail of a refusal; None if something other than the master refused."""
    metadata: Any = error.trailing_metadata()
    for key, value in metadata or ():
        if key == _DETAILS_KEY:
            status = status_pb2.Status.FromString(value)
            for packed in status.details:
                detail = errors_pb2.ErrorDetail()
                if packed.Unpack(detail):
                    return detail
    return None


class MasterWatch:
    """Follows a job at its master until `close`, so that decisions are carried out before the next look.

    on_change: called when its phase, sizes, generation or workers change.
    """

    def __init__(self, masters: Masters, access: Access, name: str, *, on_change: Callable[[], None]) -> None:
        self.access = access
        self._masters = masters
        self._name = name
        self._on_change = on_change
        self._task = asyncio.create_task(self._follow(), name=f"watch {name}")

    def close(self) -> None:
        """Stop following."""
        self._task.cancel()

    async def _follow(self) -> None:
        before: object = None
        while True:
            try:
                async for job in self._masters.changes(self.access, self._name):
                    seen = _essence(job)
                    if before is not None and seen != before:
                        self._on_change()
                    before = seen
            except Exception:  # noqa: BLE001 - each reconciliation reports what is wrong with the master
                pass
            await asyncio.sleep(_WATCH_PAUSE_SECONDS)


def _essence(job: job_pb2.Job) -> object:
    """The fields that a look could act on; the step number is not one of them."""
    workers = tuple(sorted((each.worker_id, each.state) for each in job.workers))
    settings, scaling = job.settings, job.scaling
    sizes = (settings.workers_min, settings.workers_max, scaling.workers_target, scaling.on_demand_target)
    return job.phase, job.reason, sizes, settings.scaling, job.generation, workers
