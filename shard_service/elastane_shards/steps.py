"""Settings, in-flight steps and stored state of a `LockstepQueue`."""

from __future__ import annotations

from math import isfinite

import msgspec

from elastane_shards.errors import InvalidSettings
from elastane_shards.progress import RateWindow

DURATIONS_KEPT = 32
"""Number of recent step durations from which the median is taken."""

STEPS_IN_FLIGHT_MAX = 2
"""Limit of steps in DOING: one that waits for its commit, and the next one."""


class LockstepSettings(msgspec.Struct, frozen=True):
    """Settings that define the tasks of a job and the length of their leases.

    ests: N. batch_size: samples per task. dataset_size: 0 if unknown; then every batch counts as full.
    samples_per_rank: samples per EST and epoch; 0 means dataset_size divided by N, rounded up, as
    DistributedSampler pads it (with its drop_last the caller passes the value rounded down).
    lease_min_seconds, lease_factor: a lease lasts lease_factor x the median duration of the last 32 steps,
    but at least lease_min_seconds.
    """

    ests: int
    steps_per_epoch: int
    epochs: int
    batch_size: int = 1
    dataset_size: int = 0
    samples_per_rank: int = 0
    lease_min_seconds: float = 30.0
    lease_factor: float = 20.0

    def check(self) -> None:
        """Raise InvalidSettings if a number is out of range."""
        for name in ("ests", "steps_per_epoch", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InvalidSettings(f"{name} is {getattr(self, name)}, must be at least 1", name=name)
        if self.dataset_size < 0 or self.samples_per_rank < 0:
            raise InvalidSettings("a number of samples is negative", dataset_size=self.dataset_size)
        for name in ("lease_min_seconds", "lease_factor"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise InvalidSettings(f"{name} is {getattr(self, name)}, must be more than 0", name=name)

    @property
    def steps(self) -> int:
        """Number of steps of the whole job."""
        return self.steps_per_epoch * self.epochs

    @property
    def samples_of_rank(self) -> int:
        """Samples per EST and epoch, limited to what its steps can consume."""
        all_full = self.steps_per_epoch * self.batch_size
        samples = self.samples_per_rank or -(-self.dataset_size // self.ests) or all_full
        return min(samples, all_full)

    def batch_length(self, step: int) -> int:
        """Samples per task in a global step; the last step of an epoch may be short."""
        first = step % self.steps_per_epoch * self.batch_size
        return max(0, min(self.batch_size, self.samples_of_rank - first))

    def samples_before(self, step: int) -> int:
        """Samples of all ESTs in all steps before a global step."""
        epoch, in_epoch = divmod(step, self.steps_per_epoch)
        of_rank = epoch * self.samples_of_rank + min(in_epoch * self.batch_size, self.samples_of_rank)
        return of_rank * self.ests


class StepLease(msgspec.Struct):
    """One task in DOING. deadline is None once it is reported or while its worker is between steps."""

    worker: str
    deadline: float | None
    reported: bool = False


class StepInFlight(msgspec.Struct, dict=True):
    """A step that has begun and is not committed, with its attempt number and its leases by virtual rank."""

    step: int
    attempt: int
    begun: float
    timed: bool  # whether its duration counts: no pause and no ring change in it
    leases: dict[int, StepLease]

    @property
    def all_reported(self) -> bool:
        """True if every task of the step is reported."""
        return all(lease.reported for lease in self.leases.values())

    def leases_of(self, worker: str) -> list[StepLease]:
        """Leases of one worker. Holders never change within a step, so the grouping is computed once."""
        held: dict[str, list[StepLease]] | None = self.__dict__.get("held")
        if held is None:
            held = self.__dict__["held"] = {}
            for lease in self.leases.values():
                held.setdefault(lease.worker, []).append(lease)
        return held.get(worker, [])


class LockstepState(msgspec.Struct, tag="lockstep"):
    """Full state of a `LockstepQueue`; also its snapshot.

    committed: steps 0..committed-1 are DONE. in_flight: begun steps from `committed` on, in order. attempts:
    step -> attempts so far, of steps that are not committed. replayed_until, replay_attempt: after a rewind,
    a step below replayed_until may have been begun before, so its next attempt number is above
    replay_attempt. paused: workers between steps.
    """

    settings: LockstepSettings
    version: int = 1
    committed: int = 0
    in_flight: list[StepInFlight] = []
    attempts: dict[int, int] = {}
    attempt_highest: int = 0
    replayed_until: int = 0
    replay_attempt: int = 0
    paused: list[str] = []
    durations: list[float] = []
    requeued: int = 0
    timed_out: int = 0
    now: float = 0.0
    rate: RateWindow = msgspec.field(default_factory=RateWindow)
