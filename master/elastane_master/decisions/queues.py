"""Task queues of one job: one lockstep queue for the training, and a dynamic queue per dataset.

`LockstepQueue` handles leases, attempts and progress; this module keeps it synchronised with the ring.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elastane_master.decisions.effects import Member
from elastane_master.decisions.events import Signature
from elastane_proto.job_settings import JobSettings
from elastane_shards.dynamic import DynamicQueue
from elastane_shards.errors import IllegalTransition
from elastane_shards.lockstep import LockstepQueue
from elastane_shards.steps import LockstepSettings

EPOCHS_UNKNOWN = 1 << 31
"""Number of epochs used while the script has not given it."""


class StoredQueues(msgspec.Struct, array_like=True):
    """Snapshot of a job's queues."""

    lockstep: bytes
    dynamic: dict[str, bytes]


class Queues:
    """Queues of a job. lockstep: None until the first ring worker joins. dynamic: by dataset."""

    __slots__ = ("dynamic", "lockstep")

    def __init__(self) -> None:
        self.lockstep: LockstepQueue | None = None
        self.dynamic: dict[str, DynamicQueue] = {}

    def stored(self) -> StoredQueues:
        """Serialise all queues."""
        lockstep = self.lockstep.snapshot() if self.lockstep else b""
        return StoredQueues(lockstep, {name: queue.snapshot() for name, queue in self.dynamic.items()})

    @classmethod
    def restore(cls, stored: StoredQueues) -> Queues:
        """Inverse of `stored`."""
        queues = cls()
        if stored.lockstep:
            queues.lockstep = LockstepQueue.restore(stored.lockstep)
        queues.dynamic = {name: DynamicQueue.restore(queue) for name, queue in stored.dynamic.items()}
        return queues

    def create_lockstep(self, settings: JobSettings, signature: Signature) -> None:
        """Create the training's queue from the first ring worker's signature."""
        self.lockstep = LockstepQueue(
            LockstepSettings(
                ests=settings.ests,
                steps_per_epoch=max(1, signature.steps_per_epoch),
                epochs=signature.epochs or EPOCHS_UNKNOWN,
                batch_size=max(1, signature.batch_size),
                dataset_size=signature.dataset_size,
                lease_min_seconds=settings.lease_min_seconds,
                lease_factor=settings.lease_factor,
            )
        )

    @property
    def training(self) -> LockstepQueue:
        """The lockstep queue, which exists whenever there is a ring."""
        assert self.lockstep is not None, "a ring without a signature"
        return self.lockstep

    def ring_stopped(self, *, timed_out: int = 0) -> None:
        """Return tasks in DOING to TODO for a ring change. timed_out: number of overdue tasks."""
        if self.lockstep is not None:
            self.lockstep.requeue(timed_out=timed_out)

    def ring_started(self, members: Sequence[Member], resume_step: int, now: float) -> None:
        """Resume at `resume_step`: earlier steps are DONE, its tasks are leased to the members."""
        queue = self.training
        queue.requeue()
        if resume_step < queue.committed:
            queue.rewind(resume_step)
        elif resume_step > queue.committed:
            queue.forward(resume_step)
        self.step_begins(members, resume_step, now)

    def step_begins(self, members: Sequence[Member], step: int, now: float) -> None:
        """Lease the tasks of `step`, unless it lies beyond the training."""
        queue = self.training
        if step < queue.settings.steps:
            holders = {rank: member.worker for member in members for rank in range(member.start, member.end)}
            queue.begin(step, holders, now)

    def step_reported(self, worker: str, ranks: Sequence[int]) -> None:
        """Record that a member has finished its tasks of the step in DOING."""
        for rank in ranks:
            self.training.report(rank, worker)

    def step_committed(self, step: int, now: float) -> None:
        """Mark the N tasks of `step` as DONE, unless a resume has already done so."""
        if self.training.committed != step:
            return
        try:
            self.training.commit(now)
        except IllegalTransition:
            # A member's weights or a checkpoint prove the step, while a ring was about to repeat it.
            self.training.forward(step + 1)
