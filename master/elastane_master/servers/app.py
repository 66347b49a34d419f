"""A master in one object: the store, the jobs, the gRPC server, and the order they start and stop in.

The address is bound before any job is taken over: a master started twice by mistake fails there, and
the first one is not fenced. On a store of one's own choice (--store) the master serves while it holds the
leader's lease, and refuses every request else, saying who leads. A private store has one master, held by a
lock on its directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from redis.exceptions import RedisError

from elastane_master.decisions.events import Rejection
from elastane_master.errors import CannotListen
from elastane_master.hosts import JobHosts
from elastane_master.metrics.measures import MasterMeasures
from elastane_master.security.facts import JobFacts
from elastane_master.security.gate import Gate, TokenFile
from elastane_master.security.tls import ServerTls, TlsFiles
from elastane_master.servers.binding import service_handler
from elastane_master.servers.context_service import ContextServicer
from elastane_master.servers.following import not_leading, stopping
from elastane_master.servers.job_service import JobServicer
from elastane_master.servers.metric_service import MetricServicer
from elastane_master.servers.ring_service import RingServicer
from elastane_master.servers.shard_service import ShardServicer
from elastane_master.settings import MasterSettings
from elastane_master.signals import Signal
from elastane_master.store.connection import Store
from elastane_master.store.errors import AnotherLeads, Fenced, StoreError, StoreRefused
from elastane_master.store.lease import Claimant, LeaderLease, place_of
from elastane_master.store.state_lock import StateLock
from elastane_master.succession import Follower, SuccessionKeeper
from elastane_proto import tracing
from elastane_proto.v1 import context_pb2, job_pb2, metric_pb2, ring_pb2, shard_pb2

if TYPE_CHECKING:
    from elastane_master.dashboard.local_calls import LocalCalls
    from elastane_master.http.port import HttpPort

logger = structlog.get_logger(__name__)

_COMPRESSION_REFUSED = (
    # A message of 65 kB may be 64 MiB once inflated. Nobody here sends such: only "identity" is known, and
    # what says otherwise is refused by its headers, or comes as the bytes it is.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.enable_per_message_decompression", 0),
)
_WILDCARDS = frozenset({"[::]", "0.0.0.0"})


def services() -> list[ServiceDescriptor]:
    """Descriptors of the services a master serves."""
    return [
        module.DESCRIPTOR.services_by_name[name]
        for module, name in (
            (job_pb2, "JobService"),
            (shard_pb2, "ShardService"),
            (ring_pb2, "RingService"),
            (context_pb2, "ContextService"),
            (metric_pb2, "MetricService"),
        )
    ]


class Master(Follower):
    """One master. Used from one event loop.

    address: HOST:PORT as bound, once started. leads: whether it serves now. measures: of its calls and store.
    """

    def __init__(self, settings: MasterSettings) -> None:
        self.settings = settings
        self.address = ""
        self.leads = False
        self._server: grpc.aio.Server | None = None
        self._store: Store | None = None
        self._state_lock: StateLock | None = None
        self._hosts: JobHosts | None = None
        self._keeper: SuccessionKeeper | None = None
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._health_task: asyncio.Task[None] | None = None
        self._tokens_task: asyncio.Task[None] | None = None
        self._door_task: asyncio.Task[None] | None = None
        self._gate: Gate | None = None
        self._tls: ServerTls | None = None
        self._health_news = Signal()
        self._reachable = True
        self._stopping = False
        self._http: HttpPort | None = None
        self._calls: LocalCalls | None = None
        self._tracer: tracing.Tracer | None = None
        self.measures = MasterMeasures()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Serves, or stands by, when it returns. Raises CannotListen, BadSecurityFile and StoreError."""
        settings = self.settings
        for file in (settings.port_file, settings.http_port_file):
            if file is not None:
                file.unlink(missing_ok=True)
        settings.security.require_safe(settings.listen, settings.listen_host)
        files = settings.security.tls_files()
        self._tls = ServerTls(files) if files is not None else None
        self._gate = Gate(TokenFile(settings.security.token_file))
        self._server = self._bind(self._gate)
        if settings.http:
            self._http = await self._open_http()
        if not settings.store:
            self._state_lock = StateLock(settings.state_dir)
            self._state_lock.acquire()
        self._store = await Store.open(settings.store_options())
        self._hosts = JobHosts(
            self._store,
            settings.log_options(),
            settings,
            on_failed=self._failed,
            on_reachable=self._store_reachable,
        )
        self._hosts.measures = self.measures.store
        self._tracer = self._hosts.tracer = tracing.open_tracer("elastane-master", self.address)
        self._gate.facts = JobFacts(self._hosts)
        self._hosts.refuse(not_leading(None))
        names = self._add_services(self._server, self._hosts)
        if settings.store:
            self._keeper = self._make_keeper(self._store)
            await self._keeper.start()
            if not self.leads:
                self._stand_by(self._keeper)
            self._keeper.failure.add_done_callback(self._keeper_failed)
        else:
            await self.lead()
        self._health_task = asyncio.create_task(self._keep_health(["", *names]))
        self._tokens_task = asyncio.create_task(self._gate.keep_tokens())
        await self._server.start()
        if self._gate.asks_for_tokens:  # else everybody is let in, and nobody a stranger
            port = int(self.address.rpartition(":")[2])
            self._door_task = asyncio.create_task(self._gate.keep_door(port))
        if settings.port_file is not None:
            _write_atomically(settings.port_file, self.address)
        logger.info(
            "master serves" if self.leads else "master stands by",
            address=self.address,
            http=self._http.address if self._http is not None else None,
            store=self._store.url,
            jobs=self._hosts.count if self.leads else None,
            tls=_how(files),
            tokens=settings.security.token_file is not None,
        )

    async def failed(self) -> None:
        """Waits until the master cannot serve any more; raises the StoreError that says why."""
        await asyncio.shield(self._failure)

    def refresh_security(self) -> None:
        """Takes up changed files of tokens and certificates now; called on SIGHUP."""
        if self._gate is not None:
            self._gate.refresh()
        if self._tls is not None:
            self._tls.refresh()

    async def stop(self) -> None:
        """Stops in good order: streams are told, what is pending is written, the private store is ended.

        A master that stands by for this one is told once everything is written.
        """
        self._stopping = True
        for task in (self._tokens_task, self._door_task):
            if task is not None:
                task.cancel()
        if self._health_task is not None:
            self._health_task.cancel()
            await self._health.enter_graceful_shutdown()
        fenced = self._failure.done()
        if self._keeper is not None:
            await self._keeper.stop()
        if self._hosts is not None:
            self._hosts.refuse(stopping())
            await self._hosts.stop(stopping())
            fenced = fenced or self._hosts.any_fenced()
        if self._keeper is not None:
            await self._keeper.release()
        if self._server is not None:
            await self._server.stop(self.settings.stop_grace_seconds)
        if self._http is not None:
            await self._http.stop()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        if self._store is not None:
            # Whoever took the jobs over may use the same private store.
            await self._store.close(stop_embedded=not fenced)
        if self._state_lock is not None:
            self._state_lock.release()
        if not fenced:
            for file in (self.settings.port_file, self.settings.http_port_file):
                if file is not None:
                    file.unlink(missing_ok=True)
        logger.info("master stopped", address=self.address)

    # ---------------------------------------------------------------- succession

    def _make_keeper(self, store: Store) -> SuccessionKeeper:
        settings = self.settings
        port = self.address.rpartition(":")[2]
        address = self.address
        if settings.listen_host in _WILDCARDS:  # others do not reach us at the loopback address
            with contextlib.suppress(OSError):  # a host that does not know its own name
                address = f"{socket.gethostbyname(socket.gethostname())}:{port}"
        claimant = Claimant(
            address=settings.advertise or address,
            master=f"{socket.gethostname()}:{os.getpid()}",
            place=place_of(f"{settings.listen_host}:{port}"),
        )
        return SuccessionKeeper(LeaderLease(store.redis, claimant, settings.leader_lease_seconds), self)

    async def lead(self) -> None:
        """Takes every job over. A store that goes away meanwhile is waited for, except at the start."""
        assert self._hosts is not None and self._store is not None
        started = time.monotonic()
        for attempt in itertools.count(1):
            try:
                await self._hosts.start()
                break
            except Fenced as error:  # while we were reading: somebody else is about to serve
                await self._hosts.abandon(not_leading(None))
                if self._keeper is None:
                    raise
                self._keeper.fenced(str(error))
                return
            except RedisError as error:
                if self._health_task is None:
                    raise StoreRefused(f"the jobs of {self._store.url} cannot be read: {error}") from error
                logger.warning("the jobs cannot be taken over yet", error=str(error))
                await self._hosts.abandon(not_leading(None))
                if self._keeper is not None and self._keeper.state.role != "leading":
                    return
                await asyncio.sleep(min(0.05 * 2.0 ** min(attempt, 10), 1.0))
        self.leads = True
        self._hosts.refuse_by(self._lease_over)
        self._health_news.announce()
        self.measures.takeovers += 1
        self.measures.takeover_seconds = seconds = round(time.monotonic() - started, 3)
        if self._keeper is not None:
            logger.info("leads", jobs=self._hosts.count, address=self.address, takeover_seconds=seconds)

    async def pause(self, reason: str) -> None:
        assert self._hosts is not None
        logger.warning("does not lead until the store answers", reason=reason)
        self.leads = False
        self._hosts.pause(not_leading(None))
        self._health_news.announce()

    async def resume(self) -> None:
        assert self._hosts is not None
        logger.info("leads again: nobody else did meanwhile")
        self.leads = True
        self._hosts.resume()
        self._hosts.refuse_by(self._lease_over)
        self._health_news.announce()

    async def give_way(self, reason: str) -> None:
        assert self._hosts is not None and self._keeper is not None
        logger.warning("gives way", reason=reason)
        self.leads = False
        self._health_news.announce()
        await self._hosts.abandon(not_leading(self._keeper.state.leader))
        self._stand_by(self._keeper, reason)

    def _stand_by(self, keeper: SuccessionKeeper, reason: str = "") -> None:
        assert self._hosts is not None
        hosts = self._hosts
        hosts.refuse_by(lambda: not_leading(keeper.state.leader))
        if self.settings.standby is False:
            leader = keeper.state.leader
            said = reason or (f"{leader.master} at {leader.address} leads this store" if leader else "")
            raise AnotherLeads(said or "another master leads this store")

    def _lease_over(self) -> Rejection | None:
        """The refusal of a request when the lease may be another master's, whether we were told or not.

        A master that was stopped for a while finds requests waiting before it has asked for its lease.
        """
        if self._keeper is None:
            return None
        state = self._keeper.state
        if state.role == "leading" and time.monotonic() - state.renewed_at <= state.lease_seconds:
            return None
        return not_leading(state.leader)

    def _keeper_failed(self, failure: asyncio.Future[None]) -> None:
        if not failure.cancelled() and (error := failure.exception()) is not None:
            self._fail(error)

    # ---------------------------------------------------------------- the services

    def _add_services(self, server: grpc.aio.Server, hosts: JobHosts) -> list[str]:
        """Registers every service; returns the names of ours."""
        servicers = (
            JobServicer(hosts),
            ShardServicer(hosts),
            RingServicer(hosts),
            ContextServicer(hosts),
            MetricServicer(hosts),
        )
        described = services()
        handlers = [
            service_handler(service, servicer, self.settings.watch_write_seconds_max, self.measures.rpcs)
            for service, servicer in zip(described, servicers, strict=True)
        ]
        server.add_generic_rpc_handlers(handlers)
        if self._http is not None:
            from elastane_master.dashboard.local_calls import LocalCalls

            self._calls = LocalCalls(self.gate, handlers)
        names = [service.full_name for service in described]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if self.settings.security.reflection:
            described_names = [*names, health.SERVICE_NAME, reflection.SERVICE_NAME]
            reflection.enable_server_reflection(described_names, server)
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
                # Of a flood of calls that are taken back at once, gRPC takes the fewer at a time.
                ("grpc.http.overload_protection", 1),
                ("grpc.http2.max_deallocating_streams", 50),
                ("grpc.http2.max_requests_per_read", 4),
                # How much of a call comes before it is read. By its own measurements gRPC would raise that to
                # megabytes, for calls that nobody reads, too.
                ("grpc.http2.lookahead_bytes", 65_535),
                ("grpc.http2.bdp_probe", 0),
                # Idle sessions stay open for hours; proxies on the way drop silent connections.
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                # Clients may ping as often as they like: they look for a master that vanished.
                ("grpc.http2.min_ping_interval_without_data_ms", 500),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
                ("grpc.http2.max_ping_strikes", 0),
            ],
        )
        wanted = f"{settings.listen_host}:{settings.listen_port}"
        try:
            if self._tls is not None:
                port = server.add_secure_port(wanted, self._tls.grpc_credentials())
            else:
                port = server.add_insecure_port(wanted)
        except RuntimeError as error:
            raise CannotListen(
                settings.listen, "the address is in use, or not one of this machine"
            ) from error
        host = "127.0.0.1" if settings.listen_host in _WILDCARDS else settings.listen_host
        self.address = f"{host}:{port}"
        return server

    async def _open_http(self) -> HttpPort:
        """Binds and serves the HTTP port: probes answer while the jobs are still being taken over."""
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
            _write_atomically(settings.http_port_file, port.address)
        return port

    async def _keep_health(self, names: list[str]) -> None:
        """Sets every service's health to what the store allows, again whenever that changes."""
        while True:
            seen = self._health_news.count
            status = health_pb2.HealthCheckResponse.ServingStatus
            serving = status.SERVING if self._reachable and self.leads else status.NOT_SERVING
            for name in names:
                await self._health.set(name, serving)
            await self._health_news.beyond(seen)

    # ---------------------------------------------------------------- for the HTTP port

    @property
    def hosts(self) -> JobHosts | None:
        """The jobs; None before the store is open."""
        return self._hosts

    @property
    def gate(self) -> Gate:
        """Who is let in; there is one from the start on."""
        assert self._gate is not None
        return self._gate

    @property
    def calls(self) -> LocalCalls | None:
        """The rpcs as the dashboard calls them; None before they are there, or without an HTTP port."""
        return self._calls

    @property
    def store_reachable(self) -> bool:
        """Whether the store answers, as far as is known."""
        return self._store is not None and self._reachable

    @property
    def fencing_token(self) -> int:
        """Of the leader's lease as this master held it last; 0: never, or its store has no lease."""
        return self._keeper.state.token if self._keeper is not None else 0

    def not_ready(self) -> str:
        """Why requests are refused now, in words; empty while they are served."""
        if self._stopping:
            return "stops"
        if self._store is None:
            return "waits for its store"
        if not self._reachable:
            return "the store does not answer"
        if self.leads:
            lapsed = self._lease_over()
            return str(lapsed) if lapsed is not None else ""
        leader = self._keeper.state.leader if self._keeper is not None else None
        if leader is not None:
            return f"stands by: {leader.master} at {leader.address} leads"
        return "takes the jobs over, or waits for the store to say who leads"

    # ---------------------------------------------------------------- from the jobs

    def _store_reachable(self, reachable: bool) -> None:
        self._reachable = reachable
        self._health_news.announce()

    def _failed(self, error: StoreError) -> None:
        if self._keeper is not None and isinstance(error, Fenced):
            self._keeper.fenced(str(error))
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)


def _how(files: TlsFiles | None) -> str:
    if files is None:
        return "none"
    return "mutual" if files.client_ca is not None else "server"


def _write_atomically(path: Path, text: str) -> None:
    """Whoever waits for the file finds all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text + "\n")
    temporary.replace(path)
