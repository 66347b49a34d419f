"""The properties, checked from outside: they know the fixed run and what is visible, not the machine's state.

bits       what a worker applies, and every context the master hands out, is that of the fixed run
one ring   generations of Go grow, and no Prepared of an older generation follows one
history    committed steps follow each other; only a rewinding that was announced goes back
nothing lost  history is not rewound while an attending process holds the weights
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elastane_master.decisions import effects, events
from elastane_master.decisions.events import Rejection
from sim.reference import Context, FixedRuns
from sim.world import SimulationError


@dataclass
class Checkers:
    """standing: the commit of each step that counts."""

    ests: int
    steps: int
    fixed: FixedRuns
    standing: dict[int, effects.Commit] = field(default_factory=dict)
    tasks_done: set[tuple[int, int]] = field(default_factory=set)
    next_step: int = 0
    go_generation: int = 0
    rewinds: int = 0
    notes: dict[str, int] = field(default_factory=dict)

    def applied(self, worker: str, lineage: int, step: int, weights: bytes) -> None:
        """A worker's weights after `step` steps."""
        if weights != self.fixed.weights(lineage, step):
            raise SimulationError(f"{worker} has other weights after {step} steps than the fixed run")

    def sent(self, worker: str, message: effects.Message) -> None:
        """The master sends a message."""
        match message:
            case effects.Go():
                if message.generation < self.go_generation:
                    raise SimulationError(f"Go of {message.generation} after one of {self.go_generation}")
                self.go_generation = message.generation
                self._check_go(worker, message)
            case effects.Prepared():
                if message.generation < self.go_generation:
                    text = f"Prepared of {message.generation} after Go of {self.go_generation}"
                    raise SimulationError(text)

    def stored(self, effect: effects.Effect) -> None:
        """An effect became durable together with its event."""
        match effect:
            case effects.Note("history_rewound"):
                self.rewinds += 1
                self.next_step = int(effect.facts["to_step"])
                kept = [step for step in self.standing if step < self.next_step]
                self.standing = {step: self.standing[step] for step in kept}
            case effects.Commit():
                self._check_commit(effect)
            case effects.TaskCommit():
                if (effect.epoch, effect.index) in self.tasks_done:
                    raise SimulationError(f"{effect} is done a second time")
                self.tasks_done.add((effect.epoch, effect.index))
        if isinstance(effect, effects.Note):
            self.notes[effect.kind] = self.notes.get(effect.kind, 0) + 1

    def loading(self, usable: list[str]) -> None:
        """A leader is asked to load: then nobody who attends holds weights that could be gone on from."""
        if usable:
            raise SimulationError(f"a checkpoint is loaded although these hold the state: {usable}")

    def refused(self, event: events.Event, rejection: Rejection) -> None:
        """A well-behaved worker is never refused for what it says."""
        if isinstance(event, events.ScaleRequested | events.CheckpointRequested):
            return
        if rejection.reason in ("invalid_argument", "mismatch"):
            raise SimulationError(f"{event!r} was refused: {rejection}")

    def finished(self, tasks: int) -> None:
        """The job succeeded: the history is whole, and so is the dynamic dataset of `tasks` tasks."""
        if len(self.tasks_done) != tasks:
            raise SimulationError(f"{len(self.tasks_done)} dynamic tasks of {tasks} are done")
        if sorted(self.standing) != list(range(self.steps)):
            raise SimulationError(f"the standing history has the steps {sorted(self.standing)}")

    def _check_commit(self, commit: effects.Commit) -> None:
        if commit.step != self.next_step:
            raise SimulationError(f"step {commit.step} is committed, next was {self.next_step}")
        ranks = [task.virtual_rank for _, task in commit.tasks]
        if ranks != list(range(self.ests)):
            raise SimulationError(f"step {commit.step} is committed with the tasks of {ranks}")
        self.next_step += 1
        self.standing[commit.step] = commit

    def _check_go(self, worker: str, go: effects.Go) -> None:
        member = next((member for member in go.members if member.worker == worker), None)
        if member is None or [rank for rank, _ in go.contexts] != list(range(member.start, member.end)):
            raise SimulationError(f"{worker} got a Go without its contexts")
        places = sorted((*go.donors, *go.receivers))
        if not go.donors or places != list(range(len(go.members))):
            raise SimulationError(f"donors {go.donors} and receivers {go.receivers} are not all members")
        ends = [0, *(member.end for member in go.members)]
        if ends[-1] != self.ests or any(member.start != ends[i] for i, member in enumerate(go.members)):
            raise SimulationError("the ranges of virtual ranks have holes")
        for rank, parts in go.contexts:
            self.context(rank, go.resume_step, parts)

    def context(self, rank: int, step: int, parts: Context) -> None:
        """A context somebody starts a step from."""
        if parts != self.fixed.contexts[step][rank]:
            raise SimulationError(f"the context of EST {rank} at step {step} is not the fixed run's")
