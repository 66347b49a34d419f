"""Strangers at a master's port, scaled down: what the master does. In full: `make hostile`.

With TLS and without: what strangers may do inside it is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import patience
from elastane_master.app import Master
from elastane_master.security import forwarding, front
from elastane_master.security.front import ANSWER_SECONDS, Front
from elastane_master.security.strangers import StrangerLimits
from elastane_master.servers import gate
from elastane_proto.v1 import job_pb2, job_pb2_grpc, shard_pb2, shard_pb2_grpc
from integration import hostile
from integration.hostile import (
    CHECK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Stranger,
    frame,
    request,
)
from integration.master_support import ASKED_AGAIN
from integration.security_support import Certificates, entry, token_of
from integration.test_master_security import guarded_master

WAIT_SECONDS = 30.0
TOKEN = (("authorization", f"Bearer {token_of('all')}"),)
#: Of the memory that the bombs would take if they were inflated: 60 MiB each.
BOMBS = 8


@pytest.fixture
def given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that are given up stand silent for a moment only; for tests that wait for their end."""
    monkeypatch.setattr(front, "StrangerLimits", partial(StrangerLimits, silent_seconds=0.5))


@pytest.fixture(params=["plain", "TLS"])
async def master(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Master]:
    # Strangers here never close their side, so each connection that is ended lasts for that long.
    monkeypatch.setattr(forwarding, "END_SECONDS", 0.5)
    tokens = entry("all", ["operator", "worker"], ["mine*"])
    options = Certificates(tmp_path).master_options(mutual=False) if request.param == "TLS" else {}
    async with (
        guarded_master(tmp_path, tokens, **options) as master,
        own_channel(master) as channel,
    ):
        await job_pb2_grpc.JobServiceStub(channel).Create(
            job_pb2.JobServiceCreateRequest(name="mine", settings=job_pb2.JobSettings(ests=1)), metadata=TOKEN
        )
        yield master


def own_channel(master: Master) -> grpc.aio.Channel:
    """A channel whose connection is its own: others of this process to the same address share theirs."""
    options, cert = [("grpc.use_local_subchannel_pool", 1)], master.settings.security.tls_cert
    if cert is None:
        return grpc.aio.insecure_channel(master.address, options=options)
    credentials = grpc.ssl_channel_credentials(cert.with_name("ca.pem").read_bytes())
    return grpc.aio.secure_channel(master.address, credentials, options=options)


async def stranger(master: Master) -> Stranger:
    host, _, port = master.address.rpartition(":")
    context = hostile.trusting() if master.settings.security.tls_cert is not None else None
    one = Stranger(*await asyncio.open_connection(host, int(port), ssl=context))
    await one.send(PREFACE, frame(SETTINGS, 0, 0))
    return one


async def ended(one: Stranger) -> None:
    """Waits until the master has ended the connection."""
    with contextlib.suppress(OSError, EOFError):
        async with patience.within(WAIT_SECONDS):
            async for _ in one.frames():
                pass
    one.writer.transport.abort()


@pytest.mark.usefixtures("given_up_soon")
@pytest.mark.parametrize(
    "kind", ["calls without a token", "rapid reset", "huge metadata", "header bombs", "never reading"]
)
async def test_a_stranger_who_does_too_much_is_cut_off(master: Master, kind: str) -> None:
    one = await stranger(master)
    attacking = asyncio.create_task(hostile.ATTACKS[kind](one))
    await asyncio.wait({attacking}, timeout=WAIT_SECONDS)
    assert attacking.done(), "the connection still stands"
    assert attacking.cancelled() or not isinstance(attacking.exception(), AssertionError)
    one.writer.transport.abort()


@pytest.mark.usefixtures("given_up_soon")
async def test_calls_that_are_begun_at_once_reach_the_gate_one_by_one(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "REFUSAL_SECONDS", 60.0)  # the first one is not answered
    begun = watched_calls(monkeypatch)
    one = await stranger(master)
    block = request(hostile.LIST)
    calls = [frame(HEADERS, END_HEADERS, stream, block) for stream in range(1, 80, 2)]
    await one.send(*calls)
    await ended(one)
    assert len(begun) == 1


@pytest.mark.usefixtures("given_up_soon")
async def test_headers_that_go_on_in_further_frames_reach_nobody(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = watched_calls(monkeypatch)
    one = await stranger(master)
    block, rest = request(hostile.LIST), [hostile.header(f"x{number}", "y") for number in range(20)]
    await one.send(frame(HEADERS, 0, 1, block))
    await one.send(*(frame(CONTINUATION, END_HEADERS * (part is rest[-1]), 1, part) for part in rest))
    await ended(one)
    assert "x1" not in {name for call in begun for name, _ in call.invocation_metadata}


def watched_calls(monkeypatch: pytest.MonkeyPatch) -> list[grpc.HandlerCallDetails]:
    """The calls that gRPC passes to the gate from now on."""
    begun: list[grpc.HandlerCallDetails] = []
    intercept = gate.Gate.intercept_service

    async def watched(self: gate.Gate, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        begun.append(details)
        return await intercept(self, continuation, details)

    monkeypatch.setattr(gate.Gate, "intercept_service", watched)
    return begun


async def test_a_request_that_announces_two_gibibytes_is_answered_unread(master: Master) -> None:
    one = await stranger(master)
    async with patience.within(WAIT_SECONDS):
        await hostile.bodies(one)  # returns when the master has ended the call
    one.writer.transport.abort()


async def test_bombs_are_not_inflated(tmp_path: Path) -> None:
    """Of strangers and of whoever has a token."""
    with hostile.guarded(tmp_path) as master:
        memory = hostile.Memory(master.pid)
        host, _, port = master.address.rpartition(":")
        rest = memory.mebibytes()
        memory.begin()
        bombers = []
        for number in range(2 * BOMBS):
            one = Stranger(*await asyncio.open_connection(host, int(port)))
            await one.send(PREFACE, frame(SETTINGS, 0, 0))
            headers = {"authorization": TOKEN[0][1].replace("all", "operator")} if number % 2 else {}
            bombers.append(asyncio.create_task(hostile.bombs(one, **headers)))
        await asyncio.wait(bombers, timeout=2.0)
        with grpc.insecure_channel(master.address) as channel:  # those sent before are answered by now
            metadata = [("authorization", f"Bearer {token_of('operator')}")]
            job_pb2_grpc.JobServiceStub(channel).List(job_pb2.JobServiceListRequest(), metadata=metadata)
        for bomber in bombers:
            bomber.cancel()
        assert memory.mebibytes("VmHWM") - rest < BOMBS * 60 / 4
        with (
            grpc.insecure_channel(master.address, compression=grpc.Compression.Gzip) as channel,
            pytest.raises(grpc.RpcError) as refused,
        ):
            job_pb2_grpc.JobServiceStub(channel).Get(
                job_pb2.JobServiceGetRequest(name="mine"), metadata=metadata
            )
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_honest_callers_are_let_in_meanwhile_and_keep_their_connection(master: Master) -> None:
    """More idle strangers than an address may have: they go, and no caller with a token does."""
    async with own_channel(master) as channel:
        jobs = job_pb2_grpc.JobServiceStub(channel)
        watch = jobs.Watch(job_pb2.JobServiceWatchRequest(name="mine"), metadata=TOKEN)
        assert await watch.read() is not grpc.aio.EOF
        idle = []
        for _ in range(100):
            with contextlib.suppress(OSError):  # drawn to go while its handshake is being done
                idle.append(await stranger(master))
        turned_away = 100 - len(idle)
        ending = [asyncio.create_task(ended(one)) for one in idle]
        async with patience.within(WAIT_SECONDS):
            while turned_away + sum(task.done() for task in ending) < 36:
                await asyncio.sleep(0.02)
        # Below the limit nobody is drawn to go, as the next newcomer could be before its first call.
        for one, task in zip(idle, ending, strict=True):
            if not task.done():
                one.writer.transport.abort()
        async with patience.within(WAIT_SECONDS):
            await asyncio.wait(ending)
        # The first call of a connection, whose request is more than a stranger may send.
        async with own_channel(master) as new:
            large = shard_pb2.CreateDatasetRequest(job="mine", dataset="d")
            large.settings.task_size = 1
            large.settings.list.entries.extend([2**62] * 300_000)
            await shard_pb2_grpc.ShardServiceStub(new).CreateDataset(large, metadata=TOKEN)
        await jobs.Scale(
            job_pb2.JobServiceScaleRequest(name="mine", workers_min=1, workers_max=1), metadata=TOKEN
        )
        assert await patience.wait_for(watch.read(), WAIT_SECONDS) is not grpc.aio.EOF


async def test_a_probe_is_answered_whatever_service_it_names(master: Master) -> None:
    """Nobody's request is read without a token, so it is the master's health that is told."""
    async with own_channel(master) as channel:
        for name in ("", "elastane.v1.JobService", "x" * 100_000):
            asked = health_pb2.HealthCheckRequest(service=name)
            answer = await health_pb2_grpc.HealthStub(channel).Check(asked)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_caller_with_a_token_may_begin_many_calls_before_it_is_known(master: Master) -> None:
    """What is more than a stranger may begin waits for the gate, and is handed on then."""
    for _ in range(5):
        async with own_channel(master) as channel:
            stub = job_pb2_grpc.JobServiceStub(channel)
            asked = [stub.Get(job_pb2.JobServiceGetRequest(name="mine"), metadata=TOKEN) for _ in range(60)]
            async with patience.within(WAIT_SECONDS):
                assert {answer.job.name for answer in await asyncio.gather(*asked)} == {"mine"}


async def test_every_refusal_is_answered_the_last_one_too(master: Master) -> None:
    limits = StrangerLimits()
    async with own_channel(master) as channel:
        for _ in range(limits.refusals_max):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await job_pb2_grpc.JobServiceStub(channel).List(job_pb2.JobServiceListRequest())
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        stub = health_pb2_grpc.HealthStub(channel)
        answered, breaks, is_broken = 0, 0, False
        while answered < 3 * limits.refusals_max:  # as a load balancer does
            try:
                await stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
                answered, is_broken = answered + 1, False
            except grpc.aio.AioRpcError as error:
                assert error.code() in ASKED_AGAIN
                # The end of one connection may fail more than one call in a row.
                breaks, is_broken = breaks + (not is_broken), True
        front = master.gate.front
        assert front is not None and front.ended <= 1, "only the connection of the refusals is ended"
        assert breaks <= 1, "it may be ended under a call; the next one stays"


async def test_who_shows_a_token_after_the_last_refusal_stays(master: Master) -> None:
    async with own_channel(master) as channel:
        stub = job_pb2_grpc.JobServiceStub(channel)
        for _ in range(StrangerLimits().refusals_max):
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.List(job_pb2.JobServiceListRequest())
        watch = stub.Watch(job_pb2.JobServiceWatchRequest(name="mine"), metadata=TOKEN)
        assert (await watch.read()).job.name == "mine"
        with pytest.raises(TimeoutError):  # it is not ended while nothing changes
            async with asyncio.timeout(4 * ANSWER_SECONDS):
                await watch.read()


async def test_calls_that_are_taken_back_are_not_answered(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[Exception] = []

    async def refuse(context: Any, error: Exception) -> None:
        answered.append(error)

    monkeypatch.setattr(gate, "refuse", refuse)
    monkeypatch.setattr(gate, "REFUSAL_SECONDS", 1.0)
    cancel = struct.pack(">I", 8)
    for _ in range(10):
        one = await stranger(master)
        await one.send(frame(HEADERS, END_HEADERS, 1, request(hostile.LIST)), frame(RST_STREAM, 0, 1, cancel))
        await one.send(frame(PING, 0, 0, bytes(8)))
        async for kind, _, _ in one.frames():
            if kind == PING:
                break
        one.writer.transport.abort()
    async with patience.within(WAIT_SECONDS):  # of one that waits
        one = await stranger(master)
        await one.send(frame(HEADERS, END_HEADERS, 1, request(hostile.LIST)))
        while not answered:
            await asyncio.sleep(0.02)
    assert len(answered) == 1


async def test_who_was_given_up_while_the_master_was_busy_is_heard_on_a_new_connection(
    master: Master,
) -> None:
    """More calls at once than a stranger may begin, and a loop that stands still before the gate sees one."""
    async with own_channel(master) as channel:
        await channel.channel_ready()
        stub = job_pb2_grpc.JobServiceStub(channel)
        request = job_pb2.JobServiceGetRequest(name="mine")
        asked = [stub.Get(request, metadata=TOKEN, wait_for_ready=True) for _ in range(10)]
        await asyncio.sleep(0)
        time.sleep(1.0)
        async with patience.within(WAIT_SECONDS):
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert (await stub.Get(request, metadata=TOKEN, wait_for_ready=True)).job.name == "mine"
        codes = {answer.code() for answer in answers if isinstance(answer, grpc.aio.AioRpcError)}
        assert codes <= {grpc.StatusCode.UNAVAILABLE}


async def test_who_calls_grpc_past_the_port_is_nobody_whatever_token_it_has(master: Master) -> None:
    """It has passed neither the port's limits nor its TLS, and cannot pass for a caller who has."""
    front = master.gate.front
    assert front is not None
    async with grpc.aio.insecure_channel(front.inner) as channel:
        stub = job_pb2_grpc.JobServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Get(job_pb2.JobServiceGetRequest(name="mine"), metadata=TOKEN)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    others = set(front._peers)
    one = await stranger(master)
    async with patience.within(WAIT_SECONDS):
        while not (peers := {peer for peer in front._peers if peer not in others and front.vouches(peer)}):
            await asyncio.sleep(0.02)
        (peer,) = peers
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as pretender,
            pytest.raises(OSError, match="in use"),
        ):
            pretender.bind("\0" + peer.removeprefix("unix-abstract:"))
        one.writer.transport.abort()
        while front.vouches(peer):
            await asyncio.sleep(0.02)


def test_a_port_is_taken_as_soon_as_it_is_bound() -> None:
    first = Front()
    port = first.bind("127.0.0.1", 0)
    with pytest.raises(OSError, match="in use"):
        Front().bind("127.0.0.1", port)
    first.close_port()


async def test_what_a_stranger_sends_beyond_its_share_stays_with_it(master: Master) -> None:
    one = await stranger(master)
    await one.send(frame(HEADERS, END_HEADERS, 1, request(CHECK)))
    zeros = frame(DATA, 0, 1, bytes(16_000))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            while True:  # the kernel takes some megabytes, and the master none of them
                await one.send(zeros)
    one.writer.transport.abort()
