"""What D2 would gain or cost a job that is bound to one device type."""

from __future__ import annotations

import pytest

from elastane_scheduler.job_plan import JobPlan, WorkerSpeed, job_plan
from elastane_scheduler.mixing import Level, Other, kinds_at, mixtures, obstacle_at_d2

FAST, SLOW = "AMD EPYC 9654", "AMD EPYC 7742"


def plan(ests: int = 8, workers: int = 2, ests_max: int = 0) -> JobPlan:
    """A job that needs 0.1 s for an EST on FAST, and 0.05 s of a step for all else."""
    each = -(-ests // workers)
    one = WorkerSpeed(FAST, each, 3, workers, 0.1, 0.01, 31, 0.1 * each + 0.05, 9, ests_max)
    return job_plan(ests, [one] * workers)


def test_devices_of_another_type_take_a_part_of_the_ests() -> None:
    (found,) = mixtures(plan(), [Other(FAST, 4, 0.1), Other(SLOW, 2, 0.2)])
    # Alone four ESTs on each worker; with the slow ones 3 + 3 + 1 + 1.
    assert found.step_seconds == pytest.approx(0.35)
    assert found.speedup == pytest.approx(0.45 / 0.35)
    assert found.cost_max == pytest.approx(0.4 / 0.3)
    assert found.obstacle == ""


def test_d2_slows_computing_down_and_not_the_scripts_code_after_it() -> None:
    one = WorkerSpeed(FAST, 4, 3, 2, 0.1, 0.01, 31, 0.85, 9, after_est_seconds=0.1)
    (found,) = mixtures(job_plan(8, [one] * 2), [Other(SLOW, 2, 0.2)])
    # Alone four ESTs on each worker; with the slow ones 3 + 3 + 1 + 1: 0.6 s for three.
    assert found.step_seconds == pytest.approx(0.65)
    assert found.cost_max is not None
    costs = [max(3 * (cost * 0.1 + 0.1), cost * 0.2 + 0.1) for cost in (1.0, found.cost_max)]
    assert costs[0] == pytest.approx(0.6) and 0.7 < costs[1] <= 0.8


def test_where_nothing_is_gained_d2_only_costs() -> None:
    (found,) = mixtures(plan(), [Other(SLOW, 8, 10.0)])
    assert found.cost_max == 1.0 and found.speedup == pytest.approx(1.0)


def test_what_is_not_known_is_not_guessed() -> None:
    (found,) = mixtures(plan(), [Other(SLOW, 2, None)])
    assert (found.step_seconds, found.speedup, found.cost_max, found.obstacle) == (None, None, None, "")
    assert mixtures(job_plan(8, []), [Other(SLOW, 2, 0.2)]) == []


def test_limits_of_memory_hold() -> None:
    (found,) = mixtures(plan(8, 4, ests_max=2), [Other(SLOW, 1, 0.05)])
    assert found.step_seconds == pytest.approx(0.25) and found.cost_max == 1.0
    (found,) = mixtures(plan(8, 4, ests_max=2), [Other(SLOW, 1, 0.025)])
    assert found.step_seconds == pytest.approx(0.15) and found.cost_max == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA A100", "GPUs of different models"),
        ("Tesla T4", FAST, "a GPU and a processor"),
        ("Intel(R) Xeon(R) Platinum 8480", FAST, "two vendors"),
        (SLOW, FAST, ""),
        ("aarch64 CPU", "Neoverse-N1", ""),
    ],
)
def test_what_may_not_train_together_at_d2_says_why(one: str, other: str, words: str) -> None:
    assert words in obstacle_at_d2(one, other) and bool(obstacle_at_d2(one, other)) == bool(words)
    assert obstacle_at_d2(other, one) == obstacle_at_d2(one, other)


INTEL, OTHER_INTEL = "Intel(R) Xeon(R) Platinum 8480", "Intel(R) Xeon(R) E5-2680"
H100, A100, INSTINCT = "NVIDIA H100 80GB HBM3", "NVIDIA A100", "AMD Instinct MI300X"
UNKNOWN = "Neoverse-N1"


@pytest.mark.parametrize(
    ("level", "together"),
    [
        ("d1", []),
        ("d2", [{FAST, SLOW}, {INTEL, OTHER_INTEL}]),
        ("d0", [{FAST, SLOW, INTEL, OTHER_INTEL, UNKNOWN}, {H100, A100, INSTINCT}]),
    ],
)
def test_which_types_are_planned_for_one_job(level: Level, together: list[set[str]]) -> None:
    types = (FAST, H100, SLOW, INTEL, A100, INSTINCT, OTHER_INTEL, UNKNOWN)
    kinds = kinds_at(level, types)
    for one, its in zip(types, kinds, strict=True):
        for other, others in zip(types, kinds, strict=True):
            assert (its == others) is (one == other or any({one, other} <= group for group in together))
            if level == "d2" and its == others and one != other:
                assert not obstacle_at_d2(one, other), "what is planned may be carried out"
