"""Holds many idle watches of runs open from one process.

    watch_runs.py ADDRESS WATCHES

Watches the runs with ids 1 to WATCHES. Prints "ready" when each watch has received its run; exits at the end
of standard input.
"""

import asyncio
import sys

import grpc
import uvloop

from elastane_proto.v1 import training_pb2, training_pb2_grpc

PER_CONNECTION = 100

address, watches = sys.argv[1], int(sys.argv[2])


async def main() -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(address, options=options) for _ in range(-(-watches // PER_CONNECTION))
    ]
    stubs = [training_pb2_grpc.TrainingServiceStub(channel) for channel in channels]
    calls = [
        stubs[number % len(stubs)].Watch(training_pb2.TrainingServiceWatchRequest(run_id=number + 1))
        for number in range(watches)
    ]
    for call in calls:
        await call.read()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for call in calls:
        call.cancel()


uvloop.run(main())
