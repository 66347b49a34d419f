"""Jobs as policies know them, and their progress. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from elastane_scheduler.amounts import check_amount
from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.plan import Shape
from elastane_scheduler.pool import Counts

Stage = tuple[float, Counts]
"""From that time on these devices train."""

Segment = tuple[float, float]
"""Steps per second from that time on."""


@dataclass(frozen=True, eq=False)
class Job:
    """Constants of a job while it runs. Raises InvalidSettings for amounts out of range.

    shape: what decides its speed. steps: steps in all. known: whether policies are told them. request: the
    devices that policies without elasticity give it, whole or not at all. queue, weight: whose it is, and its
    part of a fair share. priority: see `PrioritizedPolicy`; other policies do not look at it.
    """

    name: str
    shape: Shape
    steps: float
    arrival_seconds: float
    request: Counts
    queue: str = "default"
    weight: float = 1.0
    known: bool = True
    priority: int = 0

    def __post_init__(self) -> None:
        check_amount(f"the steps of {self.name}", self.steps, positive=True)
        check_amount(f"the arrival of {self.name}", self.arrival_seconds)
        check_amount(f"the weight of {self.name}", self.weight, positive=True)
        if self.shape.step_seconds(self.request) == math.inf:
            raise InvalidSettings(
                f"{self.name} cannot train on the devices it asks for", hint="Ask for others."
            )


@dataclass(slots=True, eq=False)
class JobState:
    """Progress of a job and its devices, which `execution.change` replaces.

    at_seconds: when its devices changed last, or when it came. remaining: steps left then (an estimate, for a
    job whose steps are not known). devices: what it has. stages: the devices that train, from their times on;
    the others are still starting. segments: its speed, from their times on. finish_seconds: when it ends if
    nothing changes, infinite without devices. stalled_until: the end of a stall. service_seconds:
    device-seconds until `at_seconds`. started: whether it had trained before.
    """

    job: Job
    shape: Shape
    at_seconds: float
    remaining: float
    devices: Counts
    stages: tuple[Stage, ...] = ()
    segments: tuple[Segment, ...] = ()
    finish_seconds: float = math.inf
    stalled_until: float = 0.0
    service_seconds: float = 0.0
    started: bool = False

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def running(self) -> bool:
        """True if it has any device."""
        return any(self.devices)

    def remaining_at(self, now: float) -> float:
        """Return the steps left at `now`, which must not be before `at_seconds`."""
        segments = self.segments
        if not segments:
            return self.remaining
        start, rate = segments[-1]
        if now >= start and rate:
            return max(0.0, (self.finish_seconds - now) * rate)
        left = self.remaining
        for place, (start, rate) in enumerate(segments):
            if start >= now:
                break
            end = segments[place + 1][0] if place + 1 < len(segments) else now
            left -= (min(end, now) - start) * rate
        return max(0.0, left)

    def service_at(self, now: float) -> float:
        """Return the device-seconds that it has had by `now`."""
        return self.service_seconds + max(0.0, now - self.at_seconds) * sum(self.devices)

    def trained_by(self, now: float) -> bool:
        """Return whether it has trained before `now`."""
        return self.started or any(start < now and rate for start, rate in self.segments)

    def believed(self, remaining: float) -> JobState:
        """Return a copy with a policy's belief about the steps left at `at_seconds`."""
        copy = replace(self, remaining=remaining)
        copy.finish_seconds = finish_of(copy.segments, remaining)
        return copy


def finish_of(segments: tuple[Segment, ...], remaining: float) -> float:
    """Return when `remaining` steps are done; infinite if the last segment makes no progress."""
    left = remaining
    for place, (start, rate) in enumerate(segments):
        if rate:
            end = start + left / rate
            if place + 1 == len(segments) or end <= segments[place + 1][0]:
                return end
            left -= (segments[place + 1][0] - start) * rate
    return math.inf


def arrived(job: Job) -> JobState:
    """Return the state of a job that has just arrived: it has no device."""
    return JobState(job, job.shape, job.arrival_seconds, job.steps, (0,) * len(job.request))
