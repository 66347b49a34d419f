"""Values logged by scripts, as a client reads them: curves in bounded memory, and committed steps one by
one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastane_proto.v1 import metric_pb2, metric_pb2_grpc

if TYPE_CHECKING:
    from elastane_common.client import MasterClient


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """A committed step. committed: seconds since the Unix epoch. values: means over the ESTs.

    samples: positions of the dataset that it consumed. A step not above the previous one in a stream
    supersedes that one and all above it.
    """

    step: int
    epoch: int = 0
    generation: int = 0
    committed: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    samples: int = 0


@dataclass(slots=True)
class StepStream:
    """The committed steps of a job in the order of commits.

    token: position after the last batch, to continue.
    """

    client: MasterClient
    job: str
    token: str = ""
    #: If set, only while this worker leads the ring; RequestRefusedError("stale") afterwards.
    worker_id: str = ""
    #: Time when the job was created, seconds since the Unix epoch; 0 until the first answer.
    created: float = 0.0

    def batches(self, *, follow: bool) -> Iterator[list[LoggedStep]]:
        """Yield steps in batches as they are committed; the first batch is empty.

        Without `follow` it ends after those committed so far. After a break it continues after the last
        batch. Raises the errors of the client's watches.
        """

        def request() -> metric_pb2.WatchStepsRequest:
            return metric_pb2.WatchStepsRequest(
                job=self.job, after=self.token, follow=follow, worker_id=self.worker_id
            )

        answers = self.client.subscribe(
            metric_pb2_grpc.MetricServiceStub, "WatchSteps", request, endless=follow
        )
        for answer in answers:
            self.created = answer.job_created.seconds + answer.job_created.nanos / 1e9
            # Stored before the batch is yielded: a break shows only when the next one is requested.
            self.token = answer.token
            yield [_step(values) for values in answer.steps]


def job_created(client: MasterClient, job: str) -> float:
    """Return the job's creation time, seconds since the Unix epoch; with the name it identifies a job."""
    stream = StepStream(client, job)
    batches = stream.batches(follow=False)
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # a generator: close() ends the call
    return stream.created


def get_series(
    client: MasterClient, job: str, names: Sequence[str] = (), *, points_max: int = 0
) -> metric_pb2.GetSeriesResponse:
    """Return the curves of a job's logged values: of these names, or all.

    points_max: limit for each curve; 0: 512.
    """
    request = metric_pb2.GetSeriesRequest(job=job, names=names, points_max=points_max)
    response: metric_pb2.GetSeriesResponse = client.call(
        metric_pb2_grpc.MetricServiceStub, "GetSeries", request
    )
    return response


def watch_series(
    client: MasterClient,
    job: str,
    names: Sequence[str] = (),
    *,
    points_max: int = 0,
    interval_seconds: float = 1.0,
) -> Iterator[metric_pb2.WatchSeriesResponse]:
    """Yield the curves now and whenever they have changed, until the client is closed."""
    request = metric_pb2.WatchSeriesRequest(job=job, names=names, points_max=points_max)
    request.interval.FromNanoseconds(int(interval_seconds * 1e9))
    return client.subscribe(metric_pb2_grpc.MetricServiceStub, "WatchSeries", lambda: request)


def _step(values: metric_pb2.StepValues) -> LoggedStep:
    return LoggedStep(
        values.step,
        values.epoch,
        values.generation,
        values.committed.seconds + values.committed.nanos / 1e9,
        dict(values.values),
        values.samples,
    )
