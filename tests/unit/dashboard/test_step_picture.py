"""A pipeline's step as a picture: where its blocks are, what bounds it, and that names are text."""

from __future__ import annotations

import pytest

from elastane_master.dashboard import drawing
from elastane_master.dashboard.drawing import LEFT, WIDTH, draw_step
from elastane_planner.cluster import Cluster, Device
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.simulate import Timeline, timeline

PLAN = Plan((Stage(0, 1, (1,)), Stage(1, 2, (0, 2))))


def step() -> Timeline:
    profile = Profile(tuple(UnitProfile(str(unit), 0.1, 0.2) for unit in range(2)))
    return timeline(profile, Cluster.uniform([Device(name) for name in "abc"], 1e9), PLAN, 4)


def test_a_worker_has_a_row_and_each_block_is_where_it_ran() -> None:
    picture = draw_step(step(), PLAN, ("a", "b", "c"))
    assert [label.text for label in picture.labels][:3] == ["0: b", "1: a", "1: c"]
    rows = {bar.y for bar in picture.bars}
    assert len(rows) == 3 and max(rows) < picture.height and len(picture.bars) == 16
    assert all(bar.x >= LEFT and bar.x + bar.width <= WIDTH - 7 for bar in picture.bars)
    first = min(picture.bars, key=lambda bar: bar.x)
    assert first.style == "forward" and first.title == "forward of micro-batch 0 on b, stage 0: 100 ms"
    widths = {bar.style: bar.width for bar in picture.bars}
    assert widths["backward"] == pytest.approx(2 * widths["forward"], rel=0.01)


def test_the_rest_of_a_long_step_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "BLOCKS_DRAWN", 5)
    picture = draw_step(step(), PLAN, ("a", "b", "c"))
    assert len(picture.bars) == 5 and picture.left_out == 11
