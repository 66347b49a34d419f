"""The process of a relay, started by an agent.

    python -m elastane_agent.relay --master HOST:PORT[,HOST:PORT...] --listen HOST:PORT --port-file FILE

Writes a line when its stream to the master ends. It keeps nothing: if it is killed, its workers' streams
break.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import grpc

from elastane_agent.relay.service import RelayService
from elastane_agent.relay.upstream import Upstream
from elastane_common.atomic_writes import write_atomically
from elastane_common.message_size import size_options
from elastane_proto.channels import server_options


async def relay(master: str, listen: str, port_file: Path) -> None:
    """Serve until SIGTERM. Raises RuntimeError if the address cannot be bound."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    upstream = Upstream(master, _say)
    service = RelayService(upstream)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *size_options(), *server_options()])
    server.add_generic_rpc_handlers([service])
    host = listen.rpartition(":")[0]
    port = server.add_insecure_port(listen)
    await server.start()
    write_atomically(port_file, f"{host}:{port}\n")
    try:
        await stop.wait()
    finally:
        await server.stop(0)
        await upstream.close()
        await service.close()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the relay of the command line."""
    parser = argparse.ArgumentParser(description="Carries the sessions of a host's workers to the master.")
    parser.add_argument("--master", required=True, help="addresses of the masters")
    parser.add_argument("--listen", default="127.0.0.1:0", help="address for the workers")
    parser.add_argument("--port-file", type=Path, required=True, help="file that gets the address")
    arguments = parser.parse_args()
    try:
        import uvloop

        uvloop.run(relay(arguments.master, arguments.listen, arguments.port_file))
    except ImportError:
        asyncio.run(relay(arguments.master, arguments.listen, arguments.port_file))


if __name__ == "__main__":
    main()
