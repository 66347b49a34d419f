"""A training service in memory behind real gRPC: tests script its states, and logs are bytes that grow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from google.rpc import code_pb2, status_pb2

from elastane_common.training_client import FINAL_STATES
from elastane_proto.v1 import errors_pb2, job_pb2_grpc, ring_pb2_grpc, training_pb2, training_pb2_grpc
from spoken_version import TellsVersion
from unit.cli.fake_master import FakeMaster, refuse

PIECE_BYTES = 64 * 1024

State = training_pb2.RunState


class FakeTraining(training_pb2_grpc.TrainingServiceServicer):
    """Runs by number, logs by (run, attempt, rank), and a record of every request.

    script: called in a thread of its own with this service and each new run; it changes its state.
    """

    def __init__(self, artifact_url: str = "") -> None:
        self.master = FakeMaster()
        self.address = ""
        self.runs: dict[int, training_pb2.Run] = {}
        self.logs: dict[tuple[int, int, int], bytearray] = {}
        self.logs_over: set[tuple[int, int, int]] = set()
        self.dropped: dict[tuple[int, int, int], int] = {}
        self.keys: dict[str, int] = {}
        self.requests: list[Any] = []
        self.service = training_pb2.TrainingServiceGetServiceResponse(artifact_url=artifact_url)
        self.scheduling = training_pb2.TrainingServiceGetSchedulingResponse(policy="fair-share")
        self.artifacts: list[training_pb2.Artifact] = []
        self.streams_broken = 0
        #: Of the log streams: pieces that gRPC has taken.
        self.pieces_sent = 0
        #: Called with the context of the next call.
        self.fail_next: list[Any] = []
        self.script: Any = None
        self._changed = threading.Condition()

    # ------------------------------------------------------------------ for tests

    def add(self, run_id: int | None = None, **fields: Any) -> training_pb2.Run:
        number = run_id or max(self.runs, default=0) + 1
        spec = training_pb2.RunSpec(algorithm="train", output_model_name="digits", owner="ann", instances=1)
        fields.setdefault("state", State.RUN_STATE_QUEUED)
        run = training_pb2.Run(**{"run_id": number, "spec": spec, "revision": 1, **fields})
        if not run.HasField("created"):
            run.created.GetCurrentTime()
        self.runs[number] = run
        return run

    def change(self, run_id: int, state: str = "", **fields: Any) -> None:
        """Set the state, by its short name, and fields of a run; whoever watches it is sent it."""
        with self._changed:
            run = self.runs[run_id]
            if state:
                fields["state"] = State.Value(f"RUN_STATE_{state.upper()}")
            for name, value in fields.items():
                setattr(run, name, value)
            run.revision += 1
            self._changed.notify_all()

    def write(self, run_id: int, data: bytes, *, attempt: int = 1, rank: int = 0, over: bool = False) -> None:
        with self._changed:
            key = (run_id, attempt, rank)
            self.logs.setdefault(key, bytearray()).extend(data)
            if over:
                self.logs_over.add(key)
            self._changed.notify_all()

    def sent(self, kind: type) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]

    def wait_until(self, holds: Any) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, timeout=60)

    # ------------------------------------------------------------------ the service

    def _seen(self, request: Any, context: grpc.ServicerContext) -> None:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        if self.fail_next:
            self.fail_next.pop(0)(context)

    def _run(self, run_id: int, context: grpc.ServicerContext) -> training_pb2.Run:
        if run_id not in self.runs:
            refuse(
                context,
                errors_pb2.ERROR_REASON_NOT_FOUND,
                f"there is no run {run_id}",
                code=code_pb2.NOT_FOUND,
                hint="it may have been deleted",
                run_id=str(run_id),
            )
        return self.runs[run_id]

    def TrainMany(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        runs = [self.add() for _ in request.specs]
        for run, spec in zip(runs, request.specs, strict=True):
            run.spec.CopyFrom(spec)
        return training_pb2.TrainingServiceTrainManyResponse(runs=runs)

    def TrainEach(self, requests: Any, context: Any) -> Any:  # noqa: N802
        for message in requests:
            self._seen(message.request, context)
            outcome = training_pb2.TrainOutcome()
            if message.request.spec.parameters.get("LR") == "bad":
                detail = errors_pb2.ErrorDetail(
                    reason=errors_pb2.ERROR_REASON_INVALID_ARGUMENT, hint="another rate"
                )
                status = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="spec.parameters: LR")
                status.details.add().Pack(detail)
                outcome.refusal = status.SerializeToString()
            else:
                run = self.add()
                run.spec.CopyFrom(message.request.spec)
                outcome.response.run.CopyFrom(run)
            yield training_pb2.TrainingServiceTrainEachResponse(outcomes=[outcome])

    def Train(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        if request.client_key in self.keys:
            run = self.runs[self.keys[request.client_key]]
            names = [field.name for field in run.spec.DESCRIPTOR.fields]
            differing = [name for name in names if getattr(run.spec, name) != getattr(request.spec, name)]
            if differing:
                refuse(
                    context,
                    errors_pb2.ERROR_REASON_ALREADY_EXISTS,
                    f"run {run.run_id} was submitted under this client key with another "
                    + ", ".join(differing),
                    hint="use another key for another run",
                    fields=",".join(differing),
                )
            return training_pb2.TrainingServiceTrainResponse(run=run)
        run = self.add(spec=request.spec, reason="needs 1 slot, 0 free", position=1, queue_length=1)
        if request.client_key:
            self.keys[request.client_key] = run.run_id
        answer = training_pb2.TrainingServiceTrainResponse(created=True)
        answer.run.CopyFrom(run)
        if self.script is not None:
            threading.Thread(target=self.script, args=(self, run.run_id), daemon=True).start()
        return answer

    def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        return training_pb2.TrainingServiceGetResponse(run=self._run(request.run_id, context))

    def GetScheduling(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        answer = training_pb2.TrainingServiceGetSchedulingResponse(policy=self.scheduling.policy)
        mine = [one for one in self.scheduling.decisions if request.run_id in (0, one.run_id)]
        answer.decisions.extend(mine[-(request.limit or 100) :])
        return answer

    def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        found = [
            run
            for number, run in sorted(self.runs.items(), reverse=True)
            if (not request.states or run.state in request.states)
            and (not request.owner or run.spec.owner == request.owner)
            and (not request.page_token or number < int(request.page_token))
        ]
        page = found[: request.page_size]
        token = str(page[-1].run_id) if len(found) > len(page) else ""
        return training_pb2.TrainingServiceListResponse(runs=page, next_page_token=token)

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self._seen(request, context)
        context.add_callback(self._wake)
        revision = -1
        while context.is_active():
            with self._changed:
                run = training_pb2.Run()
                run.CopyFrom(self._run(request.run_id, context))
            if run.revision != revision:
                revision = run.revision
                yield training_pb2.TrainingServiceWatchResponse(run=run)
                if self.streams_broken:
                    self.streams_broken -= 1
                    context.abort(grpc.StatusCode.UNAVAILABLE, "going down")
                if run.state in FINAL_STATES:
                    return
            with self._changed:
                while self.runs[request.run_id].revision == revision and context.is_active():
                    self._changed.wait()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def Cancel(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        if self._run(request.run_id, context).state not in FINAL_STATES:
            self.change(request.run_id, "cancelled", reason="on request")
        return training_pb2.TrainingServiceCancelResponse(run=self.runs[request.run_id])

    def Retry(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        if self._run(request.run_id, context).state not in FINAL_STATES:
            refuse(context, errors_pb2.ERROR_REASON_WRONG_PHASE, f"run {request.run_id} is not over")
        self.change(request.run_id, "queued", reason="retried")
        return training_pb2.TrainingServiceRetryResponse(run=self.runs[request.run_id])

    def SetPriority(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        self._run(request.run_id, context)
        self.change(request.run_id, priority=request.priority)
        return training_pb2.TrainingServiceSetPriorityResponse(run=self.runs[request.run_id])

    def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        if self._run(request.run_id, context).state not in FINAL_STATES:
            refuse(context, errors_pb2.ERROR_REASON_WRONG_PHASE, f"run {request.run_id} is not over")
        del self.runs[request.run_id]
        return training_pb2.TrainingServiceDeleteResponse()

    def StreamLogs(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self._seen(request, context)
        context.add_callback(self._wake)
        self._run(request.run_id, context)
        key = (request.run_id, request.attempt, request.rank)
        log = self.logs.setdefault(key, bytearray())
        position = request.offset if request.offset >= 0 else max(len(log) + request.offset, 0)
        while context.is_active():
            while position < len(log):
                data = bytes(log[position : position + PIECE_BYTES])
                yield training_pb2.TrainingServiceStreamLogsResponse(
                    offset=position, data=data, dropped_bytes=self.dropped.pop(key, 0)
                )
                position += len(data)
                self.pieces_sent += 1
                if self.streams_broken:
                    self.streams_broken -= 1
                    context.abort(grpc.StatusCode.UNAVAILABLE, "going down")
            if not request.follow:
                return
            with self._changed:
                while position == len(log) and key not in self.logs_over and context.is_active():
                    self._changed.wait()
                if position == len(log):
                    return

    def ListArtifacts(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        self._run(request.run_id, context)
        return training_pb2.TrainingServiceListArtifactsResponse(artifacts=self.artifacts)

    def GetService(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._seen(request, context)
        return self.service


@contextmanager
def serving_training(training: FakeTraining) -> Iterator[str]:
    """The service, and a fake master's jobs, on a port of this machine; gives its address."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=32), interceptors=[TellsVersion()])
    training_pb2_grpc.add_TrainingServiceServicer_to_server(training, server)
    job_pb2_grpc.add_JobServiceServicer_to_server(training.master, server)
    ring_pb2_grpc.add_RingServiceServicer_to_server(training.master, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    training.address = f"127.0.0.1:{port}"
    try:
        yield training.address
    finally:
        server.stop(None).wait()
