"""A TCP relay to a store that can reset its connections, as load balancers and firewalls reset idle ones."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER: on, for 0 seconds."""


class ResettingWay:
    """Relays to the store's socket at `target`. url: of this way."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> ResettingWay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.reset()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def reset(self) -> None:
        """Reset every connection; new ones are accepted."""
        for writer in self._writers:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        store_reader, store_writer = await asyncio.open_unix_connection(self._target)
        self._writers.add(writer)
        await asyncio.gather(_pump(reader, store_writer), _pump(store_reader, writer), return_exceptions=True)
        self._writers.discard(writer)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
