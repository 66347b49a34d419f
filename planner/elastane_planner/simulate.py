"""One step of a plan in virtual time."""

from __future__ import annotations

import msgspec

from elastane_planner.cluster import Cluster
from elastane_planner.plan import Plan
from elastane_planner.profile import Profile
from elastane_planner.schedule import Block, Order


class Span(msgspec.Struct, frozen=True):
    """A block on a device, in seconds from the start of the step."""

    device: int
    block: Block
    start_seconds: float
    end_seconds: float


class Transfer(msgspec.Struct, frozen=True):
    """A frame on a link: what `block` made, from one device to another."""

    source: int
    target: int
    block: Block
    start_seconds: float
    end_seconds: float


class Sum(msgspec.Struct, frozen=True):
    """The sums of a stage's gradients over its replicas, and their way to its shadows."""

    stage: int
    start_seconds: float
    end_seconds: float


class Timeline(msgspec.Struct, frozen=True):
    """A simulated step. `bubble` is the share of time in which computing devices wait, before their sums.

    in_flight: by stage, the most micro-batches that a replica keeps for its backward at once.
    """

    step_seconds: float
    spans: tuple[Span, ...]
    transfers: tuple[Transfer, ...]
    sums: tuple[Sum, ...]
    bubble: float
    in_flight: tuple[int, ...]


def timeline(
    profile: Profile, cluster: Cluster, plan: Plan, micro_batches: int, order: Order | None = None
) -> Timeline:
    """Return the simulated step of a plan; order: None for `schedule.blocks`."""
    raise NotImplementedError
