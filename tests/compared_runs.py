"""An elastic run beside a stock run, each by the folder of its reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elastane_cli.rehearse.results import Comparison, compare_outcomes, read_elastic, read_stock
from elastane_proto.v1 import shard_pb2


def compare_runs(
    elastic_reports: Path,
    stock_reports: Path,
    history: Sequence[shard_pb2.AuditEntry],
    *,
    ests: int,
    steps_per_epoch: int | None = None,
    dataset_size: int | None = None,
) -> Comparison:
    """Compare them as the rehearsals do; arguments as of `read_elastic` and `read_stock`."""
    found = read_elastic(
        elastic_reports, history, ests, steps_per_epoch=steps_per_epoch, dataset_size=dataset_size
    )
    return compare_outcomes(read_stock(stock_reports, ests), found)
