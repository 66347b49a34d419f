"""A bare grpc.aio server, the upper bound for a Python gRPC server. Writes its address to FILE.

    echo_server.py FILE ANSWER_BYTES

Answers each request, of a call or of a stream, with ANSWER_BYTES bytes.
"""

import asyncio
import sys
from pathlib import Path

import grpc

try:
    import uvloop
except ImportError:
    uvloop = asyncio


answer = b"y" * int(sys.argv[2])


async def echo(request, context):
    return answer


async def echo_stream(requests, context):
    async for _ in requests:
        yield answer


async def main():
    server = grpc.aio.server()
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Stream": grpc.stream_stream_rpc_method_handler(echo_stream),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Echo", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    Path(sys.argv[1]).write_text(f"127.0.0.1:{port}")
    await server.wait_for_termination()


uvloop.run(main())
