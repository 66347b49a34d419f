"""Shared parts of the gate's tests: certificates, a table of tokens, every rpc, and a request for each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import trustme
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status

from elastane_master.app import services
from elastane_proto.relay_batches import metadata_from_proto, metadata_to_proto
from elastane_proto.v1 import errors_pb2, ring_pb2, ring_pb2_grpc

JOB = "mine"
#: A job that is not there, but that the right tokens are for: a call that is let in ends with NOT_FOUND.
ABSENT = "mine-absent"

_LOOK, _DATA = {"reader", "operator"}, {"worker", "operator"}
_ALL = {"worker", "reader", "operator"}
_SUBMIT, _FOLLOW = {"submitter", "operator"}, {"submitter", "reader", "operator"}
#: Written down apart from the product's table, from what docs/security.md promises.
ALLOWED: dict[str, set[str]] = {
    "JobService.Create": {"operator"},
    "JobService.Get": _ALL | {"runner"},
    "JobService.List": _LOOK,
    "JobService.Watch": _ALL,
    "JobService.Scale": {"operator"},
    "JobService.Suspend": {"operator"},
    "JobService.Resume": {"operator"},
    "JobService.Cancel": {"operator"},
    "JobService.Delete": {"operator"},
    "JobService.SetPrices": {"operator"},
    "JobService.DrainWorker": {"operator"},
    "JobService.Checkpoint": {"operator"},
    "JobService.Repair": {"operator"},
    "SlotService.AttendSlots": {"worker"},
    "SlotService.RegisterModel": {"worker"},
    "SlotService.WatchMap": {"worker"},
    "SlotService.GetSlots": {"worker", "reader", "operator"},
    "SlotService.CheckpointSlots": {"operator"},
    "SlotService.RewindSlots": {"operator"},
    "SlotService.DrainPs": {"operator"},
    "ShardService.CreateDataset": _DATA,
    "ShardService.LeaseTasks": {"worker"},
    "ShardService.GetProgress": {"worker", "reader", "operator"},
    "ShardService.WatchProgress": _LOOK,
    "ShardService.StreamTasks": {"worker"},
    "ShardService.ListTasks": {"worker", "reader", "operator"},
    "ShardService.GetAuditLog": _LOOK,
    "ShardService.ExtendDataset": _DATA,
    "RingService.Attend": {"worker"},
    # With a session of its own inside; who may carry those of others is tested apart.
    "RingService.Relay": {"worker"},
    "RingService.GetRing": _LOOK,
    "RingService.GetWorkerFigures": _ALL,
    "RingService.GetWorkerResources": _LOOK,
    "RingService.WatchEvents": _ALL,
    "ContextService.Get": {"worker", "reader", "operator"},
    "ContextService.List": _LOOK,
    "MetricService.GetSeries": _LOOK | {"runner"},
    "MetricService.WatchSeries": _LOOK,
    "MetricService.WatchSteps": {"worker", "reader", "operator"},
    "LogService.Report": _DATA,
    "LogService.Read": _LOOK,
    "CaptureService.Capture": {"operator"},
    "CaptureService.Deliver": {"worker"},
    "TrainingService.Train": _SUBMIT,
    "TrainingService.TrainMany": _SUBMIT,
    "TrainingService.TrainEach": _SUBMIT,
    "TrainingService.Get": _FOLLOW | {"runner"},  # for the record of a run that is over
    "TrainingService.List": _FOLLOW,
    "TrainingService.Watch": _FOLLOW,
    "TrainingService.Cancel": _SUBMIT,
    "TrainingService.Retry": _SUBMIT,
    "TrainingService.SetPriority": _SUBMIT,
    "TrainingService.Delete": _SUBMIT,
    "TrainingService.StreamLogs": _FOLLOW,
    "TrainingService.ListArtifacts": _FOLLOW,
    "TrainingService.GetService": _FOLLOW,
    "TrainingService.GetScheduling": _FOLLOW,
    "training.TrainingService.Train": _SUBMIT,
    "training.TrainingService.GetTrainingStatus": _FOLLOW,
    "RunnerService.Attend": {"runner"},
}
ROLES = ("worker", "operator", "reader", "submitter", "runner")


def methods() -> list[MethodDescriptor]:
    """Every rpc of every service a master serves, from the descriptors."""
    return [method for service in services() for method in service.methods]


def short_name(method: MethodDescriptor) -> str:
    return f"{method.containing_service.full_name}.{method.name}".removeprefix("elastane.v1.")


def is_of_runs(method: MethodDescriptor) -> bool:
    """True for an rpc of the training service, which belongs to no job."""
    return method.containing_service.name in ("TrainingService", "RunnerService")


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def request_for(method: MethodDescriptor, job: str) -> Any:
    """Return a request of that rpc for `job`, so complete that only the right to call it is in question."""
    request = GetMessageClass(method.input_type)()
    if is_of_runs(method):
        if "run_id" in request.DESCRIPTOR.fields_by_name:
            request.run_id = 77
        return request
    if method.name == "Relay":
        return request  # its sessions name their jobs
    if method.name == "AttendSlots":
        request.hello.job, request.hello.ps_id, request.hello.address = job, "intruder", "a:1"
        return request
    if method.name == "Attend":
        request.hello.job, request.hello.worker_id, request.hello.role = job, "intruder", 2
        return request
    if method.name == "StreamTasks":
        lease = request.request
        lease.job, lease.dataset, lease.worker_id, lease.max_tasks = job, "d", "intruder", 1
        lease.wait.SetInParent()
        return request
    fields = request.DESCRIPTOR.fields_by_name
    if method.containing_service.name == "JobService":
        if "name" in fields:
            request.name = job
        if method.name == "Scale":
            request.workers_min, request.workers_max = 1, 1
        if method.name == "DrainWorker":
            request.worker_id = "w0"
        return request
    request.job = job
    for field in ("worker_id", "ps_id", "checkpoint"):
        if field in fields:
            setattr(request, field, "intruder")
    if "dataset" in fields and method.name != "GetAuditLog":
        request.dataset = "intruded" if method.name == "CreateDataset" else "d"
    if method.name == "CreateDataset":
        request.settings.task_size, request.settings.range.size = 1, 1
    if method.name == "LeaseTasks":
        request.worker_id, request.max_tasks = "intruder", 1
        request.wait.SetInParent()
    return request


def call(
    channel: grpc.Channel, method: MethodDescriptor, job: str, token: str | None = None, **fields: Any
) -> Any:
    """Call it and return its (first) answer. Raises grpc.RpcError."""
    if method.name == "Relay":
        return carry(channel, job, token, token)
    request = request_for(method, job)
    for name, value in fields.items():
        if isinstance(value, Message):
            getattr(request, name).CopyFrom(value)
        else:
            setattr(request, name, value)
    metadata = bearer(token)
    serialize = type(request).SerializeToString
    parse = GetMessageClass(method.output_type).FromString
    form = f"{'stream' if method.client_streaming else 'unary'}_"
    form += "stream" if method.server_streaming else "unary"
    stub = getattr(channel, form)(path_of(method), serialize, parse)
    sent = iter([request]) if method.client_streaming else request
    reply = stub(sent, metadata=metadata, timeout=60)
    if not method.server_streaming:
        return reply
    try:
        return next(reply)
    except StopIteration:
        return None
    finally:
        reply.cancel()


def bearer(token: str | None) -> list[tuple[str, str]]:
    """Metadata with the token."""
    return [("authorization", f"Bearer {token}")] if token is not None else []


def carry(channel: grpc.Channel, job: str, relay: str | None, session: str | None) -> ring_pb2.RelayResponse:
    """Call Relay with the token `relay`, and within it Attend with the token `session`; return the answer.

    Raises grpc.RpcError, SessionError if it is the session that is refused.
    """
    hello = ring_pb2.Hello(job=job, worker_id="intruder", role=ring_pb2.WORKER_ROLE_TASKS)
    frames = [
        ring_pb2.RelayFrame(
            session=1, open=ring_pb2.RelayedCall(metadata=metadata_to_proto(bearer(session)))
        ),
        ring_pb2.RelayFrame(session=1, request=ring_pb2.AttendRequest(hello=hello).SerializeToString()),
    ]
    stub: Any = ring_pb2_grpc.RingServiceStub(channel)
    reply = stub.Relay(iter([ring_pb2.RelayRequest(frames=frames)]), metadata=bearer(relay), timeout=60)
    try:
        response: ring_pb2.RelayResponse = next(reply)
    finally:
        reply.cancel()
    if response.answers[0].HasField("status"):
        raise SessionError(response.answers[0].status)
    return response


class SessionError(grpc.RpcError):
    """The status of a session that a relay carries, as of a call."""

    def __init__(self, status: ring_pb2.RelayedStatus) -> None:
        super().__init__(status.message)
        self._status = status

    def code(self) -> grpc.StatusCode:
        return next(code for code in grpc.StatusCode if code.value[0] == self._status.code)

    def details(self) -> str:
        return self._status.message

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return tuple(metadata_from_proto(self._status.trailing_metadata))


def refusal(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    """The code, and the reason of the typed detail."""
    status = rpc_status.from_call(error)
    assert status is not None, f"no typed detail: {error}"
    detail = errors_pb2.ErrorDetail()
    assert status.details[0].Unpack(detail)
    assert detail.hint
    return error.code(), errors_pb2.ErrorReason.Name(detail.reason).removeprefix("ERROR_REASON_")


# ---------------------------------------------------------------- certificates


class Certificates:
    """A CA with a server's and a caller's certificate, as files."""

    def __init__(self, folder: Path, name: str = "127.0.0.1") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = trustme.CA()
        self.ca, self.cert, self.key, self.client_cert, self.client_key = (
            folder / file for file in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
        )
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.issue(self.cert, self.key, name)
        self.issue(self.client_cert, self.client_key, "caller")

    def issue(self, cert: Path, key: Path, name: str) -> None:
        issued = self.authority.issue_cert(name)
        cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))

    def channel_credentials(self, *, with_certificate: bool = True) -> grpc.ChannelCredentials:
        own = (self.client_key.read_bytes(), self.client_cert.read_bytes()) if with_certificate else ()
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), *own)

    def master_options(self, *, mutual: bool = True) -> dict[str, Path]:
        """As fields of SecuritySettings."""
        options = {"tls_cert": self.cert, "tls_key": self.key}
        return {**options, "tls_client_ca": self.ca} if mutual else options

    def caller_environment(self) -> dict[str, str]:
        return {
            "ELASTANE_TLS_CA": str(self.ca),
            "ELASTANE_TLS_CERT": str(self.client_cert),
            "ELASTANE_TLS_KEY": str(self.client_key),
        }


# ---------------------------------------------------------------- tokens


def token_of(name: str) -> str:
    return f"token-of-{name}-0123456789abcdef"


def entry(name: str, roles: list[str], jobs: list[str], **quotas: float) -> str:
    """An entry of the table for `token_of(name)`."""
    lines = [
        "[[token]]",
        f'name = "{name}"',
        f'sha256 = "{hashlib.sha256(token_of(name).encode()).hexdigest()}"',
        f"roles = {roles}",
        f"jobs = {jobs}",
        *(f"{quota} = {value}" for quota, value in quotas.items()),
    ]
    return "\n".join(lines) + "\n\n"


def standard_tokens() -> Iterator[str]:
    """One token of each role for the jobs "mine*", one of all roles for another job, one for all."""
    for role in ROLES:
        yield entry(role, [role], ["mine*"])
    yield entry("stranger", list(ROLES), ["yours"])
    yield entry("root", list(ROLES), ["*"])
