"""A master in this process: the gate fails closed, quotas, revoked tokens, renewed certificates, health."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import patience
from elastane_master.app import Master
from elastane_master.decisions.events import Rejection
from elastane_master.security import policy
from elastane_master.security.errors import BadSecurityFile, InsecureListen
from elastane_master.security.quotas import QuotaBook
from elastane_master.security.settings import SecuritySettings
from elastane_master.security.tls import ServerTls, TlsFiles
from elastane_master.servers import gate
from elastane_master.servers.gate import TokenFile
from elastane_master.settings import MasterSettings
from elastane_proto.v1 import job_pb2, job_pb2_grpc, ring_pb2, shard_pb2, shard_pb2_grpc
from integration.master_support import Worker, reason_of, serving_master
from integration.security_support import (
    ABSENT,
    Certificates,
    entry,
    methods,
    path_of,
    request_for,
    short_name,
    standard_tokens,
    token_of,
)

LOCAL = [("grpc.use_local_subchannel_pool", 1)]


def _bearer(name: str) -> tuple[tuple[str, str]]:
    return (("authorization", f"Bearer {token_of(name)}"),)


class _Unary(grpc.aio.UnaryUnaryClientInterceptor):
    """A caller's token on its unary calls."""

    def __init__(self, name: str) -> None:
        self._metadata = _bearer(name)

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(details._replace(metadata=self._metadata), request)


class _Watch(grpc.aio.UnaryStreamClientInterceptor):
    """A caller's token on its watches."""

    def __init__(self, name: str) -> None:
        self._metadata = _bearer(name)

    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(details._replace(metadata=self._metadata), request)


def caller(master: Master, name: str) -> grpc.aio.Channel:
    """A channel of whoever holds `token_of(name)`."""
    return grpc.aio.insecure_channel(master.address, options=LOCAL, interceptors=[_Unary(name), _Watch(name)])


@contextlib.asynccontextmanager
async def guarded_master(folder: Path, tokens: str = "", **security: Any) -> AsyncIterator[Master]:
    """A master with this table of tokens, and nothing else protected."""
    if tokens:
        security["token_file"] = folder / "tokens.toml"
        security["token_file"].write_text(tokens)
    async with serving_master(folder, security=SecuritySettings(**security)) as (master, _):
        yield master


async def refused(call: Awaitable[object]) -> tuple[grpc.StatusCode, str, Any]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return reason_of(error.value)


def create(name: str) -> job_pb2.JobServiceCreateRequest:
    return job_pb2.JobServiceCreateRequest(name=name, settings=job_pb2.JobSettings(ests=1))


async def call_by_hand(channel: grpc.aio.Channel, method: Any, token: str | None) -> object:
    """One call of any rpc, whose refusal comes as AioRpcError."""
    request = request_for(method, ABSENT)
    form = f"{'stream' if method.client_streaming else 'unary'}_"
    form += "stream" if method.server_streaming else "unary"
    stub = getattr(channel, form)(path_of(method), type(request).SerializeToString, None)
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    sent = iter([request]) if method.client_streaming else request
    call = stub(sent, metadata=metadata, timeout=60)
    return await (call.read() if method.server_streaming else call)


# ---------------------------------------------------------------- fails closed


def test_the_table_has_every_rpc_that_is_served_and_no_other() -> None:
    served = {path_of(method) for method in methods()}
    ours = {rpc for rpc in policy.RULES if rpc.startswith(("/elastane.", "/training."))}
    assert ours == served
    health = health_pb2.DESCRIPTOR.services_by_name["Health"]
    assert {path_of(method) for method in health.methods} == {
        rpc for rpc in policy.RULES if ".health." in rpc
    }
    assert [rpc for rpc, rule in policy.RULES.items() if rule.open] == ["/grpc.health.v1.Health/Check"]


async def test_an_rpc_that_is_missing_in_the_table_is_refused_to_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        guarded_master(tmp_path, "".join(standard_tokens())) as master,
        grpc.aio.insecure_channel(master.address, options=LOCAL) as channel,
    ):
        for method in methods():
            with monkeypatch.context() as without:
                without.delitem(policy.RULES, path_of(method))
                code, reason, detail = await refused(call_by_hand(channel, method, token_of("root")))
            assert (code, reason) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"), (
                method.full_name
            )
            assert detail.facts["rpc"] == path_of(method)
            # With its rule it is let in, and finds no such job or run.
            if short_name(method) not in (
                "JobService.List",
                "TrainingService.List",
                "TrainingService.GetService",
                "TrainingService.GetScheduling",
                "TrainingService.TrainEach",  # tells in its answer
                "RingService.Relay",  # tells each of its sessions
            ):
                code, _, _ = await refused(call_by_hand(channel, method, token_of("root")))
                assert code != grpc.StatusCode.PERMISSION_DENIED, method.full_name


async def test_several_tokens_and_other_schemes_are_refused(tmp_path: Path) -> None:
    async with (
        guarded_master(tmp_path, "".join(standard_tokens())) as master,
        grpc.aio.insecure_channel(master.address, options=LOCAL) as channel,
    ):
        jobs = job_pb2_grpc.JobServiceStub(channel)
        right = ("authorization", f"Bearer {token_of('root')}")
        for metadata in (
            (right, right),
            (("authorization", f"Basic {token_of('root')}"),),
            (("authorization", token_of("root")),),
            (("x-authorization", f"Bearer {token_of('root')}"),),
        ):
            code, _, _ = await refused(jobs.List(job_pb2.JobServiceListRequest(), metadata=metadata))
            assert code == grpc.StatusCode.UNAUTHENTICATED
        await jobs.List(job_pb2.JobServiceListRequest(), metadata=(right,))


async def test_a_job_that_is_not_named_is_one_of_the_tokens_own(tmp_path: Path) -> None:
    async with (
        guarded_master(tmp_path, "".join(standard_tokens())) as master,
        caller(master, "root") as root,
        caller(master, "reader") as reader,
        caller(master, "stranger") as stranger,
    ):
        for name in ("mine", "theirs"):
            await job_pb2_grpc.JobServiceStub(root).Create(create(name))
        nothing = shard_pb2.GetProgressRequest()
        # root sees two jobs and must choose; the reader sees one; the stranger none, and no names either.
        code, _, detail = await refused(shard_pb2_grpc.ShardServiceStub(root).GetProgress(nothing))
        assert (code, detail.facts["jobs"]) == (grpc.StatusCode.INVALID_ARGUMENT, "mine, theirs")
        await shard_pb2_grpc.ShardServiceStub(reader).GetProgress(nothing)
        code, _, detail = await refused(shard_pb2_grpc.ShardServiceStub(stranger).GetProgress(nothing))
        assert (code, detail.facts["jobs"]) == (grpc.StatusCode.NOT_FOUND, "")


# ---------------------------------------------------------------- health and reflection


async def list_services(channel: grpc.aio.Channel, token: str | None = None) -> object:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    return await stub.ServerReflectionInfo(asked, metadata=metadata, timeout=60).read()


async def test_health_is_open_and_reflection_needs_a_token(tmp_path: Path) -> None:
    async with (
        guarded_master(tmp_path, "".join(standard_tokens())) as master,
        grpc.aio.insecure_channel(master.address, options=LOCAL) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest()
        assert (await health.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
        code, _, _ = await refused(health.Watch(asked).read())
        assert code == grpc.StatusCode.UNAUTHENTICATED
        bearer = _bearer("worker")
        watched = await health.Watch(asked, metadata=bearer).read()
        assert watched.status == health_pb2.HealthCheckResponse.SERVING
        code, _, _ = await refused(list_services(channel))
        assert code == grpc.StatusCode.UNAUTHENTICATED
        assert await list_services(channel, token_of("reader"))


async def test_reflection_can_be_turned_off(tmp_path: Path) -> None:
    async with (
        guarded_master(tmp_path, reflection=False) as master,
        grpc.aio.insecure_channel(master.address, options=LOCAL) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await list_services(channel)
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
        await job_pb2_grpc.JobServiceStub(channel).List(job_pb2.JobServiceListRequest())


# ---------------------------------------------------------------- tokens that change


async def test_a_revoked_token_ends_sessions_and_watches_and_a_new_one_is_let_in(tmp_path: Path) -> None:
    tokens = {name: entry(name, roles, ["j"]) for name, roles in (
        ("boss", ["operator"]), ("old", ["worker", "reader"]), ("stays", ["worker"])
    )}  # fmt: skip
    async with guarded_master(tmp_path, "".join(tokens.values())) as master, caller(master, "boss") as boss:
        await job_pb2_grpc.JobServiceStub(boss).Create(create("j"))
        async with caller(master, "old") as old, grpc.aio.insecure_channel(master.address) as plain:
            leaving, staying = attending(plain, "w-old", "old"), attending(plain, "w-stays", "stays")
            await leaving.hello()
            await staying.hello()
            watch = job_pb2_grpc.JobServiceStub(old).Watch(job_pb2.JobServiceWatchRequest(name="j"))
            await watch.read()
            path = tmp_path / "tokens.toml"
            # A broken file changes nothing.
            path.write_text("[[token]]\nname = 3\n")
            master.refresh_security()
            await staying.send(heartbeat=ring_pb2.Heartbeat())
            await job_pb2_grpc.JobServiceStub(old).Get(job_pb2.JobServiceGetRequest(name="j"))

            path.write_text(tokens["boss"] + tokens["stays"] + entry("new", ["worker"], ["j"]))
            os.utime(path, ns=(0, 0))  # two writes may share a tick of the file system's clock
            master.refresh_security()
            assert await leaving.ended() == grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                while await watch.read() is not grpc.aio.EOF:
                    pass
            assert ended.value.code() == grpc.StatusCode.UNAUTHENTICATED
            fresh = attending(plain, "w-new", "new")
            await fresh.hello()
            job = (await job_pb2_grpc.JobServiceStub(boss).Get(job_pb2.JobServiceGetRequest(name="j"))).job
            assert {worker.worker_id for worker in job.workers} == {"w-new", "w-stays"}


async def test_a_table_that_changes_while_it_is_read_is_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a table is a table too: whoever stands in the other half must not be cut off."""
    path = tmp_path / "tokens.toml"
    path.write_text(entry("a", ["reader"], ["*"]) + entry("b", ["reader"], ["*"]))
    tokens = TokenFile(path)
    read = gate.read_file

    def read_half(_: Path) -> bytes:
        half = read(path)
        path.write_text(entry("a", ["reader"], ["*"]) + entry("c", ["reader"], ["*"]))
        return half

    path.write_text(entry("a", ["reader"], ["*"]))
    os.utime(path, ns=(0, 0))
    with monkeypatch.context() as writing:
        writing.setattr(gate, "read_file", read_half)
        assert not tokens.refresh()
    assert tokens.find(token_of("b"))[1].name == "b"
    assert tokens.refresh()
    assert tokens.find(token_of("c"))[1].name == "c"
    with pytest.raises(Rejection):
        tokens.find(token_of("b"))


async def test_a_changed_file_is_noticed_without_a_signal(tmp_path: Path) -> None:
    async with guarded_master(tmp_path, entry("a", ["reader"], ["*"])) as master, caller(master, "b") as new:
        jobs = job_pb2_grpc.JobServiceStub(new)
        assert (await refused(jobs.List(job_pb2.JobServiceListRequest())))[1] == "UNAUTHENTICATED"
        (tmp_path / "tokens.toml").write_text(entry("b", ["reader"], ["*"]))
        async with patience.within(60):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await jobs.List(job_pb2.JobServiceListRequest())
                    break
                await asyncio.sleep(0.05)  # the master looks at the file by time: it gives no event


def attending(channel: grpc.aio.Channel, worker_id: str, token: str) -> Worker:
    """A worker whose stream bears a token."""
    worker = Worker.__new__(Worker)
    worker.worker_id, worker.job = worker_id, "j"
    metadata = _bearer(token)
    attend = channel.stream_stream(
        "/elastane.v1.RingService/Attend",
        ring_pb2.AttendRequest.SerializeToString,
        ring_pb2.AttendResponse.FromString,
    )
    worker.call = attend(metadata=metadata)
    return worker


# ---------------------------------------------------------------- quotas


async def test_a_token_gets_its_quotas_and_no_more(tmp_path: Path) -> None:
    limits = {"jobs_max": 2, "datasets_max": 1, "sessions_max": 1}
    tokens = entry("small", ["operator", "worker"], ["j*"], **limits) + entry("root", ["operator"], ["*"])
    async with (
        guarded_master(tmp_path, tokens) as master,
        caller(master, "small") as small,
        caller(master, "root") as root,
        grpc.aio.insecure_channel(master.address, options=LOCAL) as plain,
    ):
        jobs, shards = job_pb2_grpc.JobServiceStub(small), shard_pb2_grpc.ShardServiceStub(small)
        # At once: what is being made counts too.
        made = await asyncio.gather(
            *[jobs.Create(create(f"j{number}")) for number in range(4)], return_exceptions=True
        )
        failed = [error for error in made if isinstance(error, grpc.aio.AioRpcError)]
        assert len(failed) == 2
        for error in failed:
            code, reason, detail = reason_of(error)
            assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
            assert detail.facts["quota"] == "jobs_max"
            assert not detail.retryable
        there = [job.name for job in (await jobs.List(job_pb2.JobServiceListRequest())).jobs]
        assert len(there) == 2
        assert not (await jobs.Create(create(there[0]))).created  # finding one makes none
        await job_pb2_grpc.JobServiceStub(root).Create(create("j9"))  # another's quota is another's

        def dataset(name: str) -> shard_pb2.CreateDatasetRequest:
            settings = shard_pb2.DatasetSettings(task_size=1, range=shard_pb2.RangeSource(size=1))
            return shard_pb2.CreateDatasetRequest(job=there[0], dataset=name, settings=settings)

        await shards.CreateDataset(dataset("a"))
        assert (await refused(shards.CreateDataset(dataset("b"))))[2].facts["quota"] == "datasets_max"
        assert not (await shards.CreateDataset(dataset("a"))).created

        first, second = (attending(plain, worker, "small") for worker in ("w0", "w1"))
        first.job = second.job = there[0]
        await first.hello()
        assert (await refused(second.hello()))[2].facts["quota"] == "sessions_max"
        first.call.cancel()
        async with patience.within(60):
            while True:  # the end of a session reaches the master when it does
                again = attending(plain, "w1", "small")
                again.job = there[0]
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await again.hello()
                    break


async def test_too_many_requests_are_refused_and_may_be_sent_again(tmp_path: Path) -> None:
    tokens = entry("slow", ["reader"], ["*"], requests_per_second=0.001) + entry("other", ["reader"], ["*"])
    async with (
        guarded_master(tmp_path, tokens) as master,
        caller(master, "slow") as slow,
        caller(master, "other") as other,
    ):
        asked = job_pb2.JobServiceListRequest()
        await job_pb2_grpc.JobServiceStub(slow).List(asked)
        code, reason, detail = await refused(job_pb2_grpc.JobServiceStub(slow).List(asked))
        assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        assert detail.retryable
        assert float(detail.facts["retry_after_seconds"]) > 0
        await job_pb2_grpc.JobServiceStub(other).List(asked)


@pytest.mark.parametrize(
    ("admitted", "messages"),
    [(1, [1, 1]), (3, [1, 3]), (3, [4]), (3, [1, 2, 2]), (1, [2, 1])],
    ids=["one each", "several", "several in the first", "none of the last", "half of the first"],
)
async def test_each_request_of_a_stream_of_tasks_counts(
    tmp_path: Path, admitted: int, messages: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """admitted: number of requests that the quota has room for; the one beyond it is refused at its place."""
    stopped = asyncio.get_running_loop().time()
    take = QuotaBook.take_request
    monkeypatch.setattr(QuotaBook, "take_request", lambda book, caller, now: take(book, caller, stopped))
    tokens = entry("slow", ["worker"], ["*"], requests_per_second=admitted)
    tokens += entry("root", ["operator", "worker"], ["*"])
    async with (
        guarded_master(tmp_path, tokens) as master,
        caller(master, "slow") as slow,
        caller(master, "root") as root,
    ):
        settings = job_pb2.JobSettings(ests=1)
        await job_pb2_grpc.JobServiceStub(root).Create(
            job_pb2.JobServiceCreateRequest(name="mine", settings=settings)
        )
        data = shard_pb2.DatasetSettings(range=shard_pb2.RangeSource(size=9), task_size=1)
        await shard_pb2_grpc.ShardServiceStub(root).CreateDataset(
            shard_pb2.CreateDatasetRequest(job="mine", dataset="d", settings=data)
        )
        lease = shard_pb2.LeaseTasksRequest(job="mine", dataset="d", worker_id="w", max_tasks=1)
        stream = shard_pb2_grpc.ShardServiceStub(slow).StreamTasks(metadata=_bearer("slow"))
        for requests in messages:
            await stream.write(shard_pb2.StreamTasksRequest(request=lease, more=[lease] * (requests - 1)))
        for _ in range(admitted):
            assert (await stream.read()).response.tasks
        code, reason, _ = await refused(stream.read())
        assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        progress = await shard_pb2_grpc.ShardServiceStub(root).GetProgress(
            shard_pb2.GetProgressRequest(job="mine")
        )
        assert progress.datasets[0].doing == admitted, "no other was decided on"


# ---------------------------------------------------------------- certificates


@pytest.mark.parametrize("tokens", ["", "".join(standard_tokens())], ids=["gRPC's TLS", "the front's"])
async def test_renewed_certificates_are_taken_up_and_half_a_renewal_is_not(
    tmp_path: Path, tokens: str
) -> None:
    old, new = Certificates(tmp_path / "old"), Certificates(tmp_path / "new")

    async def health(ca: Certificates) -> grpc.StatusCode:
        credentials = ca.channel_credentials(with_certificate=False)
        async with grpc.aio.secure_channel(master.address, credentials, options=LOCAL) as channel:
            try:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    async with guarded_master(tmp_path, tokens, **old.master_options(mutual=False)) as master:
        assert await health(old) == grpc.StatusCode.OK
        assert await health(new) == grpc.StatusCode.UNAVAILABLE
        old.cert.write_bytes(new.cert.read_bytes())  # the key is still the old one
        assert await health(old) == grpc.StatusCode.OK
        old.key.write_bytes(new.key.read_bytes())
        assert await health(new) == grpc.StatusCode.OK
        assert await health(old) == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("tokens", ["", "".join(standard_tokens())], ids=["gRPC's TLS", "the front's"])
async def test_a_replaced_client_ca_shuts_out_the_old_ones_callers(tmp_path: Path, tokens: str) -> None:
    server, old, new = (Certificates(tmp_path / name) for name in ("server", "old", "new"))
    client_ca = tmp_path / "client-ca.pem"
    client_ca.write_bytes(old.ca.read_bytes())

    async def health(own: Certificates) -> grpc.StatusCode:
        credentials = grpc.ssl_channel_credentials(
            server.ca.read_bytes(), own.client_key.read_bytes(), own.client_cert.read_bytes()
        )
        async with grpc.aio.secure_channel(master.address, credentials, options=LOCAL) as channel:
            try:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    files = {**server.master_options(mutual=False), "tls_client_ca": client_ca}
    async with guarded_master(tmp_path, tokens, **files) as master:
        assert await health(old) == grpc.StatusCode.OK
        assert await health(new) == grpc.StatusCode.UNAVAILABLE
        client_ca.write_bytes(new.ca.read_bytes() + new.ca.read_bytes())
        assert await health(new) == grpc.StatusCode.OK
        assert await health(old) == grpc.StatusCode.UNAVAILABLE


def test_grpc_is_given_the_certificate_only_when_it_has_changed(tmp_path: Path) -> None:
    """At each handshake anew, it frees the one that others are just using: the master crashes."""
    old, new = Certificates(tmp_path / "old"), Certificates(tmp_path / "new")
    tls = ServerTls(TlsFiles(old.cert, old.key))
    assert [tls._fetch() for _ in range(3)] == [None] * 3
    for name in ("cert", "key"):
        getattr(old, name).write_bytes(getattr(new, name).read_bytes())
    assert tls.refresh()  # HTTP has noticed first
    assert isinstance(tls._fetch(), grpc.ServerCertificateConfiguration)
    assert tls._fetch() is None


async def test_an_http_server_can_use_the_same_certificate_and_client_ca(tmp_path: Path) -> None:
    old, new = Certificates(tmp_path / "old"), Certificates(tmp_path / "new")
    client_ca = tmp_path / "client-ca.pem"
    client_ca.write_bytes(old.ca.read_bytes())
    tls = ServerTls(TlsFiles(old.cert, old.key, client_ca))

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def ask(server: Certificates, own: Certificates) -> bytes:
        context = ssl.create_default_context(cafile=str(server.ca))
        context.load_cert_chain(own.client_cert, own.client_key)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            writer.write(b"ping\n")
            return await reader.readline()
        except (ssl.SSLError, ConnectionError):
            if isinstance(reader.exception(), ssl.SSLCertVerificationError):
                raise
            return b""  # the server has hung up on our certificate
        finally:
            writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=tls.ssl_context()) as http:
        port = http.sockets[0].getsockname()[1]
        assert await ask(old, old) == b"ping\n"
        assert await ask(old, new) == b""
        old.cert.write_bytes(new.cert.read_bytes())  # half a renewal
        assert await ask(old, old) == b"ping\n"
        old.key.write_bytes(new.key.read_bytes())
        assert await ask(new, old) == b"ping\n"
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(old, old)
        client_ca.write_bytes(2 * new.ca.read_bytes())
        assert await ask(new, new) == b"ping\n"
        assert await ask(new, old) == b""


async def test_files_that_cannot_be_used_are_told_before_anything_is_served(tmp_path: Path) -> None:
    pair, other = Certificates(tmp_path / "a"), Certificates(tmp_path / "b")
    secret = "0123456789-very-secret"
    (tmp_path / "short").write_text('[[token]]\nname="a"\nroles=["worker"]\njobs=["*"]\ntoken="0123secret"\n')
    (tmp_path / "twice").write_text(
        2 * f'[[token]]\nname="a"\nroles=["worker"]\njobs=["*"]\ntoken="{secret}"\n'
    )
    wrong: list[dict[str, Any]] = [
        {"tls_cert": pair.cert, "tls_key": other.key},
        {"tls_cert": pair.cert, "tls_key": tmp_path / "missing"},
        {"tls_cert": pair.cert, "tls_key": pair.key, "tls_client_ca": pair.key},
        {"token_file": tmp_path / "missing"},
        {"token_file": tmp_path / "short"},
        {"token_file": tmp_path / "twice"},
        {"token_file": pair.key},
    ]
    for security in wrong:
        with pytest.raises(BadSecurityFile) as told:
            async with guarded_master(tmp_path, **security):
                pass
        assert told.value.hint
        assert "secret" not in str(told.value)


# ---------------------------------------------------------------- where it may listen


@pytest.mark.parametrize(
    ("listen", "security", "served"),
    [
        ("127.0.0.1:0", {}, True),
        ("localhost:0", {}, True),
        ("0.0.0.0:0", {}, False),
        (":0", {}, False),
        ("192.0.2.1:0", {"token_file": "t"}, False),
        ("0.0.0.0:0", {"tls_cert": "c", "tls_key": "k"}, False),
        ("0.0.0.0:0", {"tls_cert": "c", "tls_key": "k", "token_file": "t"}, True),
        ("0.0.0.0:0", {"tls_cert": "c", "tls_key": "k", "tls_client_ca": "a"}, True),
        ("0.0.0.0:0", {"insecure": True}, True),
    ],
)
def test_beyond_loopback_there_must_be_tls_and_callers_known(
    listen: str, security: dict[str, Any], served: bool
) -> None:
    settings = MasterSettings(listen=listen, security=SecuritySettings(**security))
    if served:
        settings.security.require_safe(settings.listen, settings.listen_host)
        return
    with pytest.raises(InsecureListen) as told:
        settings.security.require_safe(settings.listen, settings.listen_host)
    assert "--insecure" in told.value.hint


async def test_a_master_does_not_start_on_an_open_address(tmp_path: Path) -> None:
    master = Master(MasterSettings(listen="0.0.0.0:0", state_dir=tmp_path))
    with pytest.raises(InsecureListen):
        await master.start()
    await master.stop()
    assert not list(tmp_path.iterdir()), "nothing was begun"
