"""Contents of a report, computed from the job, its events and its committed steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastane_cli.report.steps import StepFold
from elastane_cli.views.plain import to_plain
from elastane_proto.history import events as history
from elastane_proto.history import fold as folding
from elastane_proto.history.fold import DatedEvent, RingFold
from elastane_proto.history_wire import dated_event_of

if TYPE_CHECKING:
    from elastane_common.logged import LoggedStep
    from elastane_proto.v1 import job_pb2, metric_pb2, ring_pb2

#: Events that may have delayed the training.
_INCIDENTS = (
    history.RingAnnounced,
    history.MasterRecovered,
    history.HistoryRewound,
    history.JobSuspended,
    history.StepsUnsaved,
    history.JobFailed,
    history.StoreBehind,
    history.HistoryForgotten,
)


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring, from the decision to form it until that for the next one.

    began, ended: seconds since the Unix epoch. members: EST range [start, end) of each worker.
    """

    generation: int
    began: float
    ended: float
    reason: str
    members: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Incident:
    """An event that may have delayed the training. planned: True if it was requested.

    cost_seconds: time between the commits before and after it, minus the duration of a median step; None if
    nothing was committed before, or after. shared: True if an earlier incident accounts for the same time.
    """

    time: float
    kind: str
    step: int
    generation: int
    reason: str
    planned: bool
    cost_seconds: float | None
    shared: bool


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved checkpoint. sha256: of its shards' names and hashes; empty if the master did not record it."""

    time: float
    name: str
    step: int
    size: int
    sha256: str


@dataclass(slots=True)
class Facts:
    """All contents of a report. Times are seconds since the Unix epoch.

    cost: fields of the job's cost message; empty without prices. settings: of the job, except unset ones.
    """

    name: str
    phase: str
    reason: str
    created: float
    ended: float | None
    steps: StepFold
    step_total: int
    epochs: int
    settings: dict[str, Any]
    environment: dict[str, str]
    cost: dict[str, Any]
    rings: list[Ring] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    checkpoints: list[Saved] = field(default_factory=list)
    series: list[metric_pb2.Series] = field(default_factory=list)
    events: int = 0
    #: True if the events go back to the job's beginning.
    complete: bool = True

    @property
    def workers(self) -> list[str]:
        """All workers that were ever in a ring, in the order in which they joined."""
        return list(dict.fromkeys(name for ring in self.rings for name in ring.members))

    @property
    def lost_seconds(self) -> float:
        """Total cost of all incidents."""
        return sum(one.cost_seconds or 0.0 for one in self.incidents if not one.shared)

    @property
    def train_seconds(self) -> float:
        """Time from the first commit to the last."""
        steps = self.steps
        return steps.last - steps.first if steps.first is not None and steps.last is not None else 0.0


def gather(
    job: job_pb2.Job,
    events: Sequence[ring_pb2.Event],
    steps: Iterable[LoggedStep],
    series: Sequence[metric_pb2.Series],
    now: float,
) -> Facts:
    """Compute the contents. steps: in the order of commits, iterated once. now: time of the report."""
    dated = [dated_event_of(event) for event in events]
    incidents = [one for one in dated if isinstance(one.event, _INCIDENTS)]
    fold = StepFold([one.time for one in incidents])
    for step in steps:
        fold.take(step)
    phase = to_plain(job)["phase"]
    over = [one.time for one in dated if isinstance(one.event, folding.OVER)]
    ended = over[-1] if over and phase in ("succeeded", "failed", "cancelled") else None
    cost = getattr(job, "cost", None)
    settings = to_plain(job.settings)
    return Facts(
        name=job.name,
        phase=phase,
        reason=job.reason,
        created=job.created.seconds + job.created.nanos / 1e9,
        ended=ended,
        steps=fold,
        step_total=job.steps_per_epoch * job.epochs,
        epochs=job.epochs,
        settings={name: value for name, value in settings.items() if value not in (None, "")},
        environment=dict(sorted(job.environment.items())),
        cost=to_plain(cost) if cost is not None and job.HasField("cost") else {},
        rings=_rings(dated, ended if ended is not None else now),
        incidents=_incidents(incidents, fold),
        checkpoints=[
            Saved(one.time, one.event.checkpoint, one.event.at_step, one.event.bytes, one.event.sha256)
            for one in dated
            if isinstance(one.event, history.CheckpointSaved)
        ],
        series=list(series),
        events=len(dated),
        complete=not dated or dated[0].sequence <= 1,
    )


def _rings(dated: Sequence[DatedEvent], until: float) -> list[Ring]:
    """Return all rings that had members; the last one ends at `until`."""
    fold = RingFold()
    ended = [ring for one in dated if (ring := fold.take(one)) is not None]
    if (last := fold.end(until)) is not None:
        ended.append(last)
    return [
        Ring(ring.generation, ring.decided, ring.ended or until, ring.reason, ring.members) for ring in ended
    ]


def _incidents(dated: Sequence[DatedEvent], fold: StepFold) -> list[Incident]:
    incidents = []
    waits: set[tuple[float, float]] = set()
    median = fold.step_seconds or 0.0
    for one in dated:
        pause = fold.pause_at(one.time)
        seconds, shared = pause.seconds, False
        began = fold.first is not None and fold.first < pause.at
        if not began and one.members is not None:
            continue  # the first ring: no training was delayed
        if pause.before is not None and pause.after is not None:
            shared = (pause.before, pause.after) in waits
            waits.add((pause.before, pause.after))
        incidents.append(
            Incident(
                one.time,
                one.kind,
                one.step,
                one.generation,
                one.reason,
                _is_planned(one.event),
                max(0.0, seconds - median) if seconds is not None else None,
                shared,
            )
        )
    return incidents


def _is_planned(event: history.HistoryEvent) -> bool:
    if isinstance(event, history.RingAnnounced):
        return event.planned
    return isinstance(event, (history.JobSuspended, history.StepsUnsaved))
