"""Process groups between workers: they form when all members have arrived, and break when one leaves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from elastane_proto.v1 import ring_pb2

if TYPE_CHECKING:
    from sim.worker_model import WorkerModel
    from sim.world import World


class Group:
    """The process group of one generation.

    early: members that connect before their Go. exported: each donor's state at the time the group formed.
    """

    def __init__(self, world: World, change: ring_pb2.Go | ring_pb2.Prepare, ests: int) -> None:
        self.world, self.ests = world, ests
        self.generation, self.resume_step = change.generation, 0
        self.members = [member.worker_id for member in change.members]
        self.donors: list[str] = []
        self.receivers: set[str] = set()
        self.early: dict[str, WorkerModel] = {}
        self.present: dict[str, WorkerModel] = {}
        self.exported: dict[str, tuple[int, bytes]] = {}
        self.units: dict[str, dict[int, bytes]] = {}
        self.received: set[str] = set()
        self.contributions: dict[int, dict[int, bytes]] = {}
        self.formed = self.is_broken = False

    def connect(self, worker: WorkerModel) -> None:
        """Add a member that forms the group before its Go."""
        self.early[worker.name] = worker

    def enter(self, worker: WorkerModel, go: ring_pb2.Go) -> None:
        """Add a member that has received its Go."""
        self.resume_step = go.resume_step
        self.donors = [self.members[place] for place in go.donors]
        self.receivers = {self.members[place] for place in go.receivers}
        self.present[worker.name] = worker
        if not self.is_broken and set(self.present) == set(self.members):
            self.world.after(0.0 if set(self.early) == set(self.members) else 0.005, self._form)

    def leave(self, worker: WorkerModel, *, through_with: int = -1) -> None:
        """Remove a member that died, was fenced or left; the others notice at different times, or never.

        through_with: the last step whose all-reduce it completed; if that is the newest, no one waits for it.
        """
        if self.early.get(worker.name) is worker and worker.name not in self.present:
            del self.early[worker.name]
            self.disturb()
        if self.present.get(worker.name) is not worker:
            return
        del self.present[worker.name]
        if self.formed and through_with >= max(self.contributions, default=self.resume_step):
            return
        self.disturb()

    def disturb(self) -> None:
        """Break connections between members."""
        if self.is_broken:
            return
        self.is_broken = True
        for other in list(self.present.values()):
            # An all-reduce whose data has arrived may still complete; a waiting one breaks or hangs.
            if self.world.rng.random() < 0.6:
                self.world.after(self.world.rng.uniform(0.0, 0.3), partial(other.group_broke, self))

    def taken(self, worker: WorkerModel) -> None:
        """Record that a receiver has all state, for which the donors wait."""
        self.received.add(worker.name)
        for other in list(self.present.values()):
            other.process.call_soon(other.notify)

    def contribute(self, step: int, gradients: dict[int, bytes]) -> None:
        """Add a member's part to the all-reduce of a step; the last part completes it for all members."""
        if self.is_broken:
            return
        parts = self.contributions.setdefault(step, {})
        parts.update(gradients)
        if len(parts) == self.ests:
            for worker in list(self.present.values()):
                delay = self.world.rng.choice((0.0, 0.001, 0.01, 0.05))
                self.world.after(delay, partial(worker.reduced, self, step, dict(parts)))
            self.contributions.pop(step - 1, None)

    def _form(self) -> None:
        if self.is_broken or self.formed:
            return
        self.formed = True
        for worker in list(self.present.values()):
            self.exported[worker.name] = worker.lineage, worker.weights
            self.units[worker.name] = dict(worker.units)
            worker.process.call_soon(worker.notify)
