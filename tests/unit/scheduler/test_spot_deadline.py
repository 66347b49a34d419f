"""Deadlines on spot machines: targets and reasons of the two policies, and what bad input does."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from elastane_scheduler.autoscaling.spot_deadline import (
    SpotMemory,
    SpotPolicy,
    SpotRung,
    SpotView,
    UniformProgress,
    WideSpot,
)
from elastane_scheduler.errors import InvalidSettings

RUNGS = tuple(SpotRung(workers, float(-(-16 // workers))) for workers in (1, 2, 3, 4, 6, 8, 16))
VIEW = SpotView(
    now_seconds=1000.0,
    deadline_seconds=21_000.0,
    steps_left=10_000,
    rungs=RUNGS,
    spot_workers=0,
    on_demand_workers=0,
    on_demand_ready=0,
    on_demand_max=16,
    cold_start_seconds=360.0,
    poll_seconds=300.0,
    spot_offered=0,
)
"""10,000 s are needed at the widest rung, 20,000 s are left; the last moment is 1,020 s earlier."""

LAST = VIEW.deadline_seconds - 10_000.0 - 2 * 360.0 - 300.0


def view(**changes: object) -> SpotView:
    return msgspec.structs.replace(VIEW, **changes)


@pytest.mark.parametrize(("offered", "target"), [(0, 0), (1, 1), (5, 4), (7, 6), (15, 8), (16, 16), (99, 16)])
def test_spot_is_taken_at_the_widest_rung(offered: int, target: int) -> None:
    decision = WideSpot().decide(view(spot_offered=offered), SpotMemory())
    assert (decision.spot_target, decision.on_demand_target) == (target, 0)
    assert "spot at the widest rung" in decision.reason and not decision.late


def test_what_spot_offers_is_found_by_asking_for_the_widest_rung() -> None:
    decision = WideSpot().decide(view(spot_offered=None, spot_workers=3), SpotMemory())
    assert (decision.spot_target, decision.on_demand_target) == (16, 0)


def test_the_last_moment_is_exact_and_for_good() -> None:
    policy = WideSpot()
    before = policy.decide(view(now_seconds=LAST - 0.5), SpotMemory())
    assert before.on_demand_target == 0 and "on demand in 0 s" in before.reason
    at = policy.decide(view(now_seconds=LAST), before.memory)
    assert at.on_demand_target == 16 and "last moment" in at.reason and not at.late
    later = policy.decide(view(now_seconds=LAST + 300, spot_offered=16, on_demand_workers=16), at.memory)
    assert later.on_demand_target == 16  # although spot is there again


def test_time_that_is_won_later_takes_nobody_back() -> None:
    policy = WideSpot()
    first = policy.decide(view(now_seconds=LAST), SpotMemory())
    won = policy.decide(view(now_seconds=LAST + 300, steps_left=100, spot_offered=16), first.memory)
    assert won.on_demand_target == 16


def test_on_demand_fills_beside_spot_and_only_grows() -> None:
    policy = WideSpot()
    first = policy.decide(view(now_seconds=LAST, spot_offered=10, spot_workers=10), SpotMemory())
    assert (first.spot_target, first.on_demand_target) == (10, 6)
    fewer = policy.decide(
        view(now_seconds=LAST, spot_offered=4, spot_workers=4, on_demand_workers=6), first.memory
    )
    assert (fewer.spot_target, fewer.on_demand_target) == (4, 12)
    more = policy.decide(
        view(now_seconds=LAST, spot_offered=16, spot_workers=4, on_demand_workers=12, on_demand_ready=12),
        fewer.memory,
    )
    assert (more.spot_target, more.on_demand_target) == (4, 12)


def test_spot_counts_no_more_once_its_loss_could_not_be_made_good() -> None:
    policy = WideSpot()
    close = VIEW.deadline_seconds - 10_000.0 - 600.0
    decision = policy.decide(view(now_seconds=close, spot_offered=16, spot_workers=16), SpotMemory())
    assert (decision.spot_target, decision.on_demand_target) == (16, 16)  # spot trains until they are ready
    ready = policy.decide(
        view(now_seconds=close, spot_offered=16, spot_workers=16, on_demand_workers=16, on_demand_ready=16),
        decision.memory,
    )
    assert (ready.spot_target, ready.on_demand_target) == (0, 16)


def test_few_workers_on_demand_go_earlier_and_keep_spot_beside() -> None:
    policy = WideSpot()
    few = view(on_demand_max=9, steps_left=9000)  # rung 8: 18,000 s
    moment = VIEW.deadline_seconds - 18_000.0 - 1020.0
    before = msgspec.structs.replace(few, now_seconds=moment - 1)
    assert policy.decide(before, SpotMemory()).on_demand_target == 0
    decision = policy.decide(
        msgspec.structs.replace(few, now_seconds=moment, spot_offered=7, spot_workers=7), SpotMemory()
    )
    assert (decision.spot_target, decision.on_demand_target) == (7, 9)  # together the rung of 16


def test_a_deadline_that_is_past_or_out_of_reach_says_the_earliest_end_and_trains_at_full_width() -> None:
    for now in (VIEW.deadline_seconds + 5000, VIEW.deadline_seconds - 9000):
        decision = WideSpot().decide(view(now_seconds=now, spot_offered=3), SpotMemory())
        assert decision.late and decision.on_demand_target == 16
        assert decision.finish_seconds == now + 360 + 10_000
        assert f"{decision.finish_seconds - VIEW.deadline_seconds:.0f} s after it" in decision.reason


def test_without_workers_on_demand_spot_trains_alone() -> None:
    decision = WideSpot().decide(view(on_demand_max=0, now_seconds=30_000.0, spot_offered=8), SpotMemory())
    assert (decision.spot_target, decision.on_demand_target, decision.late) == (8, 0, True)


@pytest.mark.parametrize("policy", [WideSpot(), UniformProgress(8)], ids=lambda policy: policy.name)
def test_a_speed_that_nobody_measured_is_measured_on_demand_if_no_spot_comes(policy: SpotPolicy) -> None:
    first = policy.decide(view(rungs=(), steps_left=0), SpotMemory())
    assert first.on_demand_target == 0  # spot has a cold start's time to come
    waited = view(rungs=(), now_seconds=VIEW.now_seconds + 660)
    alone = policy.decide(waited, first.memory)
    assert (alone.on_demand_target, alone.finish_seconds) == (1, None)
    there = msgspec.structs.replace(waited, spot_offered=2)
    assert policy.decide(there, first.memory).on_demand_target == 0
    none_allowed = msgspec.structs.replace(waited, on_demand_max=0)
    assert policy.decide(none_allowed, first.memory).on_demand_target == 0


@pytest.mark.parametrize("policy", [WideSpot(), UniformProgress(8)], ids=lambda policy: policy.name)
def test_a_clock_that_steps_back_gives_no_time(policy: SpotPolicy) -> None:
    late = view(now_seconds=LAST)
    first = policy.decide(late, SpotMemory())
    again = policy.decide(view(now_seconds=1.0), first.memory)
    assert again.memory.now_seconds == LAST
    assert again.on_demand_target == first.on_demand_target
    assert again.late == first.late


@pytest.mark.parametrize("policy", [WideSpot(), UniformProgress(8)], ids=lambda policy: policy.name)
def test_no_steps_left_changes_nothing(policy: SpotPolicy) -> None:
    decision = policy.decide(view(steps_left=0, spot_workers=3, on_demand_workers=2), SpotMemory())
    assert (decision.spot_target, decision.on_demand_target, decision.late) == (3, 2, False)


def test_spot_that_flaps_moves_nobody_on_demand_back() -> None:
    policy, memory, rng = WideSpot(), SpotMemory(), random.Random(3)
    targets = []
    for tick in range(200):
        offered = rng.choice((0, 16))
        decision = policy.decide(
            view(now_seconds=LAST - 3000 + 30 * tick, spot_offered=offered, spot_workers=offered), memory
        )
        memory = decision.memory
        targets.append(decision.on_demand_target)
    assert targets == sorted(targets) and set(targets) == {0, 16}


@pytest.mark.parametrize(
    "changes",
    [
        {"now_seconds": math.nan},
        {"deadline_seconds": math.inf},
        {"deadline_seconds": -1.0},
        {"cold_start_seconds": math.nan},
        {"poll_seconds": -1.0},
        {"steps_left": -1},
        {"spot_workers": -1},
        {"spot_offered": -1},
        {"on_demand_max": -1},
        {"rungs": (SpotRung(1, math.nan),)},
        {"rungs": (SpotRung(1, 0.0),)},
        {"rungs": (SpotRung(0, 1.0),)},
    ],
    ids=str,
)
def test_amounts_out_of_range_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidSettings) as caught:
        view(**changes)
    assert caught.value.hint


def test_uniform_progress_follows_the_line() -> None:
    policy = UniformProgress(8)
    job = view(steps_left=5000)  # 10,000 s on 8 workers, 20,000 s are left
    first = policy.decide(job, SpotMemory())
    assert (first.spot_target, first.on_demand_target) == (0, 0)
    behind = policy.decide(msgspec.structs.replace(job, now_seconds=1300.0), first.memory)
    assert behind.on_demand_target == 8 and "behind" in behind.reason
    # 300 s later 75 steps are due; two cold starts ahead are 180 more.
    on_line = msgspec.structs.replace(job, now_seconds=1300.0, steps_left=4900, on_demand_ready=8)
    assert policy.decide(on_line, behind.memory).on_demand_target == 8
    ahead = policy.decide(msgspec.structs.replace(on_line, steps_left=4740), behind.memory)
    assert (ahead.spot_target, ahead.on_demand_target) == (0, 0)
    spot = policy.decide(msgspec.structs.replace(on_line, spot_offered=8), behind.memory)
    assert (spot.spot_target, spot.on_demand_target) == (8, 0)
    last = policy.decide(msgspec.structs.replace(job, now_seconds=10_300.0, spot_offered=8), spot.memory)
    assert last.on_demand_target == 8 and last.memory.for_good


def test_uniform_progress_needs_workers() -> None:
    with pytest.raises(InvalidSettings):
        UniformProgress(0)


def test_memory_is_stored_as_it_is() -> None:
    memory = WideSpot().decide(view(now_seconds=LAST), SpotMemory()).memory
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(memory), type=SpotMemory) == memory
    assert msgspec.json.decode(msgspec.json.encode(SpotMemory()), type=SpotMemory) == SpotMemory()


@pytest.mark.parametrize("policy", [WideSpot(), UniformProgress(4)])
def test_a_deadline_that_is_past_is_said_before_anything_is_measured(policy: SpotPolicy) -> None:
    past = policy.decide(view(rungs=(), now_seconds=VIEW.deadline_seconds), SpotMemory())
    assert past.late and past.reason.startswith("the deadline is past; ")
    assert not policy.decide(view(rungs=()), SpotMemory()).late
