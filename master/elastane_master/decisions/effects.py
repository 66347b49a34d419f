"""Effects of decisions, carried out at the edge: messages to workers, history, notes for people."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from elastane_master.decisions.events import Change, Parts, StepTask
from elastane_master.decisions.stages import StageMemory
from elastane_proto.history.describe import describe, facts_text
from elastane_proto.history.events import AnyHistoryEvent, UnknownEvent, clipped
from elastane_proto.history.fold import DatedEvent


class Effect(msgspec.Struct, frozen=True, tag=True):
    """Base of all effects. Carried out in order, once the event is durable."""


class Member(msgspec.Struct, frozen=True):
    """One place of the ring: hosts virtual ranks [start, end)."""

    worker: str
    start: int
    end: int
    store_address: str


# ------------------------------------------------------------------ messages to a worker


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of what is sent down a worker's stream."""


class Welcome(Message, frozen=True, tag=True):
    """prepared_until: a worker of a pipeline that is not resumed first applies a reported step before it."""

    generation: int
    resumed: bool
    reports_from: int | None = None
    prepared_until: int | None = None


class Prepare(Message, frozen=True, tag=True):
    """prepared_until: members of a pipeline apply reported steps before this one first. rendezvous_key: as in
    Go, if the members may form their group before it. followed: to a newcomer that is level.
    """

    generation: int
    members: tuple[Member, ...]
    reason: str
    prepared_until: int | None = None
    rendezvous_key: bytes = b""
    followed: bool = False


class Doubt(msgspec.Struct, frozen=True):
    """Possibly corrupted checkpoints: of steps after step_max, of generations up to generation_max."""

    step_max: int
    generation_max: int


class CheckOrder(msgspec.Struct, frozen=True):
    """Asks for the digest of this EST's gradients in this step; parts: its context, if not hosted here."""

    step: int
    rank: int
    parts: Parts | None


class Follow(Message, frozen=True, tag=True):
    """To a newcomer and its source.

    ests: those that it will host. rendezvous_key: of its store, where the two meet.
    """

    generation: int
    step: int
    newcomer: str
    source: str
    store_address: str
    history_generation: int
    ready_order: tuple[int, ...]
    ests: int
    rendezvous_key: bytes = b""


class Load(Message, frozen=True, tag=True):
    generation: int
    checkpoint_url: str
    step_max: int | None = None
    doubts: tuple[Doubt, ...] = ()


class IntervalDecided(Message, frozen=True, tag=True):
    """contexts: complete ones, of the addressee's ESTs. refusal: the reason if the job ends."""

    generation: int
    step: int
    changes: dict[str, Change]
    contexts: tuple[tuple[int, Parts], ...] = ()
    refusal: str = ""


class PipelineStage(msgspec.Struct, frozen=True):
    """Units [first_unit, end_unit) and their members, by place in the ring: see pipeline.proto."""

    first_unit: int
    end_unit: int
    replicas: tuple[int, ...]
    shadows: tuple[int, ...] = ()
    memory: StageMemory = "plain"


class UnitSource(msgspec.Struct, frozen=True):
    """Source of units [first_unit, end_unit) at the resumed step: members, checkpoint, or initial state."""

    first_unit: int
    end_unit: int
    donors: tuple[int, ...] = ()
    checkpoint: str = ""


class PipelinePlan(msgspec.Struct, frozen=True):
    """Assignment of units to members in one generation of the ring.

    step_seconds: predicted; 0.0: not known. checkpoint_url: folder of the sources' checkpoints.
    """

    stages: tuple[PipelineStage, ...]
    sources: tuple[UnitSource, ...] = ()
    step_seconds: float = 0.0
    reason: str = ""
    checkpoint_url: str = ""


class Go(Message, frozen=True, tag=True):
    generation: int
    resume_step: int
    members: tuple[Member, ...]
    donors: tuple[int, ...]
    receivers: tuple[int, ...]
    contexts: tuple[tuple[int, Parts], ...]  # of the ESTs the addressee hosts
    ready_order: tuple[int, ...]
    interval: IntervalDecided | None = None
    history_generation: int = 0
    check: CheckOrder | None = None
    rendezvous_key: bytes = b""  # of the first member's store
    pipeline: PipelinePlan | None = None


class ManifestEntry(msgspec.Struct, frozen=True):
    shard: int
    file: str
    sha256: str
    bytes: int


class Checkpoint(Message, frozen=True, tag=True):
    checkpoint: str
    url: str
    step: int
    shard: int
    shards: int
    keep: int
    manifest: tuple[ManifestEntry, ...] = ()


class Prepared(Message, frozen=True, tag=True):
    generation: int
    step: int
    ready_order: tuple[int, ...] = ()
    then_prepare: Prepare | None = None
    then_checkpoint: Checkpoint | None = None
    check: CheckOrder | None = None  # of the next step
    follow: Follow | None = None
    next_waits: bool = False  # the next Prepared may bring what the step after it must begin with


class Drain(Message, frozen=True, tag=True):
    reason: str


class Done(Message, frozen=True, tag=True):
    phase: str
    reason: str


class Explain(Message, frozen=True, tag=True):
    generation: int
    step: int


class CaptureOrder(Message, frozen=True, tag=True):
    """A command's request for a trace or stacks; sent by the edge, since it decides nothing."""

    capture: str
    first_step: int = 0
    trace_steps: int = 0
    end: bool = False


class AllEnd(Message, frozen=True, tag=True):
    generation: int
    step: int


WorkerMessage = (
    Welcome
    | Prepare
    | Load
    | Go
    | Prepared
    | Follow
    | IntervalDecided
    | Checkpoint
    | Drain
    | Done
    | Explain
    | AllEnd
    | CaptureOrder
)


# ------------------------------------------------------------------ effects


class Send(Effect, frozen=True, tag=True):
    """Send `message` down the stream of `worker`; dropped if that stream is gone."""

    worker: str
    message: WorkerMessage


class Close(Effect, frozen=True, tag=True):
    """End the worker's stream with a typed error (`reason` and `hint` as a Rejection has them)."""

    worker: str
    reason: str
    message: str
    hint: str = ""


class Note(Effect, frozen=True, tag=True):
    """An event of the job's history with its text: see `elastane_proto.history`.

    kind, worker, reason, facts: its text, truncated if too long; the event is complete.
    """

    kind: str
    reason: str
    worker: str = ""
    generation: int = 0
    step: int = 0
    facts: dict[str, str] = {}
    event: AnyHistoryEvent | UnknownEvent = UnknownEvent()

    @classmethod
    def of(cls, event: AnyHistoryEvent, generation: int = 0, step: int = 0) -> Note:
        """Return the note of a new event."""
        return cls(event.kind, describe(event), event.about, generation, step, facts_text(event), event)

    def dated(self, at: float, sequence: int = 0) -> DatedEvent:
        """Return the dated event for readers of history. at: time of the decision."""
        return DatedEvent(
            sequence,
            at,
            self.kind,
            self.worker,
            self.reason,
            self.generation,
            self.step,
            self.event,
        )

    def cut(self, clip: Callable[[str], str]) -> Note:
        """Return the note with truncated texts, which workers and scripts write into; data stays complete."""
        facts = {name: clip(text) for name, text in self.facts.items()}
        reason, event = clip(self.reason), clipped(self.event, clip)
        return msgspec.structs.replace(self, reason=reason, facts=facts, event=event)


class Commit(Effect, frozen=True, tag=True):
    """Append to the committed history: every member of the ring has applied `step`."""

    step: int
    epoch: int
    generation: int
    tasks: tuple[tuple[str, StepTask], ...]  # (worker, task) of all N virtual ranks


class TaskCommit(Effect, frozen=True, tag=True, gc=False, omit_defaults=True):
    """Append to the committed history: dynamic tasks `index` to `index` + count - 1 are DONE.

    start, end: positions of all of them; task_size: of each but the last. reopened: for tasks that push, how
    often the task had been reopened.
    """

    dataset: str
    epoch: int
    index: int
    start: int
    end: int
    worker: str
    attempt: int
    count: int = 1
    task_size: int = 0
    reopened: int = 0


class Decision(msgspec.Struct):
    """Outcome of one event.

    effects: carried out in order after the event is durable. durable: the state changed, so the
    event must be stored. result: what the caller of a unary request gets.
    """

    effects: list[Effect] = []
    durable: bool = False
    result: object = None
