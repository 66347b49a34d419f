"""The planner's figures for gradients are the bytes of the vectors that the executor makes."""

from __future__ import annotations

import pytest
import torch

from elastane.collective.buckets import first_layout
from elastane.pipeline.gradient_memory import GradientMemory, groups_of
from elastane.pipeline.local_links import LocalHub
from elastane.pipeline.stage_sums import Holders, StageSums
from elastane_planner.cluster import Cluster, Device
from elastane_planner.costs import Costs
from elastane_planner.memory import MemoryNeeds
from elastane_planner.profile import Profile, UnitProfile

SHAPES = [(64, 64), (64,), (300_000, 4), (128, 64)]


def _vectors(replicas: int, num_ests: int, me: int, shadows: tuple[int, ...] = ()) -> int:
    """Bytes of a member's gradients, and of what it receives of others, for one stage of all parameters."""
    shapes = [torch.empty(shape, device="meta") for shape in SHAPES]
    groups = groups_of(first_layout(shapes), frozenset(range(len(shapes))), num_ests)
    ests = [est for est in range(num_ests) if est % replicas == me] if me < replicas else []
    memory = GradientMemory(groups, ests, torch.device("cpu"))
    holders = Holders(tuple(range(replicas)), shadows, num_ests)
    sums = StageSums(holders, me, memory, LocalHub().links(me))
    pieces = [*(inbox for both in sums._inboxes.values() for inbox in both), *sums._scratch.values()]
    return memory.nbytes + sum(piece.nbytes for piece in pieces)


@pytest.mark.parametrize(("replicas", "num_ests"), [(1, 1), (1, 4), (2, 4), (3, 4), (4, 4)])
def test_gradients_of_replicas_and_shadows(replicas: int, num_ests: int) -> None:
    size = sum(torch.Size(shape).numel() for shape in SHAPES) * 4
    profile = Profile((UnitProfile("all", parameter_bytes=size),))
    needs = MemoryNeeds(Costs(profile, Cluster.uniform([Device("d")], 1.0), num_ests))
    for me in range(replicas):
        local = len(range(me, num_ests, replicas))
        planned = needs.replica(0, 1, local, 0, replicas=replicas).gradients
        assert planned == pytest.approx(_vectors(replicas, num_ests, me), rel=0.001)
    shadow = _vectors(replicas, num_ests, replicas, shadows=(replicas,))
    assert needs.shadow(0, 1).gradients == shadow
