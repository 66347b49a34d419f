"""A complete master: the store, the jobs, the gRPC server, and their order of start and stop.

The address is bound before any job is taken over: a master accidentally started twice fails there, without
fencing the first one. With --store the master serves while it holds the leader's lease; otherwise it refuses
every request and names the leader. A private store has only one master, ensured by a lock on its directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from elastane_common.atomic_writes import write_atomically
from elastane_master import descriptors
from elastane_master.decisions.retention import Retention
from elastane_master.errors import CannotListen, TooFewDescriptors
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.leading import Leadership
from elastane_master.jobs.stage_planning import StagePlanning
from elastane_master.metrics.measures import MasterMeasures
from elastane_master.runs.service import TrainingRuns
from elastane_master.security.tls import ServerTls, TlsFiles
from elastane_master.servers.binding import service_handler
from elastane_master.servers.capture_service import CaptureServicer
from elastane_master.servers.chapter_service import ChapterServicer
from elastane_master.servers.context_service import ContextServicer
from elastane_master.servers.describing import describe
from elastane_master.servers.gate import Gate, TokenFile
from elastane_master.servers.job_service import JobServicer
from elastane_master.servers.log_service import LogServicer
from elastane_master.servers.metric_service import MetricServicer
from elastane_master.servers.relay_stream import RelayedAttends
from elastane_master.servers.ring_service import RingServicer
from elastane_master.servers.runner_service import RunnerServicer
from elastane_master.servers.shard_service import ShardServicer
from elastane_master.servers.slot_service import SlotServicer
from elastane_master.servers.training_service import TrainingServicer
from elastane_master.servers.translate_run import run_message
from elastane_master.settings import MasterSettings
from elastane_master.store.connection import Store
from elastane_master.store.leader_lease import LeaderLease, LeaseCandidate, place_of
from elastane_master.store.state_lock import StateLock
from elastane_proto import tracing
from elastane_proto.channels import server_options
from elastane_proto.training import training_service_pb2
from elastane_proto.v1 import (
    capture_pb2,
    context_pb2,
    job_pb2,
    log_pb2,
    metric_pb2,
    ps_pb2,
    ring_pb2,
    shard_pb2,
    training_pb2,
)

if TYPE_CHECKING:
    from elastane_master.dashboard.local_calls import LocalCalls
    from elastane_master.http.port import HttpPort

logger = structlog.get_logger(__name__)

_COMPRESSION_REFUSED = (
    # A message of 65 kB may decompress to 64 MiB. No Elastane client compresses: only "identity" is enabled,
    # and other encodings are refused by their headers or arrive still compressed.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.enable_per_message_decompression", 0),
)
PENDING_CALLS_MAX: Final = 100_000
_WILDCARDS = frozenset({"[::]", "0.0.0.0"})


_SERVICERS = (
    JobServicer,
    ShardServicer,
    RingServicer,
    ContextServicer,
    MetricServicer,
    SlotServicer,
    LogServicer,
    CaptureServicer,
)
_RUN_SERVICERS = (TrainingServicer, RunnerServicer, ChapterServicer)


def services() -> list[ServiceDescriptor]:
    """Descriptors of the services of a master, in the order of their servicers."""
    files = (
        job_pb2,
        shard_pb2,
        ring_pb2,
        context_pb2,
        metric_pb2,
        ps_pb2,
        log_pb2,
        capture_pb2,
        training_pb2,
        training_service_pb2,
    )
    return [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]


class Master:
    """One master. Used from one event loop.

    address: HOST:PORT as bound, once started. leadership, jobs: set once the store is open. calls: the rpcs
    for the dashboard; None before the services exist, or without an HTTP port. measures: of its calls and
    store.
    """

    def __init__(self, settings: MasterSettings) -> None:
        self.settings = settings
        self.address = ""
        self.leadership: Leadership | None = None
        self._server: grpc.aio.Server | None = None
        self._store: Store | None = None
        self._state_lock: StateLock | None = None
        self.jobs: JobServers | None = None
        self.runs: TrainingRuns | None = None
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._health_task: asyncio.Task[None] | None = None
        self._tokens_task: asyncio.Task[None] | None = None
        self._planning_task: asyncio.Task[None] | None = None
        self._gate: Gate | None = None
        self._tls: ServerTls | None = None
        self._stopping = False
        self._http: HttpPort | None = None
        self.calls: LocalCalls | None = None
        self._tracer: tracing.Tracer | None = None
        self.measures = MasterMeasures()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Start; on return the master serves or stands by.

        Raises CannotListen, TooFewDescriptors, BadSecurityFile and StoreError.
        """
        self.settings = settings = within_descriptors(self.settings, descriptors.raise_limit())
        for file in (settings.port_file, settings.http_port_file):
            if file is not None:
                file.unlink(missing_ok=True)
        settings.security.require_safe(settings.listen, settings.listen_host)
        files = settings.security.tls_files()
        self._tls = ServerTls(files) if files is not None else None
        self._gate = Gate(TokenFile(settings.security.token_file), tls=self._tls)
        self._server = self._bind(self._gate)
        if settings.http:
            self._http = await self._open_http()
        if not settings.store:
            self._state_lock = StateLock(settings.state_dir)
            self._state_lock.acquire()
        self._store = await Store.open(settings.store_options())
        self.leadership = leadership = Leadership(
            self._store,
            settings.log_options(),
            settings,
            lease=self._lease(self._store) if settings.store else None,
            standby=settings.standby is not False,
            measures=self.measures,
            failed=self._fail,
        )
        self.jobs = leadership.jobs
        self.runs = TrainingRuns(
            self.jobs, settings.service_options(), settings.log_options(), settings, run_message
        )
        self.jobs.companions.append(self.runs)
        self.jobs.finished.retention = Retention.parse(settings.keep_finished)
        self.jobs.finished.close_seconds = settings.close_finished_seconds
        self._tracer = self.jobs.opening.tracer = tracing.open_tracer("elastane-master", self.address)
        self._gate.jobs = self.jobs
        names = self._add_services(self._server, self.jobs, self.runs)
        await leadership.start()
        self._health_task = asyncio.create_task(self._keep_health(leadership, ["", *names]))
        self._tokens_task = asyncio.create_task(self._gate.keep_tokens())
        self._planning_task = asyncio.create_task(StagePlanning(self.jobs.running).run())
        await self._server.start()
        if self._gate.front is not None:
            await self._gate.front.start()
        if settings.port_file is not None:
            _write_port_file(settings.port_file, self.address)
        logger.info(
            "master serves" if self.leads else "master stands by",
            address=self.address,
            http=self._http.address if self._http is not None else None,
            store=self._store.url,
            jobs=self.jobs.count if self.leads else None,
            tls=_how(files),
            tokens=settings.security.token_file is not None,
        )

    async def failed(self) -> None:
        """Wait until the master cannot serve any more; raises the StoreError that is the cause."""
        await asyncio.shield(self._failure)

    def refresh_security(self) -> None:
        """Load changed files of tokens and certificates now; called on SIGHUP."""
        if self._gate is not None:
            self._gate.refresh()
        if self._tls is not None:
            self._tls.refresh()

    async def stop(self) -> None:
        """Stop in order: end streams with an error, write what is pending, stop the private store.

        A standby master is notified after everything is written.
        """
        self._stopping = True
        front = self._gate.front if self._gate is not None else None
        if front is not None:
            front.close_port()
        for task in (self._tokens_task, self._planning_task):
            if task is not None:
                task.cancel()
        if self._health_task is not None:
            self._health_task.cancel()
            await self._health.enter_graceful_shutdown()
        fenced = self._failure.done()
        if self.leadership is not None:
            fenced = await self.leadership.stop() or fenced
        if self._server is not None:
            await self._server.stop(self.settings.stop_grace_seconds)
        if front is not None:
            await front.stop()
        if self._http is not None:
            await self._http.stop()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        if self._store is not None:
            # A master that took the jobs over may use the same private store.
            await self._store.close(stop_embedded=not fenced)
        if self._state_lock is not None:
            self._state_lock.release()
        if not fenced:
            for file in (self.settings.port_file, self.settings.http_port_file):
                if file is not None:
                    file.unlink(missing_ok=True)
        if self.address:  # one that never listened has said why
            logger.info("master stopped", address=self.address)

    def _lease(self, store: Store) -> LeaderLease:
        settings = self.settings
        port = self.address.rpartition(":")[2]
        address = self.address
        if settings.listen_host in _WILDCARDS:  # others do not reach us at the loopback address
            with contextlib.suppress(OSError):  # a host that does not know its own name
                address = f"{socket.gethostbyname(socket.gethostname())}:{port}"
        candidate = LeaseCandidate(
            address=settings.advertise or address,
            master=f"{socket.gethostname()}:{os.getpid()}",
            place=place_of(f"{settings.listen_host}:{port}"),
        )
        return LeaderLease(store.redis, candidate, settings.leader_lease_seconds)

    # ---------------------------------------------------------------- the services

    def _add_services(self, server: grpc.aio.Server, jobs: JobServers, runs: TrainingRuns) -> list[str]:
        """Register every service; return the names of Elastane's own."""
        described = services()
        servicers: list[object] = [servicer(jobs) for servicer in _SERVICERS]
        servicers += [servicer(runs) for servicer in _RUN_SERVICERS]
        handlers = [
            service_handler(service, servicer, self.settings.watch_write_seconds_max, self.measures.rpcs)
            for service, servicer in zip(described, servicers, strict=True)
        ]
        server.add_generic_rpc_handlers(handlers)
        for servicer in servicers:
            if isinstance(servicer, RingServicer):
                servicer.attends = RelayedAttends(self.gate, handlers)
        if self._http is not None:
            from elastane_master.dashboard.local_calls import LocalCalls

            self.calls = LocalCalls(self.gate, handlers)
        names = [service.full_name for service in described]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if self.settings.security.reflection:
            describe([*names, health.SERVICE_NAME], server)
        return names

    # ---------------------------------------------------------------- the server

    def _bind(self, gate: Gate) -> grpc.aio.Server:
        settings = self.settings
        server = grpc.aio.server(
            # Without tokens everybody may call everything: the gate would only cost.
            interceptors=[gate] if settings.security.token_file is not None else [],
            options=[
                ("grpc.max_receive_message_length", settings.message_bytes_max),
                ("grpc.max_send_message_length", settings.answer_bytes_max),
                ("grpc.so_reuseport", 0),
                *_COMPRESSION_REFUSED,
                ("grpc.max_concurrent_streams", settings.streams_per_connection_max),
                # Beyond this number of unread calls gRPC cancels random ones; thousands of workers that
                # reconnect at once make as many.
                ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
                ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
                # During a flood of calls that are cancelled at once, gRPC handles fewer at a time.
                ("grpc.http.overload_protection", 1),
                ("grpc.http2.max_deallocating_streams", 50),
                ("grpc.http2.max_requests_per_read", 4),
                # Bytes received of a call before it is read. With its probe gRPC would raise this to
                # megabytes, even for calls that nobody reads.
                ("grpc.http2.lookahead_bytes", 65_535),
                ("grpc.http2.bdp_probe", 0),
                *server_options(),
            ],
        )
        host, port = settings.listen_host, settings.listen_port
        _require_free(host, port, settings.listen)
        wanted = gate.front.inner if gate.front is not None else f"{host}:{port}"
        try:
            if self._tls is not None and gate.front is None:
                bound = server.add_secure_port(wanted, self._tls.grpc_credentials())
            else:
                bound = server.add_insecure_port(wanted)
            port = gate.front.bind(host, port) if gate.front is not None else bound
        except (OSError, RuntimeError) as error:
            raise CannotListen(settings.listen, str(error)) from error
        host = "127.0.0.1" if settings.listen_host in _WILDCARDS else settings.listen_host
        self.address = f"{host}:{port}"
        return server

    async def _open_http(self) -> HttpPort:
        """Bind and serve the HTTP port; probes are answered while the jobs are still being taken over."""
        from elastane_master.http.port import HttpPort  # aiohttp is only needed from here on
        from elastane_master.http.routes import Access

        settings, security = self.settings, self.settings.security
        security.require_safe(settings.http, settings.http_host)
        port = HttpPort(
            self,
            Access(security.http_open_metrics, certificate=security.tls_client_ca is not None),
            connections_max=settings.http_connections_max,
            tls=self._tls.ssl_context(certificate_optional=True) if self._tls is not None else None,
            grace_seconds=settings.stop_grace_seconds,
        )
        await port.start(settings.http_host, settings.http_port)
        if settings.http_port_file is not None:
            _write_port_file(settings.http_port_file, port.address)
        return port

    async def _keep_health(self, leadership: Leadership, names: list[str]) -> None:
        """Keep every service's health status equal to whether the jobs are served."""
        while True:
            seen = leadership.news.count
            status = health_pb2.HealthCheckResponse.ServingStatus
            serving = status.SERVING if leadership.ready else status.NOT_SERVING
            for name in names:
                await self._health.set(name, serving)
            await leadership.news.beyond(seen)

    # ---------------------------------------------------------------- for the HTTP port

    @property
    def gate(self) -> Gate:
        """The gate; available once the start has begun."""
        assert self._gate is not None
        return self._gate

    @property
    def store_reachable(self) -> bool:
        """True if the store answers, as far as is known."""
        return self.leadership is not None and self.leadership.reachable

    @property
    def leads(self) -> bool:
        """True if this master serves the jobs now."""
        return self.leadership is not None and self.leadership.leads

    @property
    def fencing_token(self) -> int:
        """Fencing token of the lease as last held by this master; 0: never, or its store has no lease."""
        keeper = self.leadership.keeper if self.leadership is not None else None
        return keeper.state.token if keeper is not None else 0

    def not_ready(self) -> str:
        """Reason why requests are currently refused; empty while they are served."""
        if self._stopping:
            return "stops"
        return self.leadership.not_ready() if self.leadership is not None else "waits for its store"

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)


def _require_free(host: str, port: int, listen: str) -> None:
    """Raise CannotListen with the system's reason; gRPC logs its own lines and gives no reason."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            # Same option as the server: connections in TIME_WAIT do not block the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise CannotListen(listen, error.strerror or str(error)) from error


def within_descriptors(settings: MasterSettings, limit: int) -> MasterSettings:
    """Return the settings with bounds lowered to the limit of descriptors; 0 means no limit.

    Raises TooFewDescriptors.
    """
    if not limit:
        return settings
    wanted = {
        "store_connections_max": settings.store_connections_max,
        "store_reads_max": settings.store_reads_max,
        "http_connections_max": settings.http_connections_max if settings.http else 0,
    }
    shared = descriptors.shared_out(limit, *wanted.values())
    given = dict(zip(wanted, (shared.store, shared.reads, shared.http), strict=True))
    lowered = {name: bound for name, bound in given.items() if bound < wanted[name]}
    if lowered:
        logger.warning(
            "few descriptors: bounds are lowered",
            limit=limit,
            lowered=", ".join(f"{name} {wanted[name]} to {bound}" for name, bound in lowered.items()),
            # With tokens a caller uses two connections, and both ends of the second are here (front.py):
            # three descriptors.
            left_for_callers=shared.callers // (3 if settings.security.token_file is not None else 1),
            hint=TooFewDescriptors.hint,
        )
    return settings.model_copy(update=lowered)


def _how(files: TlsFiles | None) -> str:
    if files is None:
        return "none"
    return "mutual" if files.client_ca is not None else "server"


def _write_port_file(path: Path, address: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, address + "\n")
