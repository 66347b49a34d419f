"""DONE minus applied, and applied minus DONE, against sets of names."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from elastane_shards.intervals import IntervalSet
from elastane_slots.applied import AppliedSet
from elastane_slots.reopening import DoneTasks, missing, surplus
from elastane_slots.tasks import TaskName, TaskRun

TASKS = 5


def names(runs: Iterable[TaskRun]) -> list[TaskName]:
    return [TaskName(run.dataset, run.epoch, i) for run in runs for i in range(run.start, run.end)]


def intervals(indices: Iterable[int]) -> IntervalSet:
    return IntervalSet((index, index + 1) for index in indices)


INDICES = st.sets(st.integers(0, TASKS - 1))


@settings(max_examples=300, deadline=None)
@given(
    epoch=st.integers(0, 4),
    done=INDICES,
    not_done=st.dictionaries(st.integers(0, 3), INDICES, max_size=3),
    holes=st.dictionaries(st.integers(0, 5), INDICES, max_size=4),
    applied_epochs=st.integers(0, 6),
    tasks=st.sampled_from([TASKS, TASKS - 1]),
)
def test_both_are_differences_of_sets(
    epoch: int,
    done: set[int],
    not_done: dict[int, set[int]],
    holes: dict[int, set[int]],
    applied_epochs: int,
    tasks: int,
) -> None:
    known = DoneTasks(
        "a", epoch, intervals(done), tasks, {number: intervals(some) for number, some in not_done.items()}
    )
    done_names = {TaskName("a", epoch, index) for index in done} | {
        TaskName("a", before, index)
        for before in range(epoch)
        for index in range(tasks)
        if index not in not_done.get(before, set())
    }
    applied, applied_names = AppliedSet(), set()
    applied.add_run(TaskRun("b", 0, 0, 9))  # another data set
    for number in range(applied_epochs):
        for index in set(range(TASKS)) - holes.get(number, set()):
            applied.add(TaskName("a", number, index))
            applied_names.add(TaskName("a", number, index))
    for sets in (applied, applied.copy()):  # what was read is folded otherwise
        assert names(missing(known, sets)) == sorted(done_names - applied_names)
        assert names(surplus(known, sets)) == sorted(applied_names - done_names)
    every = [TaskName("a", e, i) for e in range(-1, 7) for i in range(-1, TASKS + 1)]
    assert {name for name in every if name in known} == done_names
    assert TaskName("b", 0, 0) not in known


def test_a_slot_without_a_snapshot_misses_everything() -> None:
    known = DoneTasks("a", 2, intervals([0, 1]), 3, {0: intervals([1])})
    assert list(missing(known, AppliedSet())) == [
        TaskRun("a", 0, 0, 1),
        TaskRun("a", 0, 2, 3),
        TaskRun("a", 1, 0, 3),
        TaskRun("a", 2, 0, 2),
    ]


def test_a_million_epochs_are_not_looked_at_one_by_one() -> None:
    applied = AppliedSet.decode(_stored_even(10**6))
    known = DoneTasks("a", 10**6, intervals([0]), 7)
    assert list(missing(known, applied)) == [TaskRun("a", 10**6, 0, 1)]
    assert list(surplus(known, applied)) == []


def _stored_even(epochs: int) -> bytes:
    """The stored form of a set in which each of these epochs has the tasks 0..6."""
    import msgspec

    return msgspec.msgpack.encode([1, [["a", [[0, epochs, 7]], []]]])


def test_before_anything_is_done_nothing_is_missing() -> None:
    known = DoneTasks("a", 0, IntervalSet(), 0)
    assert list(missing(known, AppliedSet())) == list(surplus(known, AppliedSet())) == []
