"""The picture of a step: what is in it, where, and what is left out of a huge one."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

from elastane_planner import gantt
from elastane_planner.cluster import Cluster, Device
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.simulate import Timeline, timeline

SVG = "{http://www.w3.org/2000/svg}"
PLAN = Plan((Stage(0, 1, (1, 2)), Stage(1, 2, (0,))))
NAMES = ["last", "<a & b>", "c" * 40]


def _timeline(micro_batches: int = 4, bandwidth: float = 100.0) -> Timeline:
    units = tuple(UnitProfile(f"u{i}", 1.0, 2.0, parameter_bytes=50, boundary_bytes=10) for i in range(2))
    cluster = Cluster.uniform([Device(name) for name in NAMES], bandwidth)
    return timeline(Profile(units), cluster, PLAN, micro_batches)


def _titles(svg: str) -> list[tuple[ElementTree.Element, str]]:
    return [
        (rect, title.text or "")
        for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect")
        for title in rect.iter(f"{SVG}title")
    ]


def test_every_block_frame_and_sum_is_drawn_in_its_row_and_at_its_time() -> None:
    simulated = _timeline()
    boxes = _titles(gantt.draw(NAMES, PLAN, simulated))
    kinds = {
        word: [box for box, title in boxes if title.startswith(word)]
        for word in ("forward", "backward", "sums")
    }
    assert {word: len(found) for word, found in kinds.items()} == {"forward": 8, "backward": 8, "sums": 2}
    assert len(boxes) == 16 + 2 + len(simulated.transfers)
    rows = sorted({float(box.get("y", "")) for box in kinds["forward"]})
    assert len(rows) == 3
    first = next(box for box, title in boxes if title.startswith("forward of micro-batch 1, stage 0"))
    assert float(first.get("y", "")) == rows[1]  # replica 1
    span = next(s for s in simulated.spans if s.block.kind == "B" and s.block.stage == 1)
    box = next(box for box, title in boxes if title.startswith("backward of micro-batch 0, stage 1"))
    scale = float(box.get("width", "")) / (span.end_seconds - span.start_seconds)
    assert scale * simulated.step_seconds == pytest.approx(960, rel=1e-3)
    assert "backward of micro-batch 0, stage 1: 2 s" in [title for _, title in boxes]


def test_names_are_harmless_and_short() -> None:
    svg = gantt.draw(NAMES, PLAN, _timeline())
    assert "&lt;a &amp; b&gt;" in svg and "<a & b>" not in svg
    assert "c" * 24 not in svg.replace(NAMES[2] + ":", "").replace(f"from {NAMES[2]}", "")


def test_a_step_that_never_ends_is_said() -> None:
    svg = gantt.draw(NAMES, PLAN, _timeline(bandwidth=0.0))
    assert "Step of never" in svg and not _titles(svg)


def test_a_huge_step_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gantt, "BLOCKS_MAX", 10)
    svg = gantt.draw(NAMES, PLAN, _timeline())
    assert len(_titles(svg)) == 10 and "the first 10 of 26 blocks and frames" in svg


def test_no_time_at_all() -> None:
    nothing = msgspec.structs.replace(_timeline(), step_seconds=0.0)
    assert not _titles(gantt.draw(NAMES, PLAN, nothing))
