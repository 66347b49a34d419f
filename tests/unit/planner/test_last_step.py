"""A measured step, put together from the clocks of its devices."""

from __future__ import annotations

import math

import pytest

from elastane_planner.cluster import Cluster, Device
from elastane_planner.last_step import measured_timeline
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.schedule import blocks
from elastane_planner.simulate import timeline

PLAN = Plan((Stage(0, 1, (0,)), Stage(1, 2, (2, 1))))
M = 4


def simulated():
    units = tuple(UnitProfile(str(index), 0.1, 0.2, boundary_bytes=1000) for index in range(2))
    return timeline(Profile(units), Cluster.uniform([Device(name) for name in "abc"], 1e9), PLAN, M)


def told(offsets: dict[int, float] | None = None):
    """What devices note of the simulated step. offsets: by which their clocks are ahead."""
    order, spans = blocks(PLAN, M), {(s.device, s.block): s for s in simulated().spans}
    found = {}
    for device, own in order.items():
        times = [(spans[device, block].start_seconds, spans[device, block].end_seconds) for block in own]
        found[device] = (1e9 + (offsets or {}).get(device, 0.0), times)
    return found


def test_a_step_is_put_together_as_it_was() -> None:
    found, right = measured_timeline(PLAN, M, told()), simulated()
    assert found is not None
    assert {(s.device, s.block) for s in found.spans} == {(s.device, s.block) for s in right.spans}
    # The clock has fewer digits than the times.
    assert found.step_seconds == pytest.approx(max(s.end_seconds for s in right.spans), abs=1e-5)
    assert found.bubble == pytest.approx(right.bubble, abs=1e-4)


@pytest.mark.parametrize("offsets", [{0: 5.0}, {1: -3.0, 2: 7.0}, {0: 1000.0, 1: -1000.0}])
def test_clocks_that_differ_are_set_right(offsets: dict[int, float]) -> None:
    """No block begins before what it waits for has ended, and the step is hardly longer."""
    found = measured_timeline(PLAN, M, told(offsets))
    assert found is not None and found.step_seconds == pytest.approx(simulated().step_seconds, rel=0.1)
    at = {span.block: span for span in found.spans}
    for block, span in at.items():
        if (before := at.get(block._replace(stage=block.stage - 1))) is not None:
            first, second = (before, span) if block.kind == "F" else (span, before)
            assert first.end_seconds <= second.start_seconds + 1e-5, block


@pytest.mark.parametrize(
    "change",
    [
        {1: (0.0, [])},
        {1: (math.nan, [(0.0, 1.0)] * 4)},
        {1: (0.0, [(0.0, math.inf)] * 4)},
        {1: (0.0, [(1.0, 0.5)] * 4)},
        {1: (0.0, [(-1.0, 0.5)] * 4)},
        {1: (0.0, [(0.0, 1.0)] * 5)},
    ],
)
def test_what_cannot_be_a_step_of_the_plan_is_none(change) -> None:
    assert measured_timeline(PLAN, M, told() | change) is None
    assert measured_timeline(PLAN, M, {}) is None
