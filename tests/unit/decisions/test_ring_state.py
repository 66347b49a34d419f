"""The stages of the ring follow one table, and nothing but its own methods changes them."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path

import msgspec
import pytest

from elastane_master import decisions
from elastane_master.decisions.effects import Member
from elastane_master.decisions.ring_state import TRANSITIONS, IllegalStage, RingState, Stage

MEMBERS = (Member("a", 0, 2, "a:1"), Member("b", 2, 4, "b:1"))


def ring_at(stage: Stage) -> RingState:
    return RingState(generation=7, stage=stage, members=MEMBERS if stage is not Stage.NONE else ())


def enter(ring: RingState, stage: Stage, now: float) -> None:
    match stage:
        case Stage.NONE:
            ring.dissolve(now)
        case Stage.PREPARING:
            ring.prepare(MEMBERS, now)
        case Stage.LOADING:
            ring.load(now)
        case Stage.RUNNING:
            ring.run(3, (True, False), now)


@pytest.mark.parametrize(("origin", "stage"), list(product(Stage, Stage)))
def test_a_stage_is_entered_from_those_of_the_table_only(origin: Stage, stage: Stage) -> None:
    ring = ring_at(origin)
    if stage in TRANSITIONS[origin]:
        enter(ring, stage, 5.0)
        assert (ring.stage, ring.since) == (stage, 5.0)
        return
    before = msgspec.msgpack.encode(ring)
    with pytest.raises(IllegalStage, match=rf"generation 7, {origin} since 0.000, cannot be {stage}, only "):
        enter(ring, stage, 5.0)
    assert msgspec.msgpack.encode(ring) == before


def test_only_a_ring_that_prepares_can_load_and_no_ring_runs_without_a_change() -> None:
    entered_from = {stage: {origin for origin in Stage if stage in TRANSITIONS[origin]} for stage in Stage}
    assert entered_from[Stage.LOADING] == {Stage.PREPARING}
    assert entered_from[Stage.RUNNING] == {Stage.PREPARING, Stage.LOADING}


def test_a_stage_is_stored_as_its_word() -> None:
    for stage in Stage:
        stored = msgspec.msgpack.encode(ring_at(stage))
        assert msgspec.msgpack.decode(stored)["stage"] == stage.value
        assert msgspec.msgpack.decode(stored, type=RingState).stage is stage


def test_no_decision_sets_the_stage_itself() -> None:
    folder = Path(decisions.__path__[0])
    setters = {
        path.name
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "stage" and isinstance(node.ctx, ast.Store)
    }
    assert setters == {"ring_state.py"}
