"""AppliedSet against a set of names, its one form, and its size."""

from __future__ import annotations

import random
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane_shards.errors import InvalidRequest, InvalidSnapshot
from elastane_slots import applied as applied_module
from elastane_slots.applied import AppliedSet, add_to_all, in_all
from elastane_slots.tasks import TaskName, TaskRun

MIB = 2**20
RUNS = st.builds(
    lambda dataset, epoch, start, length: TaskRun(dataset, epoch, start, start + length),
    st.sampled_from(["a", "b"]),
    st.integers(0, 5),
    st.sampled_from([0, 0, 0, 1, 2, 3, 5]),
    st.integers(0, 4),
)


def names(run: TaskRun) -> set[TaskName]:
    return {TaskName(run.dataset, run.epoch, index) for index in range(run.start, run.end)}


@settings(max_examples=300, deadline=None)
@given(st.lists(RUNS, max_size=25))
def test_it_is_a_set_of_names(runs: list[TaskRun]) -> None:
    applied, model = AppliedSet(), set[TaskName]()
    for run in runs:
        assert applied.add_run(run) == len(names(run) - model)
        model |= names(run)
        applied.validate()
    assert len(applied) == applied.count == len(model)
    every = {TaskName(d, e, i) for d in ("a", "b", "c") for e in range(-1, 7) for i in range(-1, 12)}
    assert {name for name in every if name in applied} == model
    told = [name for run in applied.runs() for name in sorted(names(run))]
    assert told == sorted(model)
    for dataset in ("a", "b", "c"):
        assert applied.newest_epoch(dataset) == max(
            (n.epoch for n in model if n.dataset == dataset), default=-1
        )
        for epoch in range(6):
            here = {name.task for name in model if (name.dataset, name.epoch) == (dataset, epoch)}
            assert set(applied.tasks(dataset, epoch)) == here
            end = applied.even_until(dataset, epoch, len(here))
            for even in range(epoch, end):
                assert set(applied.tasks(dataset, even)) == set(range(len(here)))


@settings(max_examples=200, deadline=None)
@given(st.lists(RUNS, max_size=15), st.randoms(use_true_random=False))
def test_equal_sets_have_equal_bytes_however_they_came(runs: list[TaskRun], rng: random.Random) -> None:
    applied = AppliedSet()
    for run in runs:
        applied.add_run(run)
    singly = [name for run in runs for name in names(run)]
    rng.shuffle(singly)
    again = AppliedSet()
    for name in singly:
        again.add(name)
    assert again == applied
    read = AppliedSet.decode(applied.encode())
    assert read.encode() == applied.encode() == applied.copy().encode()
    for run in runs:  # what was read can be added to
        read.add_run(TaskRun(run.dataset, run.epoch, run.end, run.end + 1))
        read.validate()
        assert all(name in read for name in names(run))


def test_adding_again_changes_nothing() -> None:
    applied = AppliedSet()
    for epoch in range(3):
        applied.add_run(TaskRun("a", epoch, 0, 10))
    before = applied.encode()
    assert not applied.add(TaskName("a", 1, 4))
    assert applied.encode() == before


@pytest.mark.parametrize("run", [("a", -1, 0, 1), ("a", 0, -1, 1), ("a", 0, 3, 2)])
def test_names_that_no_task_has_are_refused(run: tuple[str, int, int, int]) -> None:
    applied = AppliedSet()
    with pytest.raises(InvalidRequest):
        applied.add_run(TaskRun(*run))
    assert applied == AppliedSet()


def forms() -> dict[str, object]:
    return {
        "another version": [9, []],
        "two of one name": [1, [["a", [[0, 1, 3]], []], ["a", [], []]]],
        "even epochs that overlap": [1, [["a", [[0, 2, 3], [1, 4, 5]], []]]],
        "even epochs without tasks": [1, [["a", [[0, 2, 0]], []]]],
        "an epoch twice": [1, [["a", [[0, 2, 3]], [[1, [4, 2]]]]]],
        "a negative epoch": [1, [["a", [], [[-1, [4, 2]]]]]],
        "runs that touch": [1, [["a", [], [[0, [4, 2, 0, 2]]]]]],
        "half a run": [1, [["a", [], [[0, [4]]]]]],
        "an epoch without names": [1, [["a", [], [[0, []]]]]],
        "an even epoch with gaps": [1, [["a", [], [[0, [0, 5]]]]]],
        "even epochs apart": [1, [["a", [[0, 1, 3], [1, 2, 3]], []]]],
        "no list": {"a": 1},
    }


@pytest.mark.parametrize("form", forms())
def test_forms_that_are_not_written_are_not_read(form: str) -> None:
    with pytest.raises(InvalidSnapshot):
        AppliedSet.decode(msgspec.msgpack.encode(forms()[form]))


def test_no_prefix_is_read() -> None:
    applied = AppliedSet()
    applied.add_run(TaskRun("a", 0, 3, 400))
    whole = applied.encode()
    for length in range(len(whole)):
        with pytest.raises(InvalidSnapshot):
            AppliedSet.decode(whole[:length])


SLOTS, EPOCHS, TASKS = 64, 100, 1_000_000
IN_FLIGHT, FAILED = 500, 1_000


def train(failed_per_epoch: int) -> AppliedSet:
    """10^8 tasks, finished in the disorder of 500 in flight; the last epoch is still under way."""
    rng, applied = random.Random(5), AppliedSet()
    for epoch in range(EPOCHS):
        holes = sorted(rng.sample(range(TASKS), failed_per_epoch))
        starts = [0, *(hole + 1 for hole in holes)]
        for start, end in zip(starts, [*holes, TASKS], strict=True):
            applied.add_run(TaskRun("clicks", epoch, start, end))
    for index in rng.sample(range(10_000, 10_000 + 2 * IN_FLIGHT), IN_FLIGHT):
        applied.add(TaskName("clicks", EPOCHS, index))
    return applied


def bytes_of(failed_per_epoch: int) -> tuple[int, int]:
    """Size of the sets of all slots, stored and in memory; they are alike."""
    tracemalloc.start()
    try:
        applied = train(failed_per_epoch)
        in_memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert applied.count == EPOCHS * (TASKS - failed_per_epoch) + IN_FLIGHT
    return SLOTS * len(applied.encode()), SLOTS * in_memory


def test_the_sets_of_all_slots_take_less_than_a_mebibyte_after_100_million_tasks() -> None:
    """With a thousand FAILED tasks among them."""
    stored, in_memory = bytes_of(FAILED // EPOCHS)
    assert stored < MIB
    assert in_memory < SLOTS * MIB


def test_without_failed_tasks_they_take_little_memory_too() -> None:
    stored, in_memory = bytes_of(0)
    assert stored < MIB / 4
    assert in_memory < 2 * MIB


SETS = st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(SETS, RUNS, st.booleans()), max_size=30), st.integers(1, 4))
def test_sets_that_share_their_names_are_sets_of_their_own(
    steps: list[tuple[list[int], TaskRun, bool]], every: int
) -> None:
    """together: by `add_to_all`, else one by one. A set that is left alone is dropped, and begins anew."""
    sets, models = [AppliedSet() for _ in range(5)], [set[TaskName]() for _ in range(5)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(applied_module, "_SHARE_COUNTS", every)
        for chosen, run, together in steps:
            name = TaskName(run.dataset, run.epoch, run.start)
            if together:
                is_new = all(name not in models[number] for number in chosen)
                assert add_to_all([sets[number] for number in chosen], name) == is_new
                if not is_new:
                    continue
            elif len(chosen) == 5:
                sets[chosen[0]], models[chosen[0]] = AppliedSet(), set()
            for number in chosen:
                if not together:
                    sets[number].add(name)
                models[number].add(name)
            for one, model in zip(sets, models, strict=True):
                one.validate()
                assert {n for run in one.runs() for n in names(run)} == model and one.count == len(model)
            assert in_all(sets, name) == [(name in model, len(model)) for model in models]


def test_slots_that_apply_the_same_share_one_set() -> None:
    sets = [AppliedSet() for _ in range(64)]
    for task in range(10):
        assert add_to_all(sets, TaskName("a", 0, task))
    assert len({id(one._names) for one in sets}) == 1
    sets[3].add(TaskName("a", 0, 50))
    assert sets[3].count == 11 and {one.count for one in sets if one is not sets[3]} == {10}
    with pytest.raises(InvalidRequest):
        add_to_all(sets, TaskName("a", -1, 0))
    assert not add_to_all(sets, TaskName("a", 0, 50)) and sets[0].count == 10
    add_to_all([*sets[:3], *sets[4:]], TaskName("a", 0, 50))
    for task in range(100, 100 + 256):
        add_to_all(sets, TaskName("a", 0, task))
    assert len({id(one._names) for one in sets}) == 1  # equal again, and found to be


def test_a_set_that_changes_while_another_leaves_it_gives_that_none_of_its_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a lock of its own; one name too many would be answered as applied before, and be lost."""
    one, other = AppliedSet(), AppliedSet()
    for task in range(257):
        assert add_to_all([one, other], TaskName("a", 0, task))
    assert id(one._names) == id(other._names)
    copied = applied_module._Epochs

    def meanwhile() -> applied_module._Epochs:
        monkeypatch.setattr(applied_module, "_Epochs", copied)
        other.add(TaskName("a", 0, 999))  # as a thread that runs in the middle of the copy
        return copied()

    monkeypatch.setattr(applied_module, "_Epochs", meanwhile)
    one.add(TaskName("a", 0, 500))
    assert TaskName("a", 0, 999) not in one and TaskName("a", 0, 500) not in other
    assert one.count == other.count == 258
