"""What the tests of the master's edge share: a real store, and a relay that cuts connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from elastane_master.store.connection import Store, StoreOptions
from elastane_master.store.log import JobLog, LogListener, LogOptions


@contextlib.asynccontextmanager
async def private_store(folder: Path) -> AsyncIterator[Store]:
    """A store of its own in `folder`, stopped afterwards."""
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
    """A ledger as it is recovered from the store, with its log running."""
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
