"""What moves between plans, how long that takes, and when it is worth it."""

from __future__ import annotations

from elastane_planner.cluster import Cluster, Device
from elastane_planner.migration import Move, choose, holdings, migration
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile

PROFILE = Profile(
    tuple(
        UnitProfile(f"u{index}", parameter_bytes=size, optimizer_bytes=2 * size, buffer_bytes=1)
        for index, size in enumerate((10, 20, 30, 40))
    )
)
OLD = Plan((Stage(0, 2, (0,)), Stage(2, 4, (1,))))


def _cluster(count: int, bandwidth: float = 100.0) -> Cluster:
    return Cluster.uniform([Device(f"d{index}") for index in range(count)], bandwidth)


def test_the_same_plan_moves_nothing() -> None:
    moving = migration(PROFILE, _cluster(2), holdings(OLD), OLD)
    assert (moving.moves, moving.bytes, moving.seconds) == ((), 0, 0.0)


def test_memory_and_order_of_replicas_move_nothing() -> None:
    new = Plan((Stage(0, 2, (0,), "checkpoint"), Stage(2, 4, (1,))))
    assert migration(PROFILE, _cluster(2), holdings(OLD), new).bytes == 0


def test_a_shifted_boundary_moves_its_unit() -> None:
    new = Plan((Stage(0, 3, (0,)), Stage(3, 4, (1,))))
    moving = migration(PROFILE, _cluster(2), holdings(OLD), new)
    assert moving.moves == (Move(2, 1, 0, 91),)
    assert moving.seconds == 91 / 100


def test_a_shadow_receives_and_serves() -> None:
    shadowed = Plan(OLD.stages, shadows=((1,), (0,)))
    moving = migration(PROFILE, _cluster(2), holdings(OLD), shadowed)
    assert moving.bytes == 31 + 61 + 91 + 121
    swapped = Plan((Stage(0, 2, (1,)), Stage(2, 4, (0,))))
    assert migration(PROFILE, _cluster(2), holdings(shadowed), swapped).bytes == 0


def test_a_newcomer_is_served_by_all_holders_at_once() -> None:
    held = {0: {0, 1, 2, 3}, 1: {0, 1, 2, 3}}
    new = Plan((Stage(0, 4, (2,)),))
    moving = migration(PROFILE, _cluster(3), held, new)
    # 121 + 31 over one link, 91 + 61 over the other.
    assert moving.bytes == 304 and moving.seconds == 152 / 100
    assert {move.unit: move.source for move in moving.moves} == {0: 0, 1: 1, 2: 1, 3: 0}


def test_a_unit_that_nobody_holds_has_no_source() -> None:
    moving = migration(PROFILE, _cluster(2), {1: {2, 3}}, OLD)
    assert [(move.unit, move.source) for move in moving.moves] == [(0, None), (1, None)]
    assert moving.bytes == 92 and moving.seconds == 0.0


def test_a_missing_link_is_not_used() -> None:
    names = [Device(f"d{index}") for index in range(3)]
    cluster = Cluster(tuple(names), ((0.0, 1.0, 0.0), (1.0, 0.0, 5.0), (1.0, 1.0, 0.0)))
    moving = migration(PROFILE, cluster, {0: {0}, 1: {0, 1, 2, 3}}, Plan((Stage(0, 4, (2,)),)))
    assert {move.source for move in moving.moves} == {1}


def test_a_small_gain_does_not_move_anything() -> None:
    moving = migration(PROFILE, _cluster(2), holdings(OLD), Plan((Stage(0, 3, (0,)), Stage(3, 4, (1,)))))
    assert choose(1.0, 0.99, moving, 1000).keeps
    assert not choose(1.0, 0.9, moving, 1000).keeps
    # 0.91 s of migration: with eight steps to come the gain of 0.1 s each does not pay it.
    assert choose(1.0, 0.9, moving, 8).keeps
    assert choose(1.0, 1.0, moving, 1000).keeps
    told = choose(1.0, 0.9, moving, 1000)
    assert "9.9% less over 1000 steps" in told.reason and "91 bytes" in told.reason


def test_any_finite_plan_beats_one_that_cannot_run() -> None:
    moving = migration(PROFILE, _cluster(2), {}, OLD)
    assert not choose(float("inf"), 5.0, moving, 10).keeps
