"""Calls the bare echo repeatedly, as lease_client.py leases tasks; prints the same JSON as other clients.

echo_client.py ADDRESS SECONDS REQUEST_BYTES call     one call after the other
echo_client.py ADDRESS SECONDS REQUEST_BYTES DEPTH    one stream, DEPTH messages in flight
"""

import collections
import json
import sys
import time

import grpc
import uvloop

address, seconds, size, mode = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
payload = b"x" * size
latencies = []
began = now = used = 0.0


def call():
    global began, now, used
    echo = grpc.insecure_channel(address).unary_unary("/bench.Echo/Echo")
    echo(payload)
    print("ready", flush=True)
    sys.stdin.readline()
    began = now = time.perf_counter()
    used = time.process_time()
    while now - began < seconds:
        echo(payload)
        after = time.perf_counter()
        latencies.append(after - now)
        now = after


async def stream():
    global began, now, used
    channel = grpc.aio.insecure_channel(address)
    calls = channel.stream_stream("/bench.Echo/Stream")()
    await calls.write(payload)
    await calls.read()
    print("ready", flush=True)
    sys.stdin.readline()
    sent = collections.deque()
    began = now = time.perf_counter()
    used = time.process_time()
    for _ in range(int(mode)):
        sent.append(time.perf_counter())
        await calls.write(payload)
    while now - began < seconds:
        await calls.read()
        now = time.perf_counter()
        latencies.append(now - sent.popleft())
        sent.append(time.perf_counter())
        await calls.write(payload)
    await calls.done_writing()
    while await calls.read() is not grpc.aio.EOF:
        pass
    await channel.close()


if mode == "call":
    call()
else:
    uvloop.run(stream())
count = len(latencies)
latencies.sort()
thinned = latencies[:: max(1, count // 1000)]  # small enough for one write to a pipe
outcome = {"tasks": count, "seconds": now - began, "latencies": thinned, "cpu": time.process_time() - used}
print(json.dumps(outcome), flush=True)
