"""Calls the bare echo again and again: echo_client.py ADDRESS SECONDS; prints as the other clients do."""

import json
import sys
import time

import grpc

address, seconds = sys.argv[1], float(sys.argv[2])
echo = grpc.insecure_channel(address).unary_unary("/bench.Echo/Echo")
payload = b"x" * 60
echo(payload)
print("ready", flush=True)
sys.stdin.readline()
latencies = []
began = now = time.perf_counter()
while now - began < seconds:
    echo(payload)
    after = time.perf_counter()
    latencies.append(after - now)
    now = after
print(json.dumps({"tasks": len(latencies), "seconds": now - began, "latencies": latencies}), flush=True)
