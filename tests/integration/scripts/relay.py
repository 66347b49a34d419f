"""Pass bytes between clients of one unix socket and another: `relay.py TARGET LISTEN`.

Writes a line once it listens. Killed, it leaves broken connections, and new ones are refused. It ends with
its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def main(target: str, listen: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(target)
        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))

    await asyncio.start_unix_server(serve, listen)
    print("listens", flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes, and its end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
