"""Data workers are forked by scripts whose process talks to a master."""

from __future__ import annotations

import os
import sys

import patience

FORKS = """
import elastane, os, threading, time, grpc
from concurrent import futures
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

server = grpc.server(futures.ThreadPoolExecutor(2))
health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()

def talk():
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        while True:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())

for _ in range(2):
    threading.Thread(target=talk, daemon=True).start()
for _ in range(40):
    if (pid := os.fork()) == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
os._exit(0)
"""


def test_grpcs_handlers_take_no_part_in_a_fork() -> None:
    """They speak on stderr where other threads are in gRPC; where none is, they end and start its threads."""
    without = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    ended = patience.run(
        [sys.executable, "-c", FORKS],
        env={**without, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
