"""A master process that runs the product's unmodified code behind simulated sockets.

Servicers, translation, hosts, decisions, log and recovery run in a process of virtual time; this module
replaces the gRPC server, the command line that starts and stops it, and its Redis client.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from elastane_master.app import services
from elastane_master.decisions.events import Rejection
from elastane_master.jobs.clock import Clock
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.leading import Leadership
from elastane_master.jobs.limits import Limits
from elastane_master.jobs.serving import stopping
from elastane_master.servers.binding import service_handler
from elastane_master.servers.context_service import ContextServicer
from elastane_master.servers.job_service import JobServicer
from elastane_master.servers.metric_service import MetricServicer
from elastane_master.servers.ring_service import RingServicer
from elastane_master.servers.shard_service import ShardServicer
from elastane_master.servers.slot_service import SlotServicer
from elastane_master.store.connection import Store
from elastane_master.store.errors import Fenced, JobDamaged, JobTooNew, StoreError, StoreRefused
from elastane_master.store.leader_lease import LeaderLease, LeaseCandidate
from elastane_master.store.log import LogOptions
from elastane_proto.v1 import ring_pb2
from sim.checkers import Checkers
from sim.closings import Closings, check_served_once
from sim.network import ATTEND, CallContext, Ended, Network, Stream, unavailable
from sim.process import Process
from sim.store_model import StoreClient, StoreServer
from sim.takeovers import Takeovers, check_whole, inject
from sim.world import World

JOB = "job"
LIMITS = Limits()
HEALTH = "/grpc.health.v1.Health/Check"
FAULTS_OF_OURS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


@dataclass(frozen=True)
class _Details:
    """Call details that a generic handler receives."""

    method: str
    invocation_metadata: Any = ()


class _Leadership(Leadership):
    """The product's leadership. begins, ends: called when it begins to take over the jobs, and after that."""

    def __init__(
        self, begins: Callable[[], None], ends: Callable[[], None], *arguments: Any, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._begins, self._ends = begins, ends

    async def lead(self) -> bool:
        self._begins()
        try:
            return await super().lead()
        finally:
            self._ends()


class MasterModel:
    """One master process. takeovers: the run uses the leader's lease; None: the master serves at once.
    closings: its handling of finished jobs; None: it keeps them.

    serving: it answers calls, even if only with a refusal. leading_since: when its last takeover ended.
    follows_a_sync: when it started, all writes were on the disk, and no other master has led since.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        server: StoreServer,
        checkers: Checkers,
        name: str,
        options: LogOptions,
        *,
        wall_offset_seconds: float = 0.0,
        takeovers: Takeovers | None = None,
        closings: Closings | None = None,
        address: str = "",
    ) -> None:
        self.world, self.network, self.checkers, self.name = world, network, checkers, name
        self.process = Process(world, name)
        self.process.wall_offset_seconds = wall_offset_seconds
        self.serving = False
        self.leading_since = world.now
        self.follows_a_sync = False
        self.streams: list[Stream] = []
        self._calls: list[Callable[[Ended | None, Any], None]] = []
        self.candidate = LeaseCandidate(address, name, address, id=name, started_at=world.now)
        self._server, self._takeovers, self._closings = server, takeovers, closings
        self.is_calm: Callable[[], bool] = lambda: True
        self.takes_over: Callable[[], None] = lambda: None
        self.process.spawn(self._start(options))

    @property
    def deletes_jobs(self) -> bool:
        """True if finished jobs are kept up to a number only."""
        return self._closings is not None and math.isfinite(self._closings.newest)

    # ------------------------------------------------------------------ life

    async def _start(self, options: LogOptions) -> None:
        client = StoreClient(self._server, self.network, self.process)
        store = Store(client, "sim", None)  # type: ignore[arg-type]
        lease = None
        if self._takeovers is not None:
            asks = StoreClient(self._server, self.network, self.process)
            lease = LeaderLease(asks, self.candidate, self._takeovers.lease_seconds)  # type: ignore[arg-type]
        self.leadership = _Leadership(
            lambda: self._takeover_begins(client),
            self._takeover_ends,
            store,
            options,
            LIMITS,
            lease=lease,
            failed=self._failed,
            clock=Clock(self.process.wall, self.process.time),
            master=self.name,
        )
        self.jobs = self.leadership.jobs
        if self._closings is not None:
            self._closings.apply(self)
        servicers = (
            JobServicer(self.jobs),
            ShardServicer(self.jobs),
            RingServicer(self.jobs),
            ContextServicer(self.jobs),
            MetricServicer(self.jobs),
            SlotServicer(self.jobs),
        )
        described = services()[: len(servicers)]  # those of runs have a simulation of their own
        self._handlers = [
            *(service_handler(one, other) for one, other in zip(described, servicers, strict=True)),
            self._health_handler(),
        ]
        try:
            await self.leadership.start()
        except StoreError as error:
            self.world.log(f"{self.name} cannot start: {error}")
            if not isinstance(error, Fenced | StoreRefused):
                self.world.fail("no crash", f"{self.name} cannot read the store: {error}")
            self.kill()
            return
        with contextlib.suppress(Rejection):  # its lease may have expired, which it will notice soon
            for error in self.jobs.held().values() if self.leadership.leads else ():
                self.world.fail("nothing lost", f"{self.name} holds a job: {error}")
        self.serving = True
        self.world.log(f"{self.name} serves")

    def kill(self, *, silent: bool = False) -> None:
        """SIGKILL the process. silent: its host is gone too, so its sockets are not closed."""
        if not self.process.alive:
            return
        self.world.log(f"{self.name} dies, silent={silent}")
        self.process.kill()
        self.serving = False
        for stream in self.streams:
            stream.open_up = stream.open_up and silent
            if silent:
                stream.open_down = False
            else:
                stream.end(unavailable("connection reset"))
        for answered in self._calls:
            answered(unavailable("connection reset"), None)
        self.streams.clear()
        self._calls.clear()

    def stop(self) -> None:
        """SIGTERM the process, which then stops in an orderly way."""
        if self.process.alive and self.serving:
            self.world.log(f"{self.name} is asked to stop")
            self.process.spawn(self._stop())

    async def _stop(self) -> None:
        if self._takeovers is not None:
            await self.leadership.stop()
        else:
            # The product refuses new requests first; skipped here, so that more of them race with the stop.
            await self.jobs.stop(stopping())
        self.kill()

    def _takeover_ends(self) -> None:
        self.leading_since = self.world.now
        self.takes_over()

    def _takeover_begins(self, client: StoreClient) -> None:
        cut = self._takeovers.next_cut(self.is_calm()) if self._takeovers is not None else None
        client.calls = 0
        if cut is None or self._takeovers is None:
            client.asked = lambda number, acted: None
            return
        hit = self._takeovers.hit

        def asked(number: int, acted: bool) -> None:
            if (number, acted) == (cut.call, cut.acted) and self.process.alive:
                client.asked = lambda number, acted: None
                hit.append(cut)
                inject(cut, self.world, self.network, self._server, self.name)

        client.asked = asked

    def _failed(self, error: BaseException) -> None:
        self.world.log(f"{self.name} ends: {error}")
        if not isinstance(error, Fenced):
            self.world.fail("no crash", f"{self.name}: {error}")
        self.process.spawn(self._stop())

    @property
    def host(self) -> JobServer | None:
        """The job's host, or None; the simulated agents read it instead of calling GetJob."""
        if not self.serving or not self.leadership.leads:
            return None
        try:
            return self.jobs.get(JOB)
        except (JobDamaged, JobTooNew) as error:
            self.world.fail("nothing lost", f"{self.name} holds the job: {error}")
            return None
        except Rejection:
            return None

    # ------------------------------------------------------------------ the server

    def accept(self, stream: Stream) -> None:
        """Accept a stream whose first bytes have arrived. Runs in the process."""
        if not self.serving:
            stream.end(unavailable("connection refused"))
            return
        check_whole(self.world, self._server, self)
        self.streams = [known for known in self.streams if known.open_down]
        self.streams.append(stream)
        serve = self._attend if stream.method == ATTEND else self._serve
        stream.serving = self.process.spawn(serve(stream))

    async def _serve(self, stream: Stream) -> None:
        """Serve a stream that no checker of the ring looks at."""
        handler = self._handler(stream.method)

        def write(message: Any) -> None:
            stream.send(handler.response_serializer(message))

        async def requests() -> Any:
            async for payload in stream:
                yield handler.request_deserializer(payload)

        try:
            if handler.request_streaming:
                await handler.stream_stream(requests(), CallContext(write))
            else:
                await handler.unary_stream(await anext(requests()), CallContext(write))
        except Ended as ended:
            self._look_at(stream.method, ended)
            stream.end(ended)
        except StopAsyncIteration:
            stream.end(unavailable("no request came"))
        else:
            stream.end(None)

    async def _attend(self, stream: Stream) -> None:
        handler = self._handler(ATTEND)

        def write(message: ring_pb2.AttendResponse) -> None:
            payload = handler.response_serializer(message)
            if stream.open_down:
                self.checkers.sent(self.name, stream, ring_pb2.AttendResponse.FromString(payload))
            stream.send(payload)

        async def requests() -> Any:
            async for payload in stream:
                request = handler.request_deserializer(payload)
                self.checkers.heard(stream.worker_name, request)
                yield request

        try:
            await handler.stream_stream(requests(), CallContext(write))
        except Ended as ended:
            self._look_at(ATTEND, ended)
            stream.end(ended)
        else:
            stream.end(None)

    def take_call(self, method: str, payload: bytes, answered: Callable[[Ended | None, Any], None]) -> None:
        """Handle a unary request that has arrived. answered: called with the error or the response."""
        if not self.process.alive or not self.serving:
            answered(unavailable("connection refused"), None)
            return
        check_whole(self.world, self._server, self)
        check_served_once(self.world, self)
        self._calls.append(answered)
        self.process.call_soon(lambda: self.process.spawn(self._call(method, payload, answered)))

    async def _call(self, method: str, payload: bytes, answered: Callable[[Ended | None, Any], None]) -> None:
        handler = self._handler(method)
        self.world.log(f"{self.name} is asked {method.rpartition('/')[2]} ({len(payload)} bytes)")
        try:
            response = await handler.unary_unary(handler.request_deserializer(payload), CallContext())
        except Ended as ended:
            self._look_at(method, ended)
            answered(ended, None)
        else:
            self.world.log(f"{self.name} answers {method.rpartition('/')[2]}")
            answered(None, type(response).FromString(handler.response_serializer(response)))
        finally:
            if answered in self._calls:
                self._calls.remove(answered)

    def _health_handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """As `MasterServer._keep_health`: a master that serves the jobs is ready."""
        statuses = health_pb2.HealthCheckResponse.ServingStatus

        async def check(request: Any, context: Any) -> Any:
            ready = self.leadership.ready
            return health_pb2.HealthCheckResponse(status=statuses.SERVING if ready else statuses.NOT_SERVING)

        service, _, name = HEALTH[1:].partition("/")
        method = grpc.unary_unary_rpc_method_handler(
            check,
            health_pb2.HealthCheckRequest.FromString,
            health_pb2.HealthCheckResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(service, {name: method})

    def _handler(self, method: str) -> Any:
        for generic in self._handlers:
            handler = generic.service(_Details(method))
            if handler is not None:
                return handler
        raise LookupError(method)

    def _look_at(self, method: str, ended: Ended) -> None:
        if ended.code in FAULTS_OF_OURS:
            self.world.fail("no crash", f"{self.name} answers {method} with {ended}")
        self.checkers.refused(method, ended)
