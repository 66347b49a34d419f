"""What a report says, out of the job, its events and its committed steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastane.cli.plain import to_plain
from elastane.explain import event_seconds, members_of
from elastane.report.steps import StepFold

if TYPE_CHECKING:
    from elastane.logged import LoggedStep
    from elastane_proto.v1 import job_pb2, metric_pb2, ring_pb2

#: Beside changes of the ring, what may have made the training wait.
_INCIDENTS = (
    "master_recovered",
    "history_rewound",
    "job_suspended",
    "job_failed",
    "store_behind",
    "history_forgotten",
)
_ENDS = ("job_succeeded", "job_failed", "job_cancelled")


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring: from its decision until the next one's, seconds since the Unix epoch. members: [start, end)."""

    generation: int
    began: float
    ended: float
    reason: str
    members: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that may have made the training wait. planned: it was asked for.

    cost_seconds: from the last commit before it to the next, less a median step; None: nothing was committed
    afterwards, or before. shared: the same wait as of the incident before, in which it is counted.
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
    """A checkpoint. sha256: over its shards' names and hashes; empty where the master did not tell."""

    time: float
    name: str
    step: int
    size: int
    sha256: str


@dataclass(slots=True)
class Facts:
    """All of it. Times are seconds since the Unix epoch. cost: the message's fields, empty without prices."""

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
    #: The events go back to the job's beginning.
    complete: bool = True

    @property
    def workers(self) -> list[str]:
        """All that were ever in a ring, in the order in which they came."""
        return list(dict.fromkeys(name for ring in self.rings for name in ring.members))

    @property
    def lost_seconds(self) -> float:
        """What the incidents cost together."""
        return sum(one.cost_seconds or 0.0 for one in self.incidents if not one.shared)

    @property
    def train_seconds(self) -> float:
        """From the first commit to the last."""
        steps = self.steps
        return steps.last - steps.first if steps.first is not None and steps.last is not None else 0.0


def gather(
    job: job_pb2.Job,
    events: Sequence[ring_pb2.Event],
    steps: Iterable[LoggedStep],
    series: Sequence[metric_pb2.Series],
    now: float,
) -> Facts:
    """The facts. steps: in the order of commits; read once. now: the time the report is made."""
    told = [event for event in events if event.kind in _INCIDENTS or members_of(event) is not None]
    fold = StepFold([event_seconds(event) for event in told])
    for step in steps:
        fold.take(step)
    phase = to_plain(job)["phase"]
    over = [event_seconds(event) for event in events if event.kind in _ENDS]
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
        rings=_rings(events, ended if ended is not None else now),
        incidents=_incidents(told, fold),
        checkpoints=[_saved(event) for event in events if event.kind == "checkpoint_saved"],
        series=list(series),
        events=len(events),
        complete=not events or events[0].sequence <= 1,
    )


def _rings(events: Sequence[ring_pb2.Event], until: float) -> list[Ring]:
    """Rings that had members, each with the time it was decided and the time the next one was."""
    rings: list[Ring] = []
    current: tuple[ring_pb2.Event, dict[str, tuple[int, int]]] | None = None

    def close(at: float) -> None:
        if current is not None and current[1]:
            event, members = current
            rings.append(Ring(event.generation, event_seconds(event), at, event.reason, members))

    for event in events:
        members = members_of(event)
        if members is not None:
            close(event_seconds(event))
            current = event, members
        elif event.kind in (*_ENDS, "job_suspended") and current is not None:
            close(event_seconds(event))
            current = None
    close(until)
    return rings


def _incidents(told: Sequence[ring_pb2.Event], fold: StepFold) -> list[Incident]:
    incidents = []
    waits: set[tuple[float, float]] = set()
    median = fold.step_seconds or 0.0
    for event in told:
        pause = fold.pause_at(event_seconds(event))
        seconds, shared = pause.seconds, False
        began = fold.first is not None and fold.first < pause.at
        if not began and event.kind == "ring_change":
            continue  # the first ring: nothing had been trained that could wait
        if pause.before is not None and pause.after is not None:
            shared = (pause.before, pause.after) in waits
            waits.add((pause.before, pause.after))
        incidents.append(
            Incident(
                event_seconds(event),
                event.kind,
                event.step,
                event.generation,
                event.reason,
                event.facts.get("planned") == "True" or event.kind == "job_suspended",
                max(0.0, seconds - median) if seconds is not None else None,
                shared,
            )
        )
    return incidents


def _saved(event: ring_pb2.Event) -> Saved:
    facts = event.facts
    return Saved(
        event_seconds(event),
        facts.get("checkpoint", ""),
        int(facts.get("at_step", event.step)),
        int(facts.get("bytes", 0)),
        facts.get("sha256", ""),
    )
