"""Blocking client of the training service, over a connection to the master: for commands and tests.

Calls are retried, and streams subscribed again at the next master, as all calls of `MasterClient`; writes
carry a request id, so that a repeated one takes effect once. Errors are those of `MasterClient`:
RequestRefusedError with the master's reason, facts and hint, and MasterUnreachableError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, Final, TypeAlias

from google.rpc import status_pb2

from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError, refusal_of
from elastane_common.connection import ATTEMPT_SECONDS, MasterConnection, new_request_id
from elastane_common.request_stream import RequestStream
from elastane_proto.v1 import training_pb2, training_pb2_grpc

#: Page size of a list; the most that a master gives.
RUNS_IN_A_PAGE: Final = 1000

#: Runs that `TrainMany` takes at most.
RUNS_AT_ONCE: Final = 100

#: Runs of one stream that wait for their outcome; a master takes up to 64.
RUNS_IN_FLIGHT: Final = 16

FINAL_STATES: Final = frozenset(
    {training_pb2.RUN_STATE_SUCCEEDED, training_pb2.RUN_STATE_FAILED, training_pb2.RUN_STATE_CANCELLED}
)


#: Outcome of a submission: the run, or the refusal.
Outcome: TypeAlias = training_pb2.TrainingServiceTrainResponse | RequestRefusedError


class RunStream(RequestStream[training_pb2.TrainingServiceTrainEachRequest, Outcome]):
    """Submissions over one stream, for callers that submit many: cheaper than one call each.

    `receive` returns the outcome of the oldest: the run, or the refusal. At most `RUNS_IN_FLIGHT` should
    wait. Used from one thread; `close` it.
    """

    def __init__(self, master: MasterConnection) -> None:
        super().__init__(
            master,
            training_pb2_grpc.TrainingServiceStub,
            "TrainEach",
            answers_of=lambda message: map(_result, message.outcomes),
            together=_together,
            one_by_one=self._train,
            silence_seconds=ATTEMPT_SECONDS,
        )

    def train(self, spec: training_pb2.RunSpec, *, client_key: str = "", request_id: str = "") -> None:
        """Submit a run; a later `receive` returns its outcome."""
        request = training_pb2.TrainingServiceTrainRequest(
            spec=spec, client_key=client_key, request_id=request_id or new_request_id()
        )
        self.put(training_pb2.TrainingServiceTrainEachRequest(request=request))

    def _train(self, message: training_pb2.TrainingServiceTrainEachRequest) -> Outcome:
        try:
            response: training_pb2.TrainingServiceTrainResponse = self._client.call(
                training_pb2_grpc.TrainingServiceStub, "Train", message.request
            )
        except RequestRefusedError as refusal:
            return refusal
        return response


def _together(
    messages: Sequence[training_pb2.TrainingServiceTrainEachRequest],
) -> training_pb2.TrainingServiceTrainEachRequest:
    joined = training_pb2.TrainingServiceTrainEachRequest()
    joined.CopyFrom(messages[0])
    joined.more.extend([message.request for message in messages[1:]])
    return joined


def _result(outcome: training_pb2.TrainOutcome) -> Outcome:
    if outcome.HasField("response"):
        return outcome.response
    return refusal_of(status_pb2.Status.FromString(outcome.refusal))


class TrainingClient:
    """The training service of a master. Thread-safe; closing the connection ends its calls and streams."""

    def __init__(self, master: MasterClient) -> None:
        self._master = master

    def train(
        self, spec: training_pb2.RunSpec, *, client_key: str = "", request_id: str | None = None
    ) -> tuple[training_pb2.Run, bool]:
        """Queue a run, or find the one of an equal spec with this client key; returns (run, created)."""
        response = self._call(
            "Train",
            training_pb2.TrainingServiceTrainRequest(
                spec=spec, client_key=client_key, request_id=request_id or new_request_id()
            ),
        )
        return response.run, response.created

    def train_many(self, specs: Iterable[training_pb2.RunSpec]) -> Iterator[training_pb2.Run]:
        """Queue many runs, `RUNS_AT_ONCE` in a call; yields them in order, without ranks and history.

        A refused one raises RequestRefusedError: none of its call is queued, all of the calls before are.
        """
        waiting = iter(specs)
        while some := list(islice(waiting, RUNS_AT_ONCE)):
            request = training_pb2.TrainingServiceTrainManyRequest(specs=some, request_id=new_request_id())
            yield from self._call("TrainMany", request).runs

    def stream(self) -> RunStream:
        """Open a stream of submissions; close it."""
        return RunStream(self._master)

    def train_each(self, specs: Iterable[training_pb2.RunSpec]) -> Iterator[Outcome]:
        """Queue runs one by one over one stream; yields their outcomes in order.

        A refused run does not stop those after it. Up to `RUNS_IN_FLIGHT` specs are read ahead of the
        outcomes.
        """
        with closing(self.stream()) as stream:
            for spec in specs:
                if len(stream.waiting) >= RUNS_IN_FLIGHT:
                    yield stream.receive()
                stream.train(spec)
            while stream.waiting:
                yield stream.receive()

    def get(self, run_id: int) -> training_pb2.Run:
        """Return one run with its ranks and history."""
        return self._call("Get", training_pb2.TrainingServiceGetRequest(run_id=run_id)).run

    def iter_runs(
        self,
        *,
        states: Iterable[int] = (),
        owner: str = "",
        labels: Mapping[str, str] | None = None,
        page_size: int = RUNS_IN_A_PAGE,
    ) -> Iterator[training_pb2.Run]:
        """Iterate over the runs, the newest first, without ranks and history; fetches a page at a time.

        states, owner, labels: only such runs; empty: all.
        """
        page_token = ""
        while True:
            request = training_pb2.TrainingServiceListRequest(
                page_size=page_size,
                page_token=page_token,
                states=states,  # type: ignore[arg-type]  # numbers of RunState
                owner=owner,
                labels=labels,
            )
            response = self._call("List", request)
            yield from response.runs
            page_token = response.next_page_token
            if not page_token:
                return

    def watch(self, run_id: int) -> Iterator[training_pb2.Run]:
        """Yield the run now and at each change; ends after a final state, or when the client is closed."""
        request = training_pb2.TrainingServiceWatchRequest(run_id=run_id)
        revision = -1
        for response in self._master.subscribe(
            training_pb2_grpc.TrainingServiceStub, "Watch", lambda: request
        ):
            if response.run.revision == revision:
                continue  # sent again by a new subscription
            revision = response.run.revision
            yield response.run
            if response.run.state in FINAL_STATES:
                return

    def cancel(self, run_id: int, request_id: str | None = None) -> training_pb2.Run:
        """Request the end of a run; one that is over is returned as it is."""
        request = training_pb2.TrainingServiceCancelRequest(
            run_id=run_id, request_id=request_id or new_request_id()
        )
        return self._call("Cancel", request).run

    def retry(self, run_id: int, request_id: str | None = None) -> training_pb2.Run:
        """Queue a failed or cancelled run again."""
        request = training_pb2.TrainingServiceRetryRequest(
            run_id=run_id, request_id=request_id or new_request_id()
        )
        return self._call("Retry", request).run

    def set_priority(self, run_id: int, priority: int, request_id: str | None = None) -> training_pb2.Run:
        """Change a run's priority in the queue, from -1000 to 1000."""
        request = training_pb2.TrainingServiceSetPriorityRequest(
            run_id=run_id, priority=priority, request_id=request_id or new_request_id()
        )
        return self._call("SetPriority", request).run

    def delete(self, run_id: int, *, keep_artifacts: bool = False, request_id: str | None = None) -> None:
        """Delete a run that is over: its record, its logs and, unless kept, its artifacts."""
        request = training_pb2.TrainingServiceDeleteRequest(
            run_id=run_id, keep_artifacts=keep_artifacts, request_id=request_id or new_request_id()
        )
        self._call("Delete", request)

    def stream_logs(
        self, run_id: int, *, rank: int = 0, attempt: int = 0, offset: int = 0, follow: bool = False
    ) -> Iterator[training_pb2.TrainingServiceStreamLogsResponse]:
        """Yield the output of a rank in pieces; after a lost connection, continue behind the last one.

        attempt: from 1; 0: the newest at the time of the call. offset: first byte; negative: that many bytes
        before the end. follow: until the attempt is over.
        """
        wanted = offset
        # The newest attempt may be another one after a break, and the offset is of this one.
        attempt = attempt or self.get(run_id).attempt

        def request() -> training_pb2.TrainingServiceStreamLogsRequest:
            return training_pb2.TrainingServiceStreamLogsRequest(
                run_id=run_id, rank=rank, attempt=attempt, offset=wanted, follow=follow
            )

        for piece in self._master.subscribe(
            training_pb2_grpc.TrainingServiceStub, "StreamLogs", request, endless=False
        ):
            wanted = piece.offset + len(piece.data)
            yield piece

    def list_artifacts(self, run_id: int) -> list[training_pb2.Artifact]:
        """Return the files of a run's artifacts."""
        request = training_pb2.TrainingServiceListArtifactsRequest(run_id=run_id)
        return list(self._call("ListArtifacts", request).artifacts)

    def get_service(self) -> training_pb2.TrainingServiceGetServiceResponse:
        """Return the artifact URL, the limits and the runners of the service."""
        return self._call("GetService", training_pb2.TrainingServiceGetServiceRequest())

    def get_scheduling(
        self, run_id: int = 0, limit: int = 0
    ) -> training_pb2.TrainingServiceGetSchedulingResponse:
        """Return the scheduling policy's decisions about a run (0: about all), newest last."""
        request = training_pb2.TrainingServiceGetSchedulingRequest(run_id=run_id, limit=limit)
        return self._call("GetScheduling", request)

    def _call(self, method: str, request: Any) -> Any:
        return self._master.call(training_pb2_grpc.TrainingServiceStub, method, request)
