"""A master in one object: the store, the jobs, the gRPC server, and the order they start and stop in.

The address is bound before any job is taken over: a master started twice by mistake fails there, and
the first one is not fenced.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from redis.exceptions import RedisError

from elastane_master.errors import CannotListen
from elastane_master.hosts import JobHosts
from elastane_master.security.facts import JobFacts
from elastane_master.security.gate import Gate, TokenFile
from elastane_master.security.tls import ServerTls, TlsFiles
from elastane_master.servers.binding import service_handler
from elastane_master.servers.context_service import ContextServicer
from elastane_master.servers.following import stopping
from elastane_master.servers.job_service import JobServicer
from elastane_master.servers.ring_service import RingServicer
from elastane_master.servers.shard_service import ShardServicer
from elastane_master.settings import MasterSettings
from elastane_master.signals import Signal
from elastane_master.store.connection import Store
from elastane_master.store.errors import Fenced, StoreError, StoreRefused
from elastane_proto.v1 import context_pb2, job_pb2, ring_pb2, shard_pb2

logger = structlog.get_logger(__name__)

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
        )
    ]


class Master:
    """One serving master. Used from one event loop.

    address: HOST:PORT as bound, once started.
    """

    def __init__(self, settings: MasterSettings) -> None:
        self.settings = settings
        self.address = ""
        self._server: grpc.aio.Server | None = None
        self._store: Store | None = None
        self._hosts: JobHosts | None = None
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._health_task: asyncio.Task[None] | None = None
        self._tokens_task: asyncio.Task[None] | None = None
        self._gate: Gate | None = None
        self._tls: ServerTls | None = None
        self._health_news = Signal()
        self._reachable = True
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Serves when it returns. Raises CannotListen, BadSecurityFile and StoreError."""
        settings = self.settings
        if settings.port_file is not None:
            settings.port_file.unlink(missing_ok=True)
        settings.security.require_safe(settings.listen, settings.listen_host)
        files = settings.security.tls_files()
        self._tls = ServerTls(files) if files is not None else None
        self._gate = Gate(TokenFile(settings.security.token_file))
        self._server = self._bind(self._gate)
        self._store = await Store.open(settings.store_options())
        self._hosts = JobHosts(
            self._store,
            settings.log_options(),
            on_failed=self._failed,
            on_reachable=self._store_reachable,
        )
        self._gate.facts = JobFacts(self._hosts)
        servicers = (
            JobServicer(self._hosts),
            ShardServicer(self._hosts),
            RingServicer(self._hosts),
            ContextServicer(self._hosts),
        )
        described = services()
        handlers = [
            service_handler(service, servicer) for service, servicer in zip(described, servicers, strict=True)
        ]
        self._server.add_generic_rpc_handlers(handlers)
        names = [service.full_name for service in described]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if settings.security.reflection:
            reflection.enable_server_reflection(
                [*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
            )
        try:
            await self._hosts.start()
        except RedisError as error:
            raise StoreRefused(f"the jobs of {self._store.url} cannot be read: {error}") from error
        self._health_task = asyncio.create_task(self._keep_health(["", *names]))
        self._tokens_task = asyncio.create_task(self._gate.keep_tokens())
        await self._server.start()
        if settings.port_file is not None:
            _write_atomically(settings.port_file, self.address)
        logger.info(
            "master serves",
            address=self.address,
            store=self._store.url,
            jobs=len(self._hosts.all()),
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
        """Stops in good order: streams are told, what is pending is written, the private store is ended."""
        if self._tokens_task is not None:
            self._tokens_task.cancel()
        if self._health_task is not None:
            self._health_task.cancel()
            await self._health.enter_graceful_shutdown()
        fenced = self._failure.done()
        if self._hosts is not None:
            await self._hosts.stop(stopping())
            fenced = fenced or any(isinstance(host.log.failure, Fenced) for host in self._hosts.all())
        if self._server is not None:
            await self._server.stop(self.settings.stop_grace_seconds)
        if self._store is not None:
            # Whoever took the jobs over may use the same private store.
            await self._store.close(stop_embedded=not fenced)
        if self.settings.port_file is not None and not fenced:
            self.settings.port_file.unlink(missing_ok=True)
        logger.info("master stopped", address=self.address)

    # ---------------------------------------------------------------- the server

    def _bind(self, gate: Gate) -> grpc.aio.Server:
        settings = self.settings
        server = grpc.aio.server(
            # Without tokens everybody may call everything: the gate would only cost.
            interceptors=[gate] if settings.security.token_file is not None else [],
            options=[
                ("grpc.max_receive_message_length", settings.message_bytes_max),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
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

    async def _keep_health(self, names: list[str]) -> None:
        """Sets every service's health to what the store allows, again whenever that changes."""
        while True:
            seen = self._health_news.count
            status = health_pb2.HealthCheckResponse.ServingStatus
            serving = status.SERVING if self._reachable else status.NOT_SERVING
            for name in names:
                await self._health.set(name, serving)
            await self._health_news.beyond(seen)

    # ---------------------------------------------------------------- from the jobs

    def _store_reachable(self, reachable: bool) -> None:
        self._reachable = reachable
        self._health_news.announce()

    def _failed(self, error: StoreError) -> None:
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
