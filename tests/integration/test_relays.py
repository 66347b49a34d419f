"""Workers behind a relay: their sessions are as those of workers that are connected directly."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import status_pb2

import patience
from elastane_agent.relay.upstream import RELAY, Upstream
from elastane_master.security.settings import SecuritySettings
from elastane_master.servers.relay_stream import REQUESTS_WAITING_MAX
from elastane_proto import versions
from elastane_proto.relay_batches import metadata_from_proto, metadata_to_proto, responses_of
from elastane_proto.v1 import errors_pb2, job_pb2, job_pb2_grpc, ring_pb2, ring_pb2_grpc
from integration.master_support import Worker, master_process, reason_of, serving_master
from integration.relay_support import relay_here, relay_process
from integration.security_support import entry, standard_tokens, token_of
from integration.test_master_sessions import (
    RING,
    SIGNATURE,
    form_ring,
    get_job,
    job,
    report,
    wait_for_workers,
)

STATUS = "grpc-status-details-bin"


async def train(worker: Worker, steps: int = 3) -> None:
    """Takes a job's only worker through a ring's first steps."""
    await worker.hello(RING, signature=SIGNATURE)
    go = await form_ring(worker)
    for step in range(steps):
        await worker.send(step_report=report(go, step))
        assert (await worker.receive("prepared")).prepared.step == step


async def test_a_worker_trains_through_a_relay_and_says_bye(tmp_path: Path) -> None:
    async with job(tmp_path) as (master, direct), relay_here(master.address) as (address, said):
        async with grpc.aio.insecure_channel(address) as channel:
            worker = Worker(channel, "w0")
            await train(worker)
            assert (await get_job(channel)).step == (await get_job(direct)).step > 0
            await worker.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_DRAINED))
            assert await worker.ended() is grpc.StatusCode.OK
            assert not (await get_job(direct)).workers
        assert master.measures.rpcs.method("RingService.Relay", streaming=True).open == 1
    assert not said or "broke" in said[0]


async def test_equal_answers_travel_once(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        call = ring_pb2_grpc.RingServiceStub(channel).Relay()
        frames = []
        for number in (1, 2):
            hello = ring_pb2.Hello(job="j", worker_id=f"w{number}", role=RING, signature=SIGNATURE)
            frames.append(ring_pb2.RelayFrame(session=number, open=ring_pb2.RelayedCall()))
            request = ring_pb2.AttendRequest(hello=hello).SerializeToString()
            frames.append(ring_pb2.RelayFrame(session=number, request=request))
        await call.write(ring_pb2.RelayRequest(frames=frames))
        prepares = []
        async with patience.within(20):
            while not prepares:
                for answer in (await call.read()).answers:
                    response = ring_pb2.AttendResponse.FromString(answer.response)
                    prepares += [list(answer.sessions)] if response.HasField("prepare") else []
        assert prepares == [[1, 2]]
        call.cancel()
        await wait_for_workers(channel, set())


async def test_refusals_come_through_as_they_are(tmp_path: Path) -> None:
    async with (
        job(tmp_path) as (master, direct),
        relay_here(master.address) as (address, _),
        grpc.aio.insecure_channel(address) as channel,
    ):
        errors = []
        for way in (direct, channel):
            stranger = Worker(way, "w0", job="absent")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stranger.hello()
            errors.append(reason_of(refused.value))
            with pytest.raises(grpc.aio.AioRpcError) as missing:
                await job_pb2_grpc.JobServiceStub(way).Get(job_pb2.JobServiceGetRequest(name="absent"))
            errors.append(reason_of(missing.value))
            worker = Worker(way, "w1")
            await worker.hello(RING, signature=SIGNATURE)
            await worker.call.write(ring_pb2.AttendRequest())
            assert await worker.ended() is grpc.StatusCode.INVALID_ARGUMENT
        assert errors[:2] == errors[2:]
        assert errors[0][2].reason == errors_pb2.ERROR_REASON_NOT_FOUND


async def test_a_newer_stream_ends_the_older_one_whichever_way_it_comes(tmp_path: Path) -> None:
    async with (
        job(tmp_path) as (master, direct),
        relay_here(master.address) as (address, _),
        grpc.aio.insecure_channel(address) as channel,
    ):
        older, newer = Worker(channel, "w0"), Worker(direct, "w0")
        await older.hello()
        await newer.hello()
        assert await older.ended() is grpc.StatusCode.ABORTED
        again = Worker(channel, "w0")
        await again.hello()
        assert await newer.ended() is grpc.StatusCode.ABORTED


async def test_a_worker_that_dies_behind_a_relay_is_missed_at_once(tmp_path: Path) -> None:
    async with (
        job(tmp_path, heartbeat_seconds=3600) as (master, direct),
        relay_here(master.address) as (address, _),
        grpc.aio.insecure_channel(address) as other,
    ):
        await Worker(other, "stays").hello()
        async with grpc.aio.insecure_channel(address) as channel:
            await Worker(channel, "dies").hello()
            await wait_for_workers(direct, {"stays", "dies"})
        await wait_for_workers(direct, {"stays"})


async def test_a_relay_killed_in_the_middle_of_a_report_costs_its_streams_and_no_more(tmp_path: Path) -> None:
    async with job(tmp_path, heartbeat_seconds=3600) as (master, direct):
        async with relay_process(tmp_path, master.address) as (relay, channel):
            worker = Worker(channel, "w0")
            await worker.hello(RING, signature=SIGNATURE)
            go = await form_ring(worker)
            await worker.send(step_report=report(go, 0))
            await worker.receive("prepared")
            os.kill(relay.process.pid, signal.SIGSTOP)  # the report gets stuck in it
            await worker.send(step_report=report(go, 1))
            os.kill(relay.process.pid, signal.SIGKILL)
            assert await worker.ended() is grpc.StatusCode.UNAVAILABLE
            await wait_for_workers(direct, set())
        again = Worker(direct, "w0")
        await again.hello(
            RING, signature=SIGNATURE, generation=go.generation, applied_step=1, holds_state=True
        )
        prepare = (await again.receive("prepare")).prepare
        ready = ring_pb2.Ready(generation=prepare.generation, applied_step=1, holds_state=True)
        await again.send(ready=ready)
        resumed = (await again.receive("go")).go
        assert resumed.resume_step == 1
        await again.send(step_report=report(resumed, 1))
        assert (await again.receive("prepared")).prepared.step == 1


async def test_a_relay_that_stalls_holds_up_its_own_workers_only(tmp_path: Path) -> None:
    async with (
        job(tmp_path, heartbeat_seconds=1.0) as (master, direct),
        relay_process(tmp_path, master.address) as (relay, channel),
    ):
        behind, beside = Worker(channel, "behind"), Worker(direct, "beside")
        await behind.hello()
        await beside.hello()
        await wait_for_workers(direct, {"behind", "beside"})

        async def beat() -> None:
            while True:
                await beside.send(heartbeat=ring_pb2.Heartbeat())
                await asyncio.sleep(0.1)

        beats = asyncio.create_task(beat())
        try:
            os.kill(relay.process.pid, signal.SIGSTOP)
            await wait_for_workers(direct, {"beside"})
            again = Worker(direct, "behind")
            await again.hello()
            os.kill(relay.process.pid, signal.SIGCONT)
            assert await behind.ended() is grpc.StatusCode.ABORTED, "it is told that it was given up"
        finally:
            beats.cancel()


async def test_a_master_killed_behind_a_relay_is_found_again_through_it(tmp_path: Path) -> None:
    async with master_process(tmp_path) as master:
        async with grpc.aio.insecure_channel(master.address) as direct:
            timeout = duration_pb2.Duration(seconds=30)
            settings = job_pb2.JobSettings(ests=2, heartbeat_timeout=timeout)
            request = job_pb2.JobServiceCreateRequest(name="j", settings=settings)
            await job_pb2_grpc.JobServiceStub(direct).Create(request)
        async with relay_process(tmp_path, master.address) as (relay, channel):
            workers = [Worker(channel, f"w{number}") for number in range(3)]
            for worker in workers:
                await worker.hello()
            await master.kill()
            for worker in workers:
                assert await worker.ended() is grpc.StatusCode.UNAVAILABLE
            await master.start()
            async with patience.within(30):
                while True:
                    again = Worker(channel, "w0")
                    try:
                        await again.hello()
                        break
                    except grpc.aio.AioRpcError as error:
                        assert error.code() is grpc.StatusCode.UNAVAILABLE
                        await asyncio.sleep(0.05)
            assert "broke" in relay.log.read_text()


async def test_heartbeats_that_wait_in_a_relay_keep_a_worker_and_its_silence_is_not_noticed_later(
    tmp_path: Path,
) -> None:
    async with job(tmp_path, heartbeat_seconds=2.0) as (_, channel):
        call = ring_pb2_grpc.RingServiceStub(channel).Relay()
        frames = [opened(number) for number in (1, 2)]
        frames += [said(number, hello=hello(f"w{number}")) for number in (1, 2)]
        await call.write(ring_pb2.RelayRequest(frames=frames))
        await wait_for_workers(channel, {"w1", "w2"})
        await asyncio.sleep(1.0)
        old, new = (said(number, heartbeat=ring_pb2.Heartbeat()) for number in (1, 2))
        old.held_milliseconds = 900
        await call.write(ring_pb2.RelayRequest(frames=[old, new]))
        began = time.monotonic()
        await wait_for_workers(channel, {"w2"})
        assert time.monotonic() - began < 1.9, "it counts from when the worker sent it"
        await wait_for_workers(channel, set())
        assert time.monotonic() - began > 1.9


async def test_a_worker_that_beats_through_a_relay_is_not_given_up(tmp_path: Path) -> None:
    async with (
        job(tmp_path, heartbeat_seconds=1.0) as (master, direct),
        relay_here(master.address) as (address, _),
        grpc.aio.insecure_channel(address) as channel,
    ):
        workers = [Worker(channel, f"w{number}") for number in range(2)]
        for worker in workers:
            await worker.hello()
        for _ in range(10):
            for worker in workers:
                await worker.send(heartbeat=ring_pb2.Heartbeat())
            await asyncio.sleep(0.3)  # the interval of a real one
        assert {worker.worker_id for worker in (await get_job(direct)).workers} == {"w0", "w1"}


async def test_the_members_of_a_ring_travel_once(tmp_path: Path) -> None:
    async with job(tmp_path, ests=2) as (_, channel):
        call = ring_pb2_grpc.RingServiceStub(channel).Relay()
        gos: dict[int, ring_pb2.Go] = {}
        tails = 0
        frames = [opened(number) for number in (1, 2)]
        frames += [
            said(number, hello=ring_pb2.Hello(job="j", worker_id=name, role=RING, signature=SIGNATURE))
            for number, name in ((1, "w1"), (2, "w2"))
        ]
        await call.write(ring_pb2.RelayRequest(frames=frames))
        while len(gos) < 2:
            message = await patience.wait_for(call.read(), 20)
            tails += len(message.tails)
            for answer, tail in responses_of(message):
                response = ring_pb2.AttendResponse.FromString(answer.response + tail)
                for number in answer.sessions:
                    if response.HasField("prepare"):
                        ready = ring_pb2.Ready(generation=response.prepare.generation)
                        await call.write(ring_pb2.RelayRequest(frames=[said(number, ready=ready)]))
                    elif response.HasField("load"):
                        loaded = ring_pb2.Loaded(generation=response.load.generation)
                        for rank in range(2):
                            loaded.contexts.add(virtual_rank=rank).rng.python = b"initial"
                        await call.write(ring_pb2.RelayRequest(frames=[said(number, loaded=loaded)]))
                    elif response.HasField("go"):
                        gos[number] = response.go
        assert tails == 1
        assert [len(go.members) for go in gos.values()] == [2, 2]
        assert gos[1].members == gos[2].members
        assert [context.virtual_rank for number in (1, 2) for context in gos[number].contexts] == [0, 1]


async def test_relays_stand_behind_relays(tmp_path: Path) -> None:
    async with (
        job(tmp_path, heartbeat_seconds=3600) as (master, direct),
        relay_here(master.address) as (upper, _),
        relay_here(upper) as (lower, _),
        relay_here(upper) as (beside, _),
    ):
        async with grpc.aio.insecure_channel(lower) as channel:
            stranger = Worker(channel, "w9", job="absent")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stranger.hello()
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            await train(Worker(channel, "w0"))
            async with grpc.aio.insecure_channel(lower) as other:
                await Worker(other, "dies").hello()
                await wait_for_workers(direct, {"w0", "dies"})
            await wait_for_workers(direct, {"w0"})
            async with grpc.aio.insecure_channel(beside) as other:
                await Worker(other, "beside").hello()
                await wait_for_workers(direct, {"w0", "beside"})
                streams = master.measures.rpcs.method("RingService.Relay", streaming=True)
                assert streams.open == 1, "the upper relay has one stream for both"
        await wait_for_workers(direct, set())


@contextlib.asynccontextmanager
async def older_master() -> AsyncIterator[str]:
    """A server that knows nothing of relays."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def test_workers_of_a_master_without_relays_are_sent_to_it_and_it_is_said(tmp_path: Path) -> None:
    async with older_master() as address, relay_here(address) as (relay, said):
        async with grpc.aio.insecure_channel(relay) as channel:
            for _ in range(2):
                assert await Worker(channel, "w0").ended() is grpc.StatusCode.UNAVAILABLE
        assert said == [
            f"the master at {address} is older than relays: its workers connect to it directly",
        ]


async def test_a_relay_of_another_version_is_refused_in_words(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (_, channel):
        newer = [(versions.METADATA_KEY, str(versions.PROTOCOL + 1))]
        call = channel.stream_stream(RELAY)(metadata=newer)
        assert await patience.wait_for(call.code(), 20) is grpc.StatusCode.FAILED_PRECONDITION
        assert "newer than this master" in (await call.details() or "")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text("\n".join(standard_tokens()))
    path.chmod(0o600)
    return path


async def test_a_relay_gives_nobody_rights(
    tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_master(tmp_path / "state", security=SecuritySettings(token_file=tokens)) as (
        master,
        _direct,
    ):
        monkeypatch.setenv("ELASTANE_TOKEN", token_of("operator"))  # the relay's own
        async with relay_here(master.address) as (address, _):
            for name in (None, "nobody-knows", "reader", "worker"):
                metadata = [("authorization", f"Bearer {token_of(name)}")] if name else []
                codes = []
                for target in (master.address, address):
                    async with grpc.aio.insecure_channel(target) as channel:
                        call = ring_pb2_grpc.RingServiceStub(channel).Attend(metadata=metadata)
                        hello = ring_pb2.Hello(job="mine", worker_id="w0", role=RING)
                        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                            await call.write(ring_pb2.AttendRequest(hello=hello))
                        codes.append(await patience.wait_for(call.code(), 20))
                assert codes[0] is codes[1], name
            assert codes[0] is grpc.StatusCode.NOT_FOUND, "the worker was admitted"


async def test_without_a_token_nobody_opens_a_relay(tmp_path: Path, tokens: Path) -> None:
    async with serving_master(tmp_path / "state", security=SecuritySettings(token_file=tokens)) as (
        master,
        channel,
    ):
        call = ring_pb2_grpc.RingServiceStub(channel).Relay()
        assert await patience.wait_for(call.code(), 20) is grpc.StatusCode.UNAUTHENTICATED
        async with relay_here(master.address) as (address, said):
            async with grpc.aio.insecure_channel(address) as below:
                assert await Worker(below, "w0").ended() is grpc.StatusCode.UNAVAILABLE
            assert "refuses the relay" in said[0]


async def test_a_token_does_not_leave_the_machine_unencrypted() -> None:
    class Below:
        status: ring_pb2.RelayedStatus | None = None

        def respond(self, response: bytes) -> bool:
            raise AssertionError

        def end(self, status: ring_pb2.RelayedStatus) -> None:
            self.status = status

    upstream, below = Upstream("192.0.2.1:50051", lambda text: None), Below()
    assert upstream.open([("authorization", "Bearer secret")], below) is None
    assert below.status is not None and below.status.code == grpc.StatusCode.UNAUTHENTICATED.value[0]
    assert "unencrypted" in below.status.message


async def next_end(call: grpc.aio.StreamStreamCall) -> ring_pb2.RelayAnswer:
    """The next end of a session in a relay's stream."""
    while True:
        response = await patience.wait_for(call.read(), 20)
        assert response is not grpc.aio.EOF, "the relay's stream ended"
        for answer in response.answers:
            if answer.HasField("status"):
                return answer


def opened(number: int, token: str = "") -> ring_pb2.RelayFrame:
    """The frame that opens a session with the token of that name."""
    metadata = [("authorization", f"Bearer {token_of(token)}")] if token else []
    return ring_pb2.RelayFrame(
        session=number, open=ring_pb2.RelayedCall(metadata=metadata_to_proto(metadata))
    )


def said(number: int, **message: object) -> ring_pb2.RelayFrame:
    """The frame with a message of a session."""
    request = ring_pb2.AttendRequest(**message)
    return ring_pb2.RelayFrame(session=number, request=request.SerializeToString())


def hello(worker: str, job: str = "j") -> ring_pb2.Hello:
    return ring_pb2.Hello(job=job, worker_id=worker, role=ring_pb2.WORKER_ROLE_TASKS)


async def test_sessions_of_a_relay_are_bounded_and_those_it_has_go_on(tmp_path: Path) -> None:
    async with job(tmp_path, sessions_per_relay_max=2) as (_, channel):
        call = ring_pb2_grpc.RingServiceStub(channel).Relay()
        frames = [opened(number) for number in (1, 2, 3)]
        frames += [said(number, hello=hello(f"w{number}")) for number in (1, 2, 3)]
        await call.write(ring_pb2.RelayRequest(frames=frames))
        refused = await next_end(call)
        assert list(refused.sessions) == [3]
        assert refused.status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        status, detail = status_pb2.Status(), errors_pb2.ErrorDetail()
        status.ParseFromString(dict(metadata_from_proto(refused.status.trailing_metadata))[STATUS])
        assert status.details[0].Unpack(detail)
        assert detail.reason == errors_pb2.ERROR_REASON_BUSY and detail.retryable
        await wait_for_workers(channel, {"w1", "w2"})
        await call.write(ring_pb2.RelayRequest(frames=[said(1, bye=ring_pb2.Bye())]))
        assert list((await next_end(call)).sessions) == [1]
        await call.write(ring_pb2.RelayRequest(frames=[opened(4), said(4, hello=hello("w4"))]))
        await wait_for_workers(channel, {"w2", "w4"})


async def test_a_session_that_sends_on_before_it_is_admitted_is_ended_alone(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        call = ring_pb2_grpc.RingServiceStub(channel).Relay()
        beats = [said(1, heartbeat=ring_pb2.Heartbeat())] * (REQUESTS_WAITING_MAX + 1)
        frames = [opened(1), said(1, hello=hello("w1")), *beats, opened(2), said(2, hello=hello("w2"))]
        await call.write(ring_pb2.RelayRequest(frames=frames))
        ended = await next_end(call)
        assert list(ended.sessions) == [1]
        assert ended.status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        await wait_for_workers(channel, {"w2"})


async def test_a_token_that_is_withdrawn_ends_the_sessions_that_have_it_and_no_others(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens.toml"
    entries = {name: entry(name, ["worker"], ["j"]) for name in ("old", "stays", "relay")}
    boss = entry("boss", ["operator"], ["j"])
    path.write_text(boss + "".join(entries.values()))
    path.chmod(0o600)
    security = SecuritySettings(token_file=path)
    async with serving_master(tmp_path / "state", security=security) as (master, channel):
        operator = [("authorization", f"Bearer {token_of('boss')}")]
        jobs = job_pb2_grpc.JobServiceStub(channel)
        await jobs.Create(
            job_pb2.JobServiceCreateRequest(name="j", settings=job_pb2.JobSettings(ests=1)), metadata=operator
        )

        async def attending() -> set[str]:
            found = await jobs.Get(job_pb2.JobServiceGetRequest(name="j"), metadata=operator)
            return {worker.worker_id for worker in found.job.workers}

        async def until(workers: set[str]) -> None:
            async with patience.within(20):
                while await attending() != workers:
                    await asyncio.sleep(0.01)

        call = ring_pb2_grpc.RingServiceStub(channel).Relay(
            metadata=[("authorization", f"Bearer {token_of('relay')}")]
        )
        frames = [opened(1, "old"), opened(2, "stays")]
        frames += [said(1, hello=hello("w-old")), said(2, hello=hello("w-stays"))]
        await call.write(ring_pb2.RelayRequest(frames=frames))
        await until({"w-old", "w-stays"})
        path.write_text(boss + entries["stays"] + entries["relay"])
        os.utime(path, ns=(0, 0))
        master.refresh_security()
        ended = await next_end(call)
        assert list(ended.sessions) == [1]
        assert ended.status.code == grpc.StatusCode.UNAUTHENTICATED.value[0]
        await until({"w-stays"})
        path.write_text(boss + entries["stays"])
        os.utime(path, ns=(1, 1))
        master.refresh_security()
        assert await patience.wait_for(call.code(), 20) is grpc.StatusCode.UNAUTHENTICATED
        await until(set())


async def test_sessions_behind_a_relay_count_for_their_tokens_quota(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    few = entry("few", ["worker"], ["j"], sessions_max=1)
    path.write_text(few + entry("boss", ["operator"], ["j"]))
    path.chmod(0o600)
    security = SecuritySettings(token_file=path)
    async with serving_master(tmp_path / "state", security=security) as (_, channel):
        operator = [("authorization", f"Bearer {token_of('boss')}")]
        request = job_pb2.JobServiceCreateRequest(name="j", settings=job_pb2.JobSettings(ests=1))
        await job_pb2_grpc.JobServiceStub(channel).Create(request, metadata=operator)
        call = ring_pb2_grpc.RingServiceStub(channel).Relay(metadata=operator)
        frames = [opened(1, "few"), said(1, hello=hello("w1")), opened(2, "few"), said(2, hello=hello("w2"))]
        await call.write(ring_pb2.RelayRequest(frames=frames))
        ended = await next_end(call)
        assert list(ended.sessions) == [2]
        assert ended.status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


async def test_a_relay_that_reuses_a_number_is_refused(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (_, channel):
        call = ring_pb2_grpc.RingServiceStub(channel).Relay()
        frame = ring_pb2.RelayFrame(session=1, open=ring_pb2.RelayedCall())
        await call.write(ring_pb2.RelayRequest(frames=[frame, frame]))
        assert await patience.wait_for(call.code(), 20) is grpc.StatusCode.INVALID_ARGUMENT
