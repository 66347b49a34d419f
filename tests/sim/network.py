"""Streams between workers and the master, and the process groups between workers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from elastane_master.decisions import effects, events

if TYPE_CHECKING:
    from sim.master_model import MasterModel
    from sim.worker_model import WorkerModel
    from sim.world import World


class Stream:
    """One session. Messages keep their order in each direction and take a random time."""

    def __init__(self, world: World, master: MasterModel, worker: WorkerModel, session: str) -> None:
        self.world, self.master, self.worker, self.session = world, master, worker, session
        self.incarnation = master.incarnation
        self.up_at = self.down_at = world.now
        self.open_up = self.open_down = True
        master.streams.append(self)

    def up(self, event: events.Event) -> None:
        """Worker to master."""
        if self.open_up:
            self.up_at = max(self.up_at, self.world.now + self._delay())
            self.world.at(self.up_at, lambda: self._arrive(event))

    def down(self, message: effects.Message) -> None:
        """Master to worker."""
        if self.open_down:
            self.down_at = max(self.down_at, self.world.now + self._delay())
            self.world.at(self.down_at, lambda: self.worker.receive(self, message))

    def break_up(self, reason: str) -> None:
        """The worker's end is gone: the master sees it behind the last message."""
        if self.open_up:
            self.open_up = False
            self.up_at = max(self.up_at, self.world.now + self._delay())
            self.world.at(self.up_at, lambda: self._lost(reason))

    def break_down(self, *, final: bool = False) -> None:
        """The master's end is gone: the worker sees it behind the last message. final: after Bye, or Done."""
        if self.open_down:
            self.open_down = False
            self.down_at = max(self.down_at, self.world.now + self._delay())
            self.world.at(self.down_at, lambda: self.worker.stream_ended(self, final))

    def _delay(self) -> float:
        return self.world.rng.choice((0.0005, 0.001, 0.002, 0.004, 0.02))

    def _arrive(self, event: events.Event) -> None:
        if self.master.incarnation == self.incarnation and self.master.is_up:
            self.master.message(self, event)

    def _lost(self, reason: str) -> None:
        if self.master.incarnation == self.incarnation and self.master.is_up:
            self.master.stream_broke(self, reason)


class Group:
    """The process group of one generation: forms when all have come, breaks when one goes."""

    def __init__(self, world: World, go: effects.Go) -> None:
        self.world = world
        self.generation, self.resume_step = go.generation, go.resume_step
        self.members = [member.worker for member in go.members]
        self.donors = {self.members[place] for place in go.donors}
        self.receivers = {self.members[place] for place in go.receivers}
        self.present: dict[str, WorkerModel] = {}
        self.contributions: dict[int, dict[int, bytes]] = {}
        self.formed = self.is_broken = False

    def enter(self, worker: WorkerModel) -> None:
        """A member has its Go."""
        self.present[worker.name] = worker
        if not self.is_broken and set(self.present) == set(self.members):
            self.world.after(0.005, self._form)

    def leave(self, worker: WorkerModel, *, through_with: int = -1) -> None:
        """A member died, was fenced or went away: the others find out, or not, and at different times.

        through_with: the step whose all-reduce it completed; if that is the newest, nobody waits for it.
        """
        if self.present.pop(worker.name, None) is None or self.is_broken:
            return
        if self.formed and through_with >= max(self.contributions, default=self.resume_step):
            return
        self.is_broken = True
        for other in list(self.present.values()):
            # An all-reduce whose data has arrived may still complete; a waiting one breaks or hangs.
            if self.world.rng.random() < 0.6:
                delay = self.world.rng.uniform(0.0, 0.3)
                self.world.after(delay, partial(other.collective_broke, self))

    def contribute(self, step: int, gradients: dict[int, bytes], ests: int) -> None:
        """A member's part of the all-reduce of a step; the last one's lets all of them complete."""
        if self.is_broken:
            return
        parts = self.contributions.setdefault(step, {})
        parts.update(gradients)
        if len(parts) == ests:
            for worker in list(self.present.values()):
                delay = self.world.rng.choice((0.0, 0.001, 0.01, 0.05))
                self.world.after(delay, partial(worker.reduced, self, step, parts))
            self.contributions.pop(step - 1, None)

    def _form(self) -> None:
        if self.is_broken:
            return
        self.formed = True
        for worker in list(self.present.values()):
            if worker.name in self.receivers:
                donor = self.world.rng.choice(sorted(self.donors))
                worker.receive_state(self, self.present[donor])
            else:
                worker.group_formed(self)
