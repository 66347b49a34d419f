"""Compares an elastic and a stock run bit for bit: fingerprints and loss series."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastane.audit import AuditResult, audit
from elastane_proto.v1 import shard_pb2

PARTS = ("weights", "optimizer", "buffers", "extras")


@dataclass(frozen=True)
class Row:
    """One item compared: sha256 on both sides."""

    name: str
    elastic: str
    stock: str

    @property
    def equal(self) -> bool:
        return bool(self.elastic) and self.elastic == self.stock


@dataclass(frozen=True)
class Comparison:
    """The verdict on one pair of runs. losses: number of (step, EST) values compared."""

    rows: tuple[Row, ...]
    losses: int
    audit: AuditResult

    @property
    def equal(self) -> bool:
        return all(row.equal for row in self.rows) and self.audit.ok and self.losses > 0


def compare_runs(
    elastic_reports: Path,
    stock_reports: Path,
    history: Sequence[shard_pb2.AuditEntry],
    *,
    ests: int,
    dataset_size: int | None = None,
    steps_per_epoch: int | None = None,
    metric: str = "loss",
) -> Comparison:
    """Compare the leader's report with rank 0's, and the committed losses with those logged by every rank.

    history: the whole audit log of the elastic run. Raises FileNotFoundError if a report is missing.
    """
    leader = leader_report(elastic_reports)
    stock = [json.loads((stock_reports / f"ddp-{rank}.json").read_text()) for rank in range(ests)]
    rows = [Row(part, leader["fingerprint"][part], stock[0]["fingerprint"][part]) for part in PARTS]
    elastic_losses = standing_metric(history, metric)
    stock_losses = {
        (step, rank): values[metric]
        for rank in range(ests)
        for step, values in enumerate(stock[rank]["logged"])
    }
    rows.append(Row("losses", _series_sha256(elastic_losses), _series_sha256(stock_losses)))
    result = audit(
        history,
        ests=ests,
        steps_per_epoch=steps_per_epoch,
        dataset_sizes={entry.dataset: dataset_size for entry in history} if dataset_size else None,
    )
    return Comparison(tuple(rows), len(elastic_losses), result)


def leader_report(reports: Path) -> dict[str, dict[str, str]]:
    """Return the report of the worker that hosted EST 0 at the end."""
    found = [json.loads(path.read_text()) for path in sorted(reports.glob("elastic-*.json"))]
    leaders = [report for report in found if report["leader"]]
    if not leaders:
        raise FileNotFoundError(f"no report of a leader in {reports}")
    chosen: dict[str, dict[str, str]] = leaders[-1]
    return chosen


def standing_metric(history: Iterable[shard_pb2.AuditEntry], metric: str) -> dict[tuple[int, int], float]:
    """Return the values of the standing history: (step, virtual rank) -> value; the latest entry wins."""
    return {
        (entry.step, entry.virtual_rank): entry.metrics[metric]
        for entry in history
        if metric in entry.metrics
    }


def _series_sha256(series: dict[tuple[int, int], float]) -> str:
    """Return the sha256 over (step, rank, float64) in order."""
    digest = hashlib.sha256()
    for (step, rank), value in sorted(series.items()):
        digest.update(struct.pack("<qqd", step, rank, value))
    return digest.hexdigest()
