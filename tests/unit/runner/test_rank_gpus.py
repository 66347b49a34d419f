"""GPUs of ranks: each has its own while there are enough, and finds it where its framework looks."""

from __future__ import annotations

import pytest

from elastane_runner.rank_gpus import gpus_for, seen_by

FOUR = ("0", "1", "2", "3")


def given(gpus: tuple[str, ...], slots: int, *slots_of_ranks: int) -> list[list[str]]:
    """The GPUs of ranks that begin one after the other."""
    found: list[list[str]] = []
    for one in slots_of_ranks:
        taken = [gpu for ranks in found for gpu in ranks]
        found.append(gpus_for(gpus, taken, slots=slots, slots_of_rank=one))
    return found


@pytest.mark.parametrize(
    ("slots", "slots_of_ranks", "gpus"),
    [
        (4, (1, 1, 1, 1), [["0"], ["1"], ["2"], ["3"]]),
        (4, (2, 1, 1), [["0", "1"], ["2"], ["3"]]),
        (2, (1, 1), [["0", "1"], ["2", "3"]]),
        (1, (1,), [["0", "1", "2", "3"]]),
        (3, (1, 1, 1), [["0"], ["1"], ["2"]]),
        (8, (1, 1, 1, 1, 1), [["0"], ["1"], ["2"], ["3"], ["0"]]),
        (8, (4, 4), [["0", "1"], ["2", "3"]]),
        (0, (1,), [["0", "1", "2", "3"]]),
    ],
)
def test_a_rank_has_the_gpus_that_its_slots_are_worth(
    slots: int, slots_of_ranks: tuple[int, ...], gpus: list[list[str]]
) -> None:
    assert given(FOUR, slots, *slots_of_ranks) == gpus


def test_the_gpus_of_a_rank_that_has_ended_are_given_again() -> None:
    assert gpus_for(FOUR, ["0", "1", "3"], slots=4, slots_of_rank=1) == ["2"]
    assert gpus_for(("GPU-b", "GPU-a"), ["GPU-b"], slots=2, slots_of_rank=1) == ["GPU-a"]
    assert gpus_for((), [], slots=2, slots_of_rank=1) == []


def test_a_local_rank_numbers_its_own_first_gpu() -> None:
    gpus = {4: ["2", "3"], 5: ["0", "1"], 7: ["5"]}
    seen = seen_by(5, gpus, numbers_by_local_rank=True)
    assert seen == ["2", "0", "5", "3", "1"]
    assert [seen[local_rank] for local_rank in range(3)] == [gpus[rank][0] for rank in (4, 5, 7)]
    assert seen_by(5, gpus, numbers_by_local_rank=False) == ["0", "1"]


def test_a_gpu_that_two_ranks_share_is_named_once() -> None:
    assert seen_by(0, {0: ["1"], 1: ["0"], 2: ["1"]}, numbers_by_local_rank=True) == ["1", "0"]
