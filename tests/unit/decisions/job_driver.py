"""Feeds a JobMachine what well-behaved workers say, and keeps what it answers."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from elastane_master.decisions import effects, events
from elastane_master.decisions.events import ContextDelta, Signature, StepTask
from elastane_master.decisions.machine import JobMachine
from elastane_proto.job_settings import JobSettings

SIGNATURE = Signature((), 64, 2, 10, 2, {"torch": "2"})
Wanted = TypeVar("Wanted", bound=effects.Message)


def settings(ests: int = 4, **changes: Any) -> JobSettings:
    """Settings of a job; a join window so short that only joins in a row are gathered."""
    return msgspec.structs.replace(JobSettings(ests=ests, join_window_seconds=0.02), **changes)


class JobDriver:
    """effects: of the last event. sent: (worker, message) since the last `take`."""

    def __init__(self, job: JobSettings, signature: Signature = SIGNATURE) -> None:
        self.machine = JobMachine.create("job", job, 0.0)
        self.signature = signature
        self.now = 100.0
        self.effects: list[effects.Effect] = []
        self.sent: list[tuple[str, Any]] = []
        self.notes: list[effects.Note] = []
        self.commits: list[effects.Commit] = []
        self.closed: list[str] = []
        self.pids: dict[str, int] = {}

    # ------------------------------------------------------------------ events

    def do(self, event: events.Event, *, after: float = 0.001) -> effects.Decision:
        """Handles one event, and checks what must hold for each: a refused one changes nothing."""
        self.now += after
        before = self.machine.snapshot()
        try:
            decision = self.machine.handle(event, self.now)  # type: ignore[arg-type]
        except events.Rejection:
            assert self.machine.snapshot() == before, event
            raise
        assert decision.durable == (self.machine.snapshot() != before), event
        self.effects = decision.effects
        for effect in decision.effects:
            match effect:
                case effects.Send(worker, message):
                    self.sent.append((worker, message))
                case effects.Note():
                    self.notes.append(effect)
                case effects.Commit():
                    self.commits.append(effect)
                case effects.Close(worker):
                    self.closed.append(worker)
        return decision

    def tick(self, *, after: float = 0.0) -> None:
        self.do(events.Tick(), after=after)

    def tick_due(self) -> None:
        """Lets time pass until the next deadline."""
        due = self.machine.next_deadline()
        assert due is not None
        self.do(events.Tick(), after=max(0.0, due - self.now))

    def join(self, worker: str, **changes: Any) -> None:
        hello = events.WorkerJoined(
            worker, f"{worker}-1", "ring", self.signature, "host", self.pids.get(worker, 1), f"{worker}:1"
        )
        forming = self.state.ring.stage == "none"
        self.do(msgspec.structs.replace(hello, **changes))
        if not forming:
            self.now += 0.02  # the join window of `settings` passes

    def rejoin(
        self, worker: str, generation: int, applied: int, *, holds: bool = True, session: str = ""
    ) -> None:
        self.join(
            worker,
            session=session or f"{worker}-1",
            generation=generation,
            applied_step=applied,
            holds_state=holds,
        )

    def lose(self, worker: str) -> None:
        self.do(events.StreamLost(worker, self.session(worker), "EOF"))

    def ready(self, worker: str, applied: int = 0, *, holds: bool = False) -> None:
        self.do(events.ReadyReported(worker, self.session(worker), self.generation, applied, holds))

    def loaded(self, worker: str, step: int = 0, checkpoint: str = "", **changes: Any) -> None:
        event = events.LoadedReported(
            worker,
            self.session(worker),
            self.generation,
            step,
            self.deltas(step, 0, self.ests),
            (2, 1),
            checkpoint,
        )
        self.do(msgspec.structs.replace(event, **changes))

    def report(self, worker: str, step: int, **changes: Any) -> effects.Decision:
        member = self.state.ring.member(worker)
        assert member is not None
        ranks = range(member.start, member.end)
        event = events.StepReported(
            worker,
            self.session(worker),
            self.generation,
            step,
            step // 10,
            self.deltas(step + 1, member.start, member.end),
            tuple(StepTask(rank, step * 2, step * 2 + 2) for rank in ranks),
        )
        return self.do(msgspec.structs.replace(event, **changes))

    def applied(self, worker: str, step: int, *, between: bool = False) -> None:
        self.do(events.AppliedReported(worker, self.session(worker), self.generation, step, between))

    def saved(self, worker: str, message: effects.Checkpoint, **changes: Any) -> None:
        event = events.SavedReported(
            worker, self.session(worker), message.checkpoint, message.step, message.shard, "file", "sha", 8
        )
        self.do(msgspec.structs.replace(event, **changes))

    def bye(self, worker: str, reason: str = "finished", applied: int = 20) -> None:
        self.do(events.ByeReported(worker, self.session(worker), reason, "", applied))  # type: ignore[arg-type]

    # ------------------------------------------------------------------ whole passages

    def gather(self) -> None:
        """The join window passes while there is no ring."""
        self.do(events.Tick(), after=0.02)

    def form(self, *workers: str) -> None:
        """The first ring, going on from the initial state."""
        for worker in workers:
            self.join(worker)
        if self.state.ring.stage == "none":
            self.tick_due()
        for worker in workers:
            self.ready(worker)
        self.loaded(workers[0])
        self.take()
        assert self.state.ring.stage == "running"

    def step(self, step: int) -> None:
        """All members report a step."""
        for worker in self.members:
            self.report(worker, step)

    def steps(self, first: int, end: int) -> None:
        for step in range(first, end):
            self.step(step)

    def all_ready(self, applied: int) -> None:
        """All members of the next ring answer, holding the state."""
        for worker in self.members:
            self.ready(worker, applied, holds=True)

    # ------------------------------------------------------------------ what came of it

    def take(self, kind: type[Wanted] | None = None) -> dict[str, Wanted]:
        """Messages of a kind sent since the last take, by worker, the last one of each; forgets all."""
        found = {
            worker: message for worker, message in self.sent if kind is None or isinstance(message, kind)
        }
        self.sent.clear()
        return found

    def noted(self, kind: str) -> list[effects.Note]:
        return [note for note in self.notes if note.kind == kind]

    def session(self, worker: str) -> str:
        return self.state.workers[worker].session

    def deltas(self, step: int, start: int, end: int) -> tuple[ContextDelta, ...]:
        """The contexts at the start of a step, complete."""
        return tuple(
            ContextDelta(rank, {"rng/python": b"%d@%d" % (rank, step), "item/x": b"%d" % rank}, False)
            for rank in range(start, end)
        )

    @property
    def state(self) -> Any:
        return self.machine.state

    @property
    def ests(self) -> int:
        return self.machine.state.settings.ests

    @property
    def generation(self) -> int:
        return self.machine.state.ring.generation

    @property
    def members(self) -> tuple[str, ...]:
        return self.machine.state.ring.names()
