"""TrainEach over real gRPC: each run has its own outcome, in order and once, though the master is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2
from grpc_status import rpc_status

import patience
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_common import layout
from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_common.storage import Folder
from elastane_common.training_client import TrainingClient
from elastane_master.app import Master
from elastane_master.decisions.events import Rejection
from elastane_master.jobs import durable_server
from elastane_master.servers.training_service import REQUESTS_IN_FLIGHT
from elastane_proto.v1 import training_pb2, training_pb2_grpc
from integration.master_support import reason_of, serving_master, store_down
from integration.security_support import entry, token_of
from integration.test_master_security import guarded_master
from integration.test_train_many import DIGEST, queued, spec
from spoken_version import TellsVersion


def train(number: int, request_id: str = "", client_key: str = "", **fields: object) -> Any:
    return training_pb2.TrainingServiceTrainRequest(
        spec=spec(number, **fields), request_id=request_id, client_key=client_key
    )


async def put(call: Any, *requests: training_pb2.TrainingServiceTrainRequest) -> None:
    for request in requests:
        await call.write(training_pb2.TrainingServiceTrainEachRequest(request=request))


async def outcomes(call: Any) -> AsyncIterator[training_pb2.TrainOutcome]:
    """Yield the outcomes up to the end of the stream. Raises as it ends."""
    async for message in call:
        for outcome in message.outcomes:
            yield outcome


async def next_of(call: Any) -> training_pb2.TrainOutcome:
    """Return the only outcome of the next message."""
    async with patience.within(20):
        (outcome,) = (await call.read()).outcomes
    return outcome


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async with patience.within(20):
            await call.read()
    return reason_of(error.value)[:2]


BAD: list[dict[str, object]] = [
    {"request_id": "x" * 1000},
    {"client_key": "x" * 1000},
    {"instances": 10**6},
    {"framework": "FRAMEWORK_PYTORCH", "parameters": {"RANK": "1"}},
    {"code": training_pb2.CodeRef(archive_sha256=DIGEST)},
    {"dataset": {"id": "../etc", "version_hash": "h"}},
    {"client_key": "taken"},
]


async def test_a_refused_run_is_told_as_train_tells_it_and_those_after_it_are_queued(tmp_path: Path) -> None:
    artifacts = str(tmp_path / "artifacts")
    async with serving_master(tmp_path / "state", artifact_url=artifacts) as (_, channel):
        stub = training_pb2_grpc.TrainingServiceStub(channel)
        await stub.Train(train(0, client_key="taken"))
        requests = []
        for number, bad in enumerate(BAD, start=1):
            wrong = train(number, **{key: bad[key] for key in ("request_id", "client_key") if key in bad})
            for name in set(bad) - {"request_id", "client_key"}:
                wrong.spec.MergeFrom(training_pb2.RunSpec(**{name: bad[name]}))
            requests += [wrong, train(100 + number)]
        call = stub.TrainEach()
        await put(call, *requests)
        await call.done_writing()
        found = [outcome async for outcome in outcomes(call)]
        assert len(found) == len(requests)
        for request, outcome in zip(requests[::2], found[::2], strict=True):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Train(request)
            assert status_pb2.Status.FromString(outcome.refusal) == rpc_status.from_call(refused.value)
        assert [outcome.response.run.run_id for outcome in found[1::2]] == list(range(2, 2 + len(BAD)))
        seeds = [int(outcome.response.run.spec.parameters["SEED"]) for outcome in found[1::2]]
        assert seeds == [100 + number for number in range(1, 1 + len(BAD))]
        assert await queued(channel) == list(range(1, 2 + len(BAD)))


async def test_a_run_has_one_outcome_however_often_it_is_sent_and_by_which_rpc(tmp_path: Path) -> None:
    requests = [train(number, f"r{number}") for number in range(REQUESTS_IN_FLIGHT + 6)]
    for again in (False, True):
        async with serving_master(tmp_path) as (_, channel):
            stub = training_pb2_grpc.TrainingServiceStub(channel)
            call = stub.TrainEach()
            await put(call, *requests)
            await call.done_writing()
            found = [outcome.response async for outcome in outcomes(call)]
            assert [response.run.run_id for response in found] == list(range(1, len(requests) + 1))
            assert {response.created for response in found} == {not again}
            single = await stub.Train(requests[3])
            assert (single.run.run_id, single.created) == (4, False)
            if again:
                assert single == found[3], "the outcome is what Train answers"
            assert await queued(channel) == list(range(1, len(requests) + 1))


async def test_runs_of_one_message_have_an_outcome_each(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (_, channel):
        call = training_pb2_grpc.TrainingServiceStub(channel).TrainEach()
        wrong = train(1, instances=10**6)
        await call.write(
            training_pb2.TrainingServiceTrainEachRequest(request=train(0, "r0"), more=[wrong, train(2, "r2")])
        )
        await call.write(
            training_pb2.TrainingServiceTrainEachRequest(request=train(2, "r2"), more=[train(3, "r3")])
        )
        await call.done_writing()
        messages = [message async for message in call]
        assert [message.reads_more for message in messages] == [True] + [False] * (len(messages) - 1)
        found = [outcome for message in messages for outcome in message.outcomes]
        assert [outcome.WhichOneof("outcome") for outcome in found] == [
            "response",
            "refusal",
            *["response"] * 3,
        ]
        responses = [outcome.response for outcome in found if outcome.HasField("response")]
        assert [(one.run.run_id, one.created) for one in responses] == [
            (1, True),
            (2, True),
            (2, False),
            (3, True),
        ]
        assert await queued(channel) == [1, 2, 3]


async def test_a_run_that_is_looked_up_holds_its_place(tmp_path: Path) -> None:
    artifacts = str(tmp_path / "artifacts")
    Folder(artifacts).write(layout.code_archive(DIGEST), [b"zip"])
    code = training_pb2.CodeRef(archive_sha256=DIGEST)
    async with serving_master(tmp_path / "state", artifact_url=artifacts) as (_, channel):
        call = training_pb2_grpc.TrainingServiceStub(channel).TrainEach()
        await put(call, train(0), train(1, code=code), train(2), train(3, code=code))
        await call.done_writing()
        found = [outcome.response.run async for outcome in outcomes(call)]
        assert [run.spec.parameters["SEED"] for run in found] == ["0", "1", "2", "3"]
        assert await queued(channel) == sorted(run.run_id for run in found) == [1, 2, 3, 4]


async def test_nothing_is_told_before_it_is_stored_and_then_all_of_it_at_once(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (master, channel):
        call = training_pb2_grpc.TrainingServiceStub(channel).TrainEach()
        await put(call, train(0))
        assert (await next_of(call)).response.created
        log = master.runs.server.log
        async with patience.within(20), store_down(master):
            await put(call, *map(train, range(1, 11)))
            while log.appended < log.durable + 10:
                await asyncio.sleep(0.005)
            reading = asyncio.ensure_future(call.read())
            await asyncio.sleep(0.1)
            assert not reading.done()
        messages = [await reading]
        while sum(len(message.outcomes) for message in messages) < 10:
            messages.append(await call.read())
        told = [outcome.response.run.run_id for message in messages for outcome in message.outcomes]
        assert told == list(range(2, 12)) and len(messages) < 10, "those that are known go together"
        call.cancel()


async def test_a_master_that_leads_no_more_sends_streams_away(tmp_path: Path) -> None:
    """One waits for the store, one for its client."""
    async with serving_master(tmp_path) as (master, channel):
        stub = training_pb2_grpc.TrainingServiceStub(channel)
        idle, writing = stub.TrainEach(), stub.TrainEach()
        for call in (idle, writing):
            await put(call, train(0))
            assert (await next_of(call)).response.created
        server = master.runs.server
        async with patience.within(20), store_down(master):
            await put(writing, train(1, "r1"))
            while 3 not in server.machine.state.runs:  # the log may have something of its own to write
                await asyncio.sleep(0.005)
            assert server.log.durable < server.log.appended
            master.jobs.pause(Rejection("not_leading", "another master may lead"))
            for call in (idle, writing):
                assert await ended(call) == (grpc.StatusCode.UNAVAILABLE, "NOT_LEADING")
        assert await ended(stub.TrainEach()) == (grpc.StatusCode.UNAVAILABLE, "NOT_LEADING")
        master.jobs.resume()
        assert not server._ends
        call = stub.TrainEach()
        await put(call, train(1, "r1"))
        assert not (await next_of(call)).response.created, "it was decided on before"
        call.cancel()


async def test_a_refusal_that_the_store_cannot_confirm_ends_the_stream_and_is_no_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_server, "CONFIRM_SECONDS", 0.1)
    async with serving_master(tmp_path) as (master, channel):
        call = training_pb2_grpc.TrainingServiceStub(channel).TrainEach()
        async with store_down(master):
            await put(call, train(0, instances=10**6))
            assert await ended(call) == (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")


async def test_streams_are_limited_and_one_that_is_left_leaves_nothing(tmp_path: Path) -> None:
    async with serving_master(tmp_path, run_watchers_max=1) as (_, channel):
        stub = training_pb2_grpc.TrainingServiceStub(channel)
        before = len(asyncio.all_tasks())
        for number in range(3):
            call = stub.TrainEach()
            await put(call, train(number))
            await next_of(call)
            assert await ended(stub.TrainEach()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUSY")
            call.cancel()
            async with patience.within(20):
                while len(asyncio.all_tasks()) > before:
                    await asyncio.sleep(0.01)


async def test_bytes_that_are_no_request_end_the_stream(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (_, channel):
        call = channel.stream_stream("/elastane.v1.TrainingService/TrainEach")()
        await call.write(b"\xff\xff\xff")
        assert (await ended(call))[0] is grpc.StatusCode.INVALID_ARGUMENT


# ---------------------------------------------------------------- whose runs they are


def each_as(master: Master, name: str, channel: grpc.aio.Channel) -> Any:
    metadata = (("authorization", f"Bearer {token_of(name)}"),)
    return training_pb2_grpc.TrainingServiceStub(channel).TrainEach(metadata=metadata)


async def test_each_message_is_a_request_of_its_token(tmp_path: Path) -> None:
    tokens = entry("slow", ["submitter"], [], requests_per_second=0.001)
    async with (
        guarded_master(tmp_path, tokens) as master,
        grpc.aio.insecure_channel(master.address) as channel,
    ):
        call = each_as(master, "slow", channel)
        await put(call, train(0), train(1))
        assert (await next_of(call)).response.run.spec.owner == "slow"
        assert await ended(call) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")


async def test_each_run_of_a_message_is_a_request_of_its_token(tmp_path: Path) -> None:
    tokens = entry("slow", ["submitter"], [], requests_per_second=0.001)
    async with (
        guarded_master(tmp_path, tokens) as master,
        grpc.aio.insecure_channel(master.address) as channel,
    ):
        call = each_as(master, "slow", channel)
        await call.write(training_pb2.TrainingServiceTrainEachRequest(request=train(0), more=[train(1)]))
        assert (await next_of(call)).response.run.spec.owner == "slow"
        assert await ended(call) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        assert len(master.runs.server.machine.state.runs) == 1


async def test_quotas_and_rights_are_those_of_each_message(tmp_path: Path) -> None:
    async with (
        guarded_master(tmp_path, entry("ci", ["submitter"], [], runs_max=1)) as master,
        grpc.aio.insecure_channel(master.address) as channel,
    ):
        call = each_as(master, "ci", channel)
        await put(call, train(0), train(1), train(2, owner="others"))
        found: list[training_pb2.TrainOutcome] = []
        async with patience.within(20):
            while len(found) < 3:
                found += (await call.read()).outcomes
        assert found[0].response.run.spec.owner == "ci"
        codes = [status_pb2.Status.FromString(outcome.refusal).code for outcome in found[1:]]
        assert codes == [
            grpc.StatusCode.RESOURCE_EXHAUSTED.value[0],
            grpc.StatusCode.PERMISSION_DENIED.value[0],
        ]
        table = tmp_path / "tokens.toml"
        table.write_text(entry("ci", ["submitter"], [], runs_max=2))
        master.refresh_security()
        await put(call, train(1))
        assert (await next_of(call)).response.created
        table.write_text(entry("ci", ["reader"], ["*"]))
        master.refresh_security()
        assert await ended(call) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")


async def test_the_quota_counts_runs_that_are_still_looked_up(tmp_path: Path) -> None:
    artifacts = str(tmp_path / "artifacts")
    Folder(artifacts).write(layout.code_archive(DIGEST), [b"zip"])
    code = training_pb2.CodeRef(archive_sha256=DIGEST)
    (tmp_path / "tokens.toml").write_text(entry("ci", ["submitter"], [], runs_max=2))
    async with (
        serving_master(
            tmp_path / "state", artifact_url=artifacts, security={"token_file": tmp_path / "tokens.toml"}
        ) as (master, _),
        grpc.aio.insecure_channel(master.address) as channel,
    ):
        call = each_as(master, "ci", channel)
        await put(call, *(train(number, code=code) for number in range(6)))
        await call.done_writing()
        found = [outcome.WhichOneof("outcome") async for outcome in outcomes(call)]
        assert sorted(found) == ["refusal"] * 4 + ["response"] * 2


# ---------------------------------------------------------------- our client


def test_a_client_queues_each_run_once_though_the_master_is_killed_meanwhile(tmp_path: Path) -> None:
    master = EmbeddedMaster(tmp_path)
    master.start()
    count = 400
    try:
        with MasterClient(master.address, timeout_seconds=60.0) as client:
            training = TrainingClient(client)
            ids = []
            specs = (spec(number, instances=0 if number % 100 else 10**6) for number in range(count))
            for number, outcome in enumerate(training.train_each(specs)):
                if number % 100 == 0:
                    assert isinstance(outcome, RequestRefusedError) and outcome.reason == "invalid_argument"
                    assert outcome.facts["field"] == "spec.instances" and outcome.hint
                    continue
                assert outcome.run.spec.parameters["SEED"] == str(number)
                ids.append(outcome.run.run_id)
                if number in (150, 350):
                    master.sigkill()
                    master.wait()
                    master.start()
            assert len(set(ids)) == count - 4
            assert {run.run_id for run in training.iter_runs()} == set(ids), "none is there twice"
    finally:
        master.stop()


class CallsOnly(training_pb2_grpc.TrainingServiceServicer):
    """A master of before TrainEach."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def Train(  # noqa: N802 - the name of the rpc
        self, request: training_pb2.TrainingServiceTrainRequest, context: grpc.ServicerContext
    ) -> training_pb2.TrainingServiceTrainResponse:
        self.ids.append(request.request_id)
        if request.spec.parameters["SEED"] == "1":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not this one")
        return training_pb2.TrainingServiceTrainResponse(run=training_pb2.Run(run_id=len(self.ids)))


@pytest.fixture
def old_master() -> Iterator[tuple[CallsOnly, str]]:
    server = grpc.server(ThreadPoolExecutor(4), interceptors=[TellsVersion()])
    servicer = CallsOnly()
    training_pb2_grpc.add_TrainingServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None)


def test_a_master_older_than_the_stream_gets_calls(old_master: tuple[CallsOnly, str]) -> None:
    servicer, address = old_master
    with MasterClient(address) as client:
        found = list(TrainingClient(client).train_each(spec(number) for number in range(3)))
    assert len(set(servicer.ids)) == 3
    assert isinstance(found[1], RequestRefusedError)
    assert [found[0].run.run_id, found[2].run.run_id] == [1, 3]
