"""What two runs left is compared bit for bit, and the history of the elastic one is audited."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from elastane_cli.rehearse.results import (
    ResultError,
    audit_history,
    compare_outcomes,
    read_elastic,
    read_stock,
)
from elastane_cli.verify.causes import audit_cause, likely_cause, steps_cause
from elastane_proto.v1 import shard_pb2

FINGERPRINT = {"weights": "aa", "optimizer": "bb", "buffers": "cc"}


def write_stock(folder: Path, logged: list[list[dict[str, float]]], fingerprint: dict[str, str]) -> None:
    for rank, values in enumerate(logged):
        report = {"rank": rank, "step": len(values), "fingerprint": fingerprint, "logged": values}
        (folder / f"ddp-{rank}.json").write_text(json.dumps(report))


def history(losses: list[list[float]], steps_per_epoch: int = 2) -> list[shard_pb2.AuditEntry]:
    """Entries in the order of commits: losses[step][rank]; each task has one sample of its own."""
    entries = []
    for step, row in enumerate(losses):
        epoch, place = divmod(step, steps_per_epoch)
        for rank, loss in enumerate(row):
            entry = shard_pb2.AuditEntry(epoch=epoch, step=step, virtual_rank=rank, metrics={"loss": loss})
            position = place * len(row) + rank
            entry.range.start, entry.range.end = position, position + 1
            entry.samples.append(position)
            entries.append(entry)
    return entries


def write_elastic(folder: Path, steps: int, fingerprint: dict[str, str], leader: bool = True) -> None:
    report = {"worker": "w1", "leader": leader, "step": steps, "fingerprint": fingerprint}
    (folder / "elastic-w1.json").write_text(json.dumps(report))


LOSSES = [[0.1, 0.2], [math.nan, -0.0], [0.5, 0.6], [0.7, 0.8]]
BY_RANK = [[{"loss": row[rank]} for row in LOSSES] for rank in range(2)]


def test_equal_runs_are_equal_not_a_number_included(tmp_path: Path) -> None:
    write_stock(tmp_path, BY_RANK, FINGERPRINT)
    write_elastic(tmp_path, 4, FINGERPRINT)
    comparison = compare_outcomes(read_stock(tmp_path, 2), read_elastic(tmp_path, history(LOSSES), 2))
    assert comparison.equal and comparison.differing == [] and comparison.values == 8


def test_a_replayed_step_counts_once_with_its_last_value(tmp_path: Path) -> None:
    write_stock(tmp_path, BY_RANK, FINGERPRINT)
    write_elastic(tmp_path, 4, FINGERPRINT)
    replayed = history([[9.0, 9.0]]) + history(LOSSES)
    assert compare_outcomes(read_stock(tmp_path, 2), read_elastic(tmp_path, replayed, 2)).equal


def test_what_differs_is_named(tmp_path: Path) -> None:
    write_stock(tmp_path, BY_RANK, FINGERPRINT)
    write_elastic(tmp_path, 3, {**FINGERPRINT, "buffers": "cd", "extras": "ee"})
    stock = read_stock(tmp_path, 2)
    zero = [row.copy() for row in LOSSES]
    zero[1][1] = 0.0  # not the bits of -0.0
    found = read_elastic(tmp_path, history(zero), 2)
    assert compare_outcomes(stock, found).differing == ["steps", "buffers", "extras", "logged values"]


def test_a_lost_task_is_found_in_the_history(tmp_path: Path) -> None:
    write_stock(tmp_path, BY_RANK, FINGERPRINT)
    write_elastic(tmp_path, 4, FINGERPRINT)
    entries = history(LOSSES)
    del entries[3]
    found = read_elastic(tmp_path, entries, 2)
    differing = compare_outcomes(read_stock(tmp_path, 2), found).differing
    assert differing == ["logged values", "audit"]
    cause = audit_cause(found.audit.violations)
    assert cause.ours and "without all 2 virtual ranks" in cause.text


def test_an_epoch_cut_short_is_no_fault() -> None:
    assert audit_history(history(LOSSES[:3]), 2).ok
    assert audit_history(history(LOSSES[:1]), 2).ok
    assert not audit_history(history(LOSSES)[1:], 2).ok


def test_runs_without_a_result_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="rank 0 of the reference left no result"):
        read_stock(tmp_path, 2)
    write_stock(tmp_path, [BY_RANK[0], BY_RANK[1][:-1]], FINGERPRINT)
    with pytest.raises(ResultError, match="made 3, 4 steps"):
        read_stock(tmp_path, 2)
    with pytest.raises(ResultError, match="no worker left a result"):
        read_elastic(tmp_path, [], 2)
    write_elastic(tmp_path, 4, FINGERPRINT, leader=False)
    with pytest.raises(ResultError, match="no worker left a result"):
        read_elastic(tmp_path, [], 2)


def test_causes_where_nothing_traced_differs() -> None:
    assert likely_cause(None).kind == "after the last step"
    assert likely_cause(None, by_itself=True).kind == "untraced"
    assert "made 4 steps, the elastic run 6" in steps_cause("4", "6").text
