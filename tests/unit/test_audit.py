"""The audit finds what was lost or done twice, and knows what stock samplers do of themselves."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_cli.audit import AuditResult, audit


@dataclass(frozen=True)
class Span:
    start: int
    end: int


@dataclass(frozen=True)
class Entry:
    epoch: int
    step: int
    virtual_rank: int
    range: Span
    samples: tuple[int, ...] = ()
    dataset: str = "d"
    attempt: int = 0


def lockstep(
    size: int,
    *,
    ests: int,
    batch: int,
    epochs: int = 1,
    drop_sampler: bool = False,
    drop_loader: bool = False,
    accumulation: int = 1,
) -> list[Entry]:
    """The history of a job without faults, by DistributedSampler's and DataLoader's rules.

    accumulation: mini-batches in a step; an epoch's rest makes a shorter one.
    """
    entries: list[Entry] = []
    step = 0
    for epoch in range(epochs):
        order = random.Random(epoch).sample(range(size), size)
        total = size // ests * ests if drop_sampler else -(-size // ests) * ests
        order = (order * (1 + total // size))[:total]
        per_rank = [order[rank::ests] for rank in range(ests)]
        position = 0
        if drop_loader:
            per_rank = [mine[: len(mine) // batch * batch] for mine in per_rank]
        for start in range(0, len(per_rank[0]), batch * accumulation):
            parts = [mine[start : start + batch * accumulation] for mine in per_rank]
            for rank, part in enumerate(parts):
                entries.append(Entry(epoch, step, rank, Span(position, position + len(part)), tuple(part)))
                position += len(part)
            step += 1
    return entries


@given(
    size=st.integers(1, 60),
    ests=st.integers(1, 5),
    batch=st.integers(1, 5),
    epochs=st.integers(1, 3),
    drop_sampler=st.booleans(),
    drop_loader=st.booleans(),
    accumulation=st.integers(1, 3),
)
def test_stock_histories_pass(
    size: int, ests: int, batch: int, epochs: int, drop_sampler: bool, drop_loader: bool, accumulation: int
) -> None:
    entries = lockstep(
        size,
        ests=ests,
        batch=batch,
        epochs=epochs,
        drop_sampler=drop_sampler,
        drop_loader=drop_loader,
        accumulation=accumulation,
    )
    result = audit(entries, ests=ests, dataset_sizes={"d": size})
    assert result.ok, result.violations
    for epoch in result.epochs:
        assert epoch.samples + epoch.dropped == size
        assert epoch.missing == epoch.duplicated == 0


@given(
    size=st.integers(8, 60),
    ests=st.integers(1, 4),
    batch=st.integers(1, 4),
    pick=st.integers(0, 10_000),
    fault=st.sampled_from(["lost", "doubled", "wrong epoch", "wrong samples"]),
)
def test_every_single_fault_is_found(size: int, ests: int, batch: int, pick: int, fault: str) -> None:
    size -= size % ests
    entries = lockstep(size, ests=ests, batch=batch)
    chosen = entries[pick % len(entries)]
    other = entries[(pick + 1) % len(entries)]
    if fault == "lost":
        entries.remove(chosen)
    elif fault == "doubled":
        entries.append(replace(chosen, step=chosen.step + 1000))
    elif fault == "wrong epoch":
        entries[entries.index(chosen)] = replace(chosen, epoch=1)
    else:
        entries[entries.index(chosen)] = replace(chosen, samples=other.samples[: len(chosen.samples)])
    # Without its last step an epoch of one EST looks like one whose loader drops the last batch.
    looks_dropped = fault == "lost" and ests == 1 and chosen.step == max(entry.step for entry in entries) + 1
    result = audit(entries, ests=ests, dataset_sizes={"d": size})
    assert not result.ok or looks_dropped


def test_replayed_steps_are_superseded_and_count_once() -> None:
    entries = lockstep(24, ests=2, batch=3)
    replayed = entries[:4] + entries[2:]
    result = audit(replayed, ests=2, steps_per_epoch=4, dataset_sizes={"d": 24})
    assert result.ok and result.superseded == 2 and result.entries == len(entries) + 2
    assert [(epoch.dataset, epoch.epoch, epoch.samples) for epoch in result.epochs] == [("d", 0, 24)]


def test_the_latest_run_of_a_task_stands() -> None:
    entries = lockstep(24, ests=2, batch=3)
    wrong = replace(entries[0], samples=(99, 98, 97))
    assert audit([wrong, *entries], dataset_sizes={"d": 24}).ok
    assert not audit([*entries, wrong], dataset_sizes={"d": 24}).ok


def test_an_epoch_in_progress_misses_nothing_yet() -> None:
    entries = lockstep(24, ests=2, batch=3)[:4]
    result = audit(entries, ests=2, steps_per_epoch=4, dataset_sizes={"d": 24})
    assert result.ok and not result.epochs[0].complete
    assert not audit(entries, ests=2, dataset_sizes={"d": 24}).ok


def test_a_step_without_all_ranks_is_found_in_an_epoch_in_progress() -> None:
    entries = lockstep(24, ests=2, batch=3)[:3]
    result = audit(entries, ests=2, steps_per_epoch=4)
    assert "without all 2 virtual ranks" in _only(result)


def test_an_epoch_that_is_over_needs_all_its_steps() -> None:
    entries = [entry for entry in lockstep(24, ests=2, batch=3, epochs=2) if entry.step != 3]
    result = audit(entries, ests=2, steps_per_epoch=4)
    assert any("3 steps committed, expected 4" in text for text in result.violations)


def test_ranks_that_read_the_same_batch_are_found_without_the_size() -> None:
    entries = [
        replace(entry, samples=tuple(range(entry.step * 3, entry.step * 3 + 3)))
        for entry in lockstep(24, ests=4, batch=3)
    ]
    result = audit(entries)
    assert result.duplicated == 6 and not result.ok


def dynamic(count: int, *, size: int = 5) -> list[Entry]:
    return [Entry(0, index, 0, Span(index * size, index * size + size), attempt=1) for index in range(count)]


def test_a_dynamic_dataset_in_any_order() -> None:
    entries = dynamic(6)
    random.Random(0).shuffle(entries)
    result = audit(entries, tasks_per_epoch={"d": 6})
    assert result.ok and result.epochs[0].samples == 30


def test_a_dynamic_dataset_in_progress_has_gaps() -> None:
    entries = [entry for entry in dynamic(6) if entry.step not in (1, 4)]
    assert audit(entries, tasks_per_epoch={"d": 6}).ok
    result = audit(entries)
    assert result.missing == 10 and not result.ok
    result = audit([*dynamic(6), Entry(1, 0, 0, Span(0, 5), attempt=1)], tasks_per_epoch={"d": 6})
    assert result.ok


def test_a_dynamic_task_done_twice_is_a_fault() -> None:
    entries = dynamic(6)
    result = audit([*entries, replace(entries[2], attempt=2)], tasks_per_epoch={"d": 6})
    assert "1 task (2) done more than once" in _only(result)


def test_overlapping_ranges_are_named() -> None:
    entries = [*dynamic(2), Entry(0, 2, 0, Span(8, 15), attempt=1)]
    result = audit(entries, tasks_per_epoch={"d": 3})
    assert result.duplicated == 2 and result.epochs[0].named == (8, 9)


def test_a_huge_gap_costs_no_memory() -> None:
    result = audit([Entry(0, 0, 0, Span(10**12, 10**12 + 1), attempt=1)])
    assert result.missing == 10**12


def test_nothing_committed() -> None:
    result = audit([])
    assert result.ok and result.entries == 0


def test_strangers_are_named() -> None:
    entries = lockstep(12, ests=2, batch=3)
    result = audit(entries, dataset_sizes={"d": 11})
    assert "1 sample (11) not of the dataset" in _only(result)


def _only(result: AuditResult) -> str:
    if len(result.violations) != 1:
        pytest.fail(f"one violation expected: {result.violations}")
    return result.violations[0]
