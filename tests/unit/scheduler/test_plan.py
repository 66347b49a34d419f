"""Plans against brute force: step times, cheap devices, the ladder, EasyScale's identity."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.plan import Shape, ladder, waste

CASES = 2_000


def random_case(rng: random.Random) -> tuple[int, list[float], tuple[int, ...], list[int]]:
    types = rng.randint(1, 3)
    ests = rng.randint(1, 12)
    seconds = [rng.choice([0.1, 0.2, 0.3, 0.25, 0.7, rng.uniform(0.05, 2)]) for _ in range(types)]
    devices = tuple(rng.randint(0, 4) for _ in range(types))
    limits = [rng.choice([ests, rng.randint(0, ests), ests]) for _ in range(types)]
    return ests, seconds, devices, limits


def brute_step(ests: int, seconds: list[float], devices: tuple[int, ...], limits: list[int]) -> float:
    """The least, over all ways to deal ESTs out to single devices, of the longest device."""
    singles = [(c, m) for c, n, m in zip(seconds, devices, limits, strict=True) for _ in range(n)]
    best = {0: 0.0}
    for c, most in singles:
        after: dict[int, float] = {}
        for given, longest in best.items():
            for share in range(min(most, ests - given) + 1):
                value = max(longest, share * c)
                after[given + share] = min(value, after.get(given + share, math.inf))
        best = after
    return best.get(ests, math.inf)


def least_step(
    ests: int, seconds: Sequence[float], devices: tuple[int, ...], limits: Sequence[int] = ()
) -> float:
    """The shortest step of a job that has these devices; infinite if they cannot train it."""
    shape = Shape(ests, tuple(seconds), tuple(limits))
    level = shape.level(devices)
    return math.inf if level is None else shape.levels[level][0]


def test_step_times_are_those_of_brute_force() -> None:
    rng = random.Random(18)
    trainable = 0
    for _ in range(CASES):
        ests, seconds, devices, limits = random_case(rng)
        if not any(limits):
            continue
        expected = brute_step(ests, seconds, devices, limits)
        found = least_step(ests, seconds, devices, limits)
        trainable += expected < math.inf
        assert found == pytest.approx(expected, rel=1e-9), (ests, seconds, devices, limits)
    assert trainable > CASES / 2


def test_with_a_limit_of_devices_a_job_is_as_fast_as_on_so_many_and_takes_no_more() -> None:
    rng = random.Random(20)
    for _ in range(CASES):
        ests, most, free = rng.randint(1, 16), rng.randint(1, 16), rng.randint(0, 20)
        shape = Shape(ests, (0.5,), mixes=False, workers_max=most)
        taken = shape.widest((free,), (1.0,))
        if not free:
            assert taken is None
            continue
        assert taken is not None
        assert taken[0] <= min(most, free)
        assert shape.step_seconds(taken) == least_step(ests, (0.5,), (min(most, free),)), (ests, most, free)
    with pytest.raises(InvalidSettings, match="at most 1 workers, and at least 2"):
        Shape(4, (0.5,), workers_min=2, workers_max=1)


def test_chosen_devices_reach_the_level_and_none_is_surplus() -> None:
    rng = random.Random(19)
    for _ in range(CASES):
        ests, seconds, devices, limits = random_case(rng)
        if not any(limits):
            continue
        shape = Shape(ests, tuple(seconds), tuple(limits))
        level = shape.level(devices)
        if level is None:
            continue
        # Step times are those of brute force: the test above.
        prices = [rng.choice([1.0, 2.0, 3.0]) for _ in seconds]
        cheap = shape.devices_at(level, devices, prices)
        assert cheap is not None
        assert shape.step_seconds(cheap) <= shape.levels[level][0] * (1 + 1e-9)
        for i, count in enumerate(cheap):  # nothing in it is surplus
            fewer = tuple(n - (j == i) for j, n in enumerate(cheap))
            if count:
                assert shape.level(fewer) is None or shape.level(fewer) > level  # type: ignore[operator]


def test_waste_leaves_the_rate_of_the_plan() -> None:
    rng = random.Random(20)
    for _ in range(CASES):
        ests, seconds, devices, limits = random_case(rng)
        if not any(limits):
            continue
        shape = Shape(ests, tuple(seconds), tuple(limits))
        level = shape.level(devices)
        if level is not None:
            found = waste(shape, devices)
            assert found.rate == pytest.approx(ests / shape.levels[level][0], rel=1e-9)
            assert -1e-9 <= found.fraction < 1


@pytest.mark.parametrize(
    ("ests", "expected"),
    [
        (1, (1,)),
        (8, (1, 2, 3, 4, 8)),
        (12, (1, 2, 3, 4, 6, 12)),
        (16, (1, 2, 3, 4, 6, 8, 16)),
        (24, (1, 2, 3, 4, 5, 6, 8, 12, 24)),
        (64, (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 22, 32, 64)),
    ],
)
def test_ladder(ests: int, expected: tuple[int, ...]) -> None:
    assert ladder(ests) == expected
    shape = Shape(ests, (1.0,))
    steps = [shape.step_seconds((n,)) for n in range(1, ests + 1)]
    pays = [n for n in range(1, ests + 1) if n == 1 or steps[n - 1] < steps[n - 2]]
    assert ladder(ests) == tuple(pays)


def test_the_exchange_is_paid_by_two_and_more() -> None:
    shape = Shape(4, (1.0,), exchange_seconds=0.5, peer_seconds=0.1)
    assert shape.step_seconds((1,)) == 4.0
    assert shape.step_seconds((2,)) == pytest.approx(2.6)
    assert shape.step_seconds((4,)) == pytest.approx(1.8)


def test_a_gang_takes_its_least_number_or_nothing() -> None:
    shape = Shape(4, (1.0,), (4,), workers_min=3)
    assert shape.step_seconds((2,)) == math.inf
    assert shape.widest((2,), (1.0,)) is None
    assert shape.widest((3,), (1.0,)) == (3,)


def test_types_that_may_not_mix() -> None:
    shape = Shape(4, (1.0, 2.0), mixes=False)
    assert shape.step_seconds((2, 2)) == 2.0
    assert shape.widest((1, 4), (1.0, 1.0)) == (0, 4)
    assert shape.bound_to(1).step_seconds((4, 0)) == math.inf


def brute_kinds(
    ests: int,
    seconds: list[float],
    devices: tuple[int, ...],
    limits: list[int],
    kinds: tuple[int, ...],
    most: int,
) -> float:
    """The least over all choices of at most `most` devices of one kind."""
    return min(
        brute_step(ests, seconds, chosen, limits)
        for chosen in itertools.product(*(range(n + 1) for n in devices))
        if sum(chosen) <= most and len({kinds[i] for i, n in enumerate(chosen) if n}) <= 1
    )


def test_unlike_types_of_one_kind_train_together_within_the_most_devices_of_a_job() -> None:
    rng = random.Random(21)
    mixed = bounded = 0
    for _ in range(CASES // 2):
        ests, seconds, devices, limits = random_case(rng)
        if not any(limits) or sum(devices) > 7:
            continue
        kinds = tuple(rng.randint(0, 1) for _ in seconds)
        most = rng.choice([ests, rng.randint(1, ests)])
        shape = Shape(ests, tuple(seconds), tuple(limits), workers_max=most, kinds=kinds)
        level = shape.level(devices)
        found = math.inf if level is None else shape.levels[level][0]
        case = (ests, seconds, devices, limits, kinds, most)
        assert found == pytest.approx(brute_kinds(ests, seconds, devices, limits, kinds, most), rel=1e-9), (
            case
        )
        if level is None:
            continue
        taken = shape.devices_at(level, devices, [rng.choice([1.0, 2.0, 3.0]) for _ in seconds])
        assert taken is not None and sum(taken) <= most, case
        used = [i for i, count in enumerate(taken) if count]
        assert len({kinds[i] for i in used}) == 1, case
        assert brute_step(ests, seconds, taken, limits) == pytest.approx(found, rel=1e-9), case
        mixed += len(used) > 1
        bounded += sum(devices) > most
    assert mixed > 50 and bounded > 50


def test_a_job_is_bound_to_a_type_and_those_that_may_train_with_it() -> None:
    shape = Shape(6, (1.0, 2.0, 0.5), kinds=(0, 0, 1))
    assert shape.groups == ((0, 1), (2,))
    assert shape.step_seconds((2, 2, 0)) == 2.0 and shape.step_seconds((2, 2, 1)) == 2.0
    bound = shape.bound_to(1)
    assert bound.usable == (0, 1) and bound.step_seconds((2, 2, 6)) == 2.0
    assert shape.bound_to(2).widest((9, 9, 3), (1.0, 1.0, 1.0)) == (0, 0, 3)
    with pytest.raises(InvalidSettings, match="2 kinds of 3 device types"):
        Shape(6, (1.0, 2.0, 0.5), kinds=(0, 0))


def test_more_ests_than_devices_run_one_after_the_other() -> None:
    assert least_step(100, [0.5], (3,)) == 17.0


@pytest.mark.parametrize(
    ("ests", "seconds", "limits"),
    [
        (0, (1.0,), ()),
        (-1, (1.0,), ()),
        (2**63, (1.0,), ()),
        (1, (0.0,), ()),
        (1, (-1.0,), ()),
        (1, (math.nan,), ()),
        (1, (math.inf,), ()),
        (1, (1.0,), (-1,)),
    ],
)
def test_shapes_that_are_refused(ests: int, seconds: tuple[float, ...], limits: tuple[int, ...]) -> None:
    with pytest.raises(InvalidSettings) as refused:
        Shape(ests, seconds, limits)
    assert refused.value.hint
