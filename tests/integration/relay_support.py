"""Relays for tests: processes, as an agent starts them, and a relay in this process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

import patience
from elastane_agent.relay.service import RelayService
from elastane_agent.relay.upstream import Upstream
from elastane_common.message_size import size_options


class RelayProcess:
    """`python -m elastane_agent.relay` for the masters at `addresses`."""

    def __init__(self, folder: Path, addresses: str) -> None:
        self._port_file = folder / "relay-port"
        self._port_file.unlink(missing_ok=True)
        self._log = (folder / "relay.log").open("ab")
        command = [sys.executable, "-m", "elastane_agent.relay", "--master", addresses]
        command += ["--port-file", str(self._port_file)]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self.log = folder / "relay.log"

    async def address(self) -> str:
        """Its address, once it serves."""
        async with patience.within(30):
            while not self._port_file.exists():
                await asyncio.sleep(0.01)
        return self._port_file.read_text().strip()

    def end(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._log.close()


@contextlib.asynccontextmanager
async def relay_process(folder: Path, addresses: str) -> AsyncIterator[tuple[RelayProcess, grpc.aio.Channel]]:
    """A relay's process and a channel to it."""
    relay = RelayProcess(folder, addresses)
    try:
        async with grpc.aio.insecure_channel(await relay.address()) as channel:
            yield relay, channel
    finally:
        relay.end()


@contextlib.asynccontextmanager
async def relay_here(addresses: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A relay in this process: its address, and what it says."""
    said: list[str] = []
    upstream = Upstream(addresses, said.append)
    service = RelayService(upstream)
    server = grpc.aio.server(options=size_options())
    server.add_generic_rpc_handlers([service])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", said
    finally:
        await server.stop(0)
        await upstream.close()
        await service.close()
