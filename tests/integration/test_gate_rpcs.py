"""Every rpc, by its descriptor: without the right certificate, token, role or job nothing is had or changed.

One master in a process of its own, with mutual TLS and tokens; job "mine" has a dataset and a worker.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc_status import rpc_status

from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_proto.v1 import job_pb2, job_pb2_grpc, ring_pb2, ring_pb2_grpc, shard_pb2, training_pb2
from integration.security_support import (
    ABSENT,
    ALLOWED,
    JOB,
    ROLES,
    Certificates,
    SessionError,
    call,
    carry,
    is_of_runs,
    methods,
    path_of,
    refusal,
    short_name,
    standard_tokens,
    token_of,
)

METHODS = methods()
OF_JOBS = [method for method in METHODS if not is_of_runs(method)]
OF_RUNS = [
    method
    for method in METHODS
    if is_of_runs(method) and method.name not in ("Train", "TrainMany", "TrainEach", "Attend", "GetService")
]
EVERY_RPC = pytest.mark.parametrize("method", METHODS, ids=[short_name(method) for method in METHODS])
BY_NAME = {short_name(method): method for method in METHODS}
LET_IN = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT}
LOCAL = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The master, and channels to it with the right certificate, with another CA's, and with none."""
    folder = tmp_path_factory.mktemp("gate")
    certificates, others = Certificates(folder / "tls"), Certificates(folder / "others")
    tokens = folder / "tokens.toml"
    tokens.write_text("".join(standard_tokens()))
    options = {"token-file": tokens, "tls-cert": certificates.cert, "tls-key": certificates.key}
    options["tls-client-ca"] = certificates.ca
    master = EmbeddedMaster(
        folder / "state",
        arguments=[part for name, path in options.items() for part in (f"--{name}", str(path))],
    )
    address = master.start()
    foreign = grpc.ssl_channel_credentials(
        certificates.ca.read_bytes(), others.client_key.read_bytes(), others.client_cert.read_bytes()
    )
    worker = _Attending()
    channels: list[grpc.Channel] = []
    try:
        for credentials in (
            certificates.channel_credentials(),
            certificates.channel_credentials(with_certificate=False),
            foreign,
        ):
            channels.append(grpc.secure_channel(address, credentials, options=LOCAL))
        channels.append(grpc.insecure_channel(address, options=LOCAL))
        right = channels[0]
        job_pb2_grpc.JobServiceStub(right).Create(
            job_pb2.JobServiceCreateRequest(name=JOB, settings=job_pb2.JobSettings(ests=1)),
            metadata=[("authorization", f"Bearer {token_of('operator')}")],
        )
        call(right, BY_NAME["ShardService.CreateDataset"], JOB, token_of("worker"))
        worker.attend(right)
        yield SimpleNamespace(
            master=master, **dict(zip(("right", "none", "foreign", "plain"), channels, strict=True))
        )
    finally:
        worker.leave()
        for channel in channels:
            channel.close()
        master.stop()


class _Attending:
    """Worker w0 in the job, for the whole module."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[ring_pb2.AttendRequest | None] = queue.SimpleQueue()
        self._left = threading.Event()

    def attend(self, channel: grpc.Channel) -> None:
        hello = ring_pb2.Hello(job=JOB, worker_id="w0", role=ring_pb2.WORKER_ROLE_TASKS)
        self._messages.put(ring_pb2.AttendRequest(hello=hello))
        stream = ring_pb2_grpc.RingServiceStub(channel).Attend(
            iter(self._messages.get, None), metadata=[("authorization", f"Bearer {token_of('worker')}")]
        )
        assert next(stream).HasField("welcome")
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._left.wait(0.5):
            self._messages.put(ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat()))

    def leave(self) -> None:
        self._left.set()
        self._messages.put(None)


@pytest.fixture
def unchanged(served: SimpleNamespace) -> Iterator[None]:
    """What the master knows of its jobs is the same after the test."""
    before = _everything(served)
    yield
    assert _everything(served) == before


def _everything(served: SimpleNamespace) -> list[Any]:
    root = token_of("root")
    jobs = call(served.right, BY_NAME["JobService.List"], JOB, root)
    for job in jobs.jobs:
        for worker in job.workers:
            worker.ClearField("last_heard")
    progress = call(served.right, BY_NAME["ShardService.GetProgress"], JOB, root, dataset="")
    for dataset in progress.datasets:
        dataset.ClearField("samples_per_second")
    tasks = call(served.right, BY_NAME["ShardService.ListTasks"], JOB, root, dataset="intruded")
    ring = call(served.right, BY_NAME["RingService.GetRing"], JOB, root)
    return [jobs, progress, tasks, ring]


def test_every_rpc_is_written_down_here() -> None:
    assert {short_name(method) for method in METHODS} == set(ALLOWED)


@EVERY_RPC
@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("channel", ["none", "foreign", "plain"])
def test_without_the_right_certificate_there_is_no_connection(
    served: SimpleNamespace, method: MethodDescriptor, channel: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        call(getattr(served, channel), method, JOB, token_of("root"))
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


@EVERY_RPC
@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("token", [None, "", "wrong-token-0123456789", token_of("root")[:-1]])
def test_without_a_known_token_nobody_is_let_in(
    served: SimpleNamespace, method: MethodDescriptor, token: str | None
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        call(served.right, method, JOB, token)
    assert refusal(refused.value) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
    assert (token or "-none-") not in refused.value.details()


@pytest.mark.parametrize("method", OF_JOBS, ids=[short_name(method) for method in OF_JOBS])
@pytest.mark.usefixtures("unchanged")
def test_a_token_of_another_job_has_no_rights_here(served: SimpleNamespace, method: MethodDescriptor) -> None:
    if method.name == "List" and short_name(method) == "JobService.List":
        assert not call(served.right, method, JOB, token_of("stranger")).jobs
        assert [job.name for job in call(served.right, method, JOB, token_of("reader")).jobs] == [JOB]
        return
    refusals = set()
    for job in (JOB, ABSENT, ""):
        with pytest.raises(grpc.RpcError) as refused:
            call(served.right, method, job, token_of("stranger"))
        if job:
            refusals.add((refusal(refused.value), refused.value.details().replace(job, "JOB")))
    # It does not even learn whether the job is there.
    assert len(refusals) == 1
    assert refusals.pop()[0] == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")


@EVERY_RPC
@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("role", ROLES)
def test_the_role_decides(served: SimpleNamespace, method: MethodDescriptor, role: str) -> None:
    allowed = role in ALLOWED[short_name(method)]
    try:
        # The refused one asks for what is there; the allowed one for a job that is not, to change nothing.
        call(served.right, method, ABSENT if allowed else JOB, token_of(role))
    except grpc.RpcError as error:
        code, reason = refusal(error)
        if allowed:
            assert code in LET_IN, (code, reason)
        else:
            assert (code, reason) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
    else:
        assert allowed
        assert short_name(method) in (
            "JobService.List",
            "TrainingService.List",
            "TrainingService.GetService",
            "TrainingService.TrainEach",  # its answer says that the empty request is refused
        )


def _refused(ask: Callable[[], object]) -> tuple[grpc.StatusCode, str, str | None, object]:
    """How a call is refused, its details included."""
    with pytest.raises(grpc.RpcError) as caught:
        ask()
    status = rpc_status.from_call(caught.value)
    assert status is not None
    return *refusal(caught.value), caught.value.details(), status.details


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("job", [JOB, ABSENT])
@pytest.mark.parametrize("relay", ["worker", "operator", "root"])
def test_a_session_in_a_relay_is_refused_as_one_of_its_own(
    served: SimpleNamespace, relay: str, job: str
) -> None:
    """The relay's token opens the stream and gives its sessions nothing."""
    attend = BY_NAME["RingService.Attend"]
    for name in (None, "nobody-knows", *ROLES, "stranger", "root"):
        if job == JOB and name in ("worker", "root"):
            continue  # it would join
        token = token_of(name) if name is not None else None
        direct = _refused(lambda token=token: call(served.right, attend, job, token))
        carried = _refused(lambda token=token: carry(served.right, job, token_of(relay), token))
        assert carried == direct, name


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("role", [*ROLES, "stranger", None])
def test_who_may_carry_sessions_of_others(served: SimpleNamespace, role: str | None) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        carry(served.right, ABSENT, token_of(role) if role is not None else None, token_of("worker"))
    code, reason = refusal(refused.value)
    if role in ("worker", "operator", "stranger"):
        assert isinstance(refused.value, SessionError)
        assert code is grpc.StatusCode.NOT_FOUND, "the worker was admitted"
    else:
        assert not isinstance(refused.value, SessionError)
        assert reason == ("UNAUTHENTICATED" if role is None else "PERMISSION_DENIED")


def test_a_token_of_another_owner_does_not_learn_that_a_run_is_there(served: SimpleNamespace) -> None:
    spec = training_pb2.RunSpec(output_model_name="m", code={"installed": True}, command=["true"])
    run = call(served.right, BY_NAME["TrainingService.Train"], "", token_of("submitter"), spec=spec).run
    assert run.spec.owner == "submitter"
    for method in OF_RUNS:
        if method.name == "List":
            assert not call(served.right, method, "", token_of("stranger")).runs
            assert len(call(served.right, method, "", token_of("submitter")).runs) == 1
            continue
        refusals = set()
        for run_id in (run.run_id, run.run_id + 1000):
            field = "job_id" if method.name == "GetTrainingStatus" else "run_id"
            with pytest.raises(grpc.RpcError) as refused:
                call(served.right, method, "", token_of("stranger"), **{field: run_id})
            refusals.add((refusal(refused.value), refused.value.details().replace(str(run_id), "N")))
        assert len(refusals) == 1
        assert refusals.pop()[0] == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    named = training_pb2.RunSpec(output_model_name="m", code={"installed": True}, command=["x"], owner="ci")
    with pytest.raises(grpc.RpcError) as refused:
        call(served.right, BY_NAME["TrainingService.Train"], "", token_of("submitter"), spec=named)
    assert refusal(refused.value) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")


def test_the_token_does_not_reach_the_log(served: SimpleNamespace) -> None:
    """Runs last in this module: all of the above was logged, or left out, by then."""
    log = served.master.log_path.read_text()
    assert "a call was refused" in log
    assert not [name for name in (*ROLES, "root", "stranger") if token_of(name) in log]


def test_a_malformed_first_message_joins_nobody(served: SimpleNamespace) -> None:
    attend = served.right.stream_stream(path_of(BY_NAME["RingService.Attend"]), None, None)
    metadata = [("authorization", f"Bearer {token_of('worker')}")]
    with pytest.raises(grpc.RpcError) as refused:
        next(attend(iter([b"\xff\xff\xff"]), metadata=metadata, timeout=60))
    assert refusal(refused.value)[0] == grpc.StatusCode.INVALID_ARGUMENT
    nothing = shard_pb2.GetProgressRequest().SerializeToString()
    with pytest.raises(grpc.RpcError) as refused:
        next(attend(iter([nothing]), metadata=metadata, timeout=60))
    assert refusal(refused.value) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
