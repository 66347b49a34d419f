"""A script forks data workers while it trains: what Python's collector may destroy in them."""

from __future__ import annotations

import os
import sys

import patience

#: It forks when a gloo group and a call are garbage. What the child does first, in a handler that is older
#: than ours, sets off a collection if the collector is on.
FORKS = """
import gc, os, signal, sys, threading
from concurrent import futures

import elastane
from elastane.collective import transport, warming
from elastane.collective.rendezvous import RendezvousStore

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


class Garbage:
    def __init__(self, held):
        self.held, self.itself = held, self

    def __del__(self):
        if os.getpid() != parent:
            os.write(2, b"destroyed in the child\\n")


def group_that_fails_to_form():
    def gone(*_, **__):
        raise RuntimeError("the rendezvous store is gone")

    def form(rank):
        try:
            transport.RingTransport.form(
                store_address=store.address, prefix="ring", rank=rank, size=2, cancel=threading.Event()
            )
        except transport.RingBroken:
            return
        raise AssertionError("a ring has formed")

    transport.agree, store = gone, RendezvousStore("127.0.0.1")
    with futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(form, range(2)))
    store.close()


def call_that_goes_on():
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    next(call)
    Garbage([channel, call])


def objects_are_made():
    gc.set_threshold(1)
    return [[] for _ in range(9)]


os.register_at_fork(after_in_child=objects_are_made)
elastane.init()
warming.finish()
parent = os.getpid()
server = grpc.server(futures.ThreadPoolExecutor(2))
health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
gc.collect()
gc.disable()
group_that_fails_to_form()
call_that_goes_on()
gc.set_threshold(10**9)
if sys.argv[1] == "on":
    gc.enable()
child = os.fork()
if child == 0:
    gc.collect()
    print("collector in the child:", gc.isenabled(), flush=True)
    os._exit(0)
threading.Timer(30, os.kill, (child, signal.SIGKILL)).start()
print("the child's status:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("collector in the parent:", gc.isenabled(), flush=True)
os._exit(0)
"""


def _run(collector: str) -> tuple[str, str]:
    worker = {"ELASTANE_MODE": "elastic", "ELASTANE_MASTER": "127.0.0.1:1", "ELASTANE_ESTS": "1"}
    ended = patience.run(
        [sys.executable, "-c", FORKS, collector],
        env=os.environ | worker,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return ended.stdout, ended.stderr


def test_a_child_destroys_nothing_of_its_parent() -> None:
    said = "collector in the child: True\nthe child's status: 0\ncollector in the parent: True\n"
    assert _run("on") == (said, "")


def test_a_collector_that_the_script_switched_off_stays_off() -> None:
    said = "collector in the child: False\nthe child's status: 0\ncollector in the parent: False\n"
    assert _run("off") == (said, "")
