"""Shared parts of the tests with a real store, among them a relay that cuts connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import msgspec
from grpc_status import rpc_status

import patience
from elastane_common.processes.child import ChildProcess
from elastane_master.app import Master
from elastane_master.settings import MasterSettings
from elastane_master.store.connection import Store, StoreOptions
from elastane_master.store.embedded import EmbeddedStore
from elastane_master.store.log import JobLog, LogListener, LogOptions
from elastane_proto.v1 import errors_pb2, ring_pb2, ring_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
#: How a call ends that gRPC itself ended: the connection was lost, or the master was too busy to begin it.
#: Such a call is asked again with its request id, as the head of errors.proto says.
ASKED_AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
SOURCES = [str(ROOT / name) for name in ("proto", "shard_service", "master")]


@contextlib.asynccontextmanager
async def private_store(folder: Path) -> AsyncIterator[Store]:
    """Start a private store in `folder`; it is stopped afterwards."""
    store = await Store.open(StoreOptions(state_dir=folder))
    try:
        yield store
    finally:
        await store.close(stop_embedded=True)


class Ledger:
    """A machine in miniature: its state is the list of its records."""

    def __init__(self, snapshot: bytes | None = None, records: list[bytes] | None = None) -> None:
        stored = msgspec.msgpack.decode(snapshot, type=list[bytes]) if snapshot else []
        self.records = stored + (records or [])
        self.log: JobLog | None = None

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.records)

    def append(self, record: bytes) -> asyncio.Future[None]:
        assert self.log is not None
        self.records.append(record)
        return self.log.append(record, history=[b"history of " + record])


async def open_ledger(
    store: Store, job: str = "j", options: LogOptions | None = None, listener: LogListener | None = None
) -> Ledger:
    """Open a ledger as recovered from the store, with its log running."""
    log, recovered = await JobLog.open(store.redis, job, options)
    ledger = Ledger(recovered.snapshot, recovered.records)
    ledger.log = log
    log.start(ledger.snapshot, listener)
    return ledger


class CuttingRelay:
    """Passes bytes between a client and a unix socket; cuts connections when told to.

    `lose_replies` = n: the next n requests reach the server, but their replies are swallowed and
    the connection is closed, so the client cannot know what became of them.
    """

    def __init__(self, target: Path, listen: Path) -> None:
        self.target = target
        self.listen = listen
        self.lose_replies = 0
        self.lost = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> CuttingRelay:
        self._server = await asyncio.start_unix_server(self._serve, self.listen)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self.target)
        back = asyncio.create_task(self._back(up_reader, writer))
        try:
            while data := await reader.read(65536):
                up_writer.write(data)
                await up_writer.drain()
        except OSError:
            pass
        finally:
            up_writer.close()
            await asyncio.wait({back})
            writer.close()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.lose_replies and data.startswith((b"$2\r\nOK", b"$9\r\nDUPLICATE")):
                    self.lose_replies -= 1
                    self.lost += 1
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()


@contextlib.asynccontextmanager
async def serving_master(folder: Path, **settings: object) -> AsyncIterator[tuple[Master, grpc.aio.Channel]]:
    """A master in this process with a private store in `folder`, and a channel to it."""
    master = Master(
        MasterSettings(listen="127.0.0.1:0", state_dir=folder, stop_grace_seconds=0.5, **settings)
    )
    try:
        await master.start()
        async with grpc.aio.insecure_channel(master.address) as channel:
            yield master, channel
    finally:
        await master.stop()


@contextlib.asynccontextmanager
async def store_down(master: Master) -> AsyncIterator[None]:
    """Kill the master's private store for the block; it may be started again afterwards."""
    embedded = master._store.embedded
    start, go_on = embedded.start, asyncio.Event()

    async def start_later() -> bool:
        await go_on.wait()
        return await start()

    embedded.start = start_later
    os.kill(server_pid(embedded), signal.SIGKILL)
    try:
        yield
    finally:
        go_on.set()
        embedded.start = start


@contextlib.contextmanager
def store_stopped(master: Master) -> Iterator[None]:
    """Suspend the master's private store for the block."""
    pid = server_pid(master._store.embedded)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class MasterChild(ChildProcess):
    """`python -m elastane_master ARGUMENTS`, awaited as asyncio's processes are; tests fork it off a server.

    environment: changes to this process's.
    """

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None, **output: Any) -> None:
        super().__init__(
            "master",
            [sys.executable, "-m", "elastane_master", *arguments],
            environment={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            **output,
        )

    @property
    def returncode(self) -> int | None:
        return None if self.status is None else self.status.returncode

    async def ended(self) -> int:
        """The exit code, once it has ended."""
        status = await asyncio.to_thread(self.wait)
        assert status is not None
        return status.returncode


class MasterProcess:
    """A master in a process of its own, which can be killed and started again at the same port."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.arguments = arguments
        self.address = "127.0.0.1:0"
        self.process: MasterChild | None = None
        self.log_path = folder.with_name(f"{folder.name}.log")  # the folder is made by the master

    async def start(self) -> None:
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        arguments = ["--listen", self.address, "--state-dir", str(self.folder), "--port-file", str(port_file)]
        # Into a file: a pipe that nobody reads fills up, and then the master stands still in its next line.
        self.log_path.write_bytes(b"")
        self.process = MasterChild(*arguments, *self.arguments, log=self.log_path)
        self.process.start()
        async with patience.within(60):
            while not port_file.exists():
                if self.process.returncode is not None:
                    raise AssertionError(self.log_path.read_text())
                await asyncio.sleep(0.01)
        self.address = port_file.read_text().strip()

    async def kill(self) -> None:
        """SIGKILL the master without notice to anybody; the private store lives on."""
        self.process.signal(signal.SIGKILL)
        await self.process.ended()

    async def stop(self) -> str:
        """SIGTERM the master; return what it logged."""
        self.process.signal(signal.SIGTERM)
        async with patience.within(30):
            await self.process.ended()
        return self.log_path.read_text()


@contextlib.asynccontextmanager
async def master_process(folder: Path, *arguments: str) -> AsyncIterator[MasterProcess]:
    """Start a master process; it and its private store are ended afterwards."""
    master = MasterProcess(folder, *arguments)
    try:
        await master.start()
        yield master
    finally:
        if master.process is not None and master.process.returncode is None:
            await master.kill()
        store = EmbeddedStore(folder)
        if server_pid(store) is not None:
            await store.stop()


def server_pid(store: EmbeddedStore) -> int | None:
    """Process id of the running server, or None."""
    if (lock := store._try_lock()) is not None:
        os.close(lock)
        return None
    return int((store.folder / "server.pid").read_text())


def reason_of(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str, errors_pb2.ErrorDetail]:
    """Return the code, the reason's name and the detail of a typed error."""
    status = rpc_status.from_call(error)
    assert status is not None, "no google.rpc.Status in the trailing metadata"
    detail = errors_pb2.ErrorDetail()
    assert status.details[0].Unpack(detail)
    return error.code(), errors_pb2.ErrorReason.Name(detail.reason).removeprefix("ERROR_REASON_"), detail


class Worker:
    """The worker's side of one Attend stream, spoken by hand."""

    def __init__(self, channel: grpc.aio.Channel, worker_id: str, job: str = "j") -> None:
        self.worker_id = worker_id
        self.job = job
        self.call = ring_pb2_grpc.RingServiceStub(channel).Attend()

    async def hello(self, role: int = ring_pb2.WORKER_ROLE_TASKS, **fields: object) -> ring_pb2.Welcome:
        await self.send(hello=ring_pb2.Hello(job=self.job, worker_id=self.worker_id, role=role, **fields))
        return (await self.receive("welcome")).welcome

    async def send(self, **message: object) -> None:
        await self.call.write(ring_pb2.AttendRequest(**message))

    async def receive(self, kind: str = "") -> ring_pb2.AttendResponse:
        response = await patience.wait_for(self.call.read(), 20)
        assert response is not grpc.aio.EOF, f"the stream ended, {kind or 'a message'} was expected"
        assert kind in ("", response.WhichOneof("message")), response
        return response

    async def ended(self) -> grpc.StatusCode:
        """Waits for the end of the stream."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await patience.wait_for(self.call.read(), 20) is not grpc.aio.EOF:
                pass
        return await self.call.code()
