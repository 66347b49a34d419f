"""Torchmetrics that a script registers: what they compute is what they compute on the ranks of DDP."""

from __future__ import annotations

from pathlib import Path

import pytest
import torchmetrics

from elastane.registry import Registry, RegistryError
from elastane.runtime.gathering import synchronize_by
from elastane_cli.verify.run import run_verify
from elastane_common.errors import StepError
from frameworks.beside import SCRIPTS


def test_metrics_over_all_ranks_have_the_bits_of_ddp(tmp_path: Path) -> None:
    result = run_verify(tmp_path / "proof", [str(SCRIPTS / "metrics.py")], ests=3, runs=1, kills=2, seed=7)
    assert result.equal, result.as_json()


def test_metrics_that_share_states_are_refused() -> None:
    metrics = torchmetrics.MetricCollection([torchmetrics.MeanMetric(), torchmetrics.SumMetric()])
    with pytest.raises(RegistryError, match="register each metric"):
        Registry().register("metrics", metrics)


def test_a_metric_that_synchronizes_in_every_step_is_refused() -> None:
    metric = torchmetrics.MeanMetric(dist_sync_on_step=True)
    with pytest.raises(StepError, match="dist_sync_on_step=True"):
        synchronize_by(metric, list)


def test_a_metric_without_values_goes_on_where_it_was() -> None:
    registry, metric = Registry(), torchmetrics.CatMetric()
    registry.register("seen", metric)
    empty = registry.capture()
    metric.update(3.0)
    full = registry.capture()
    registry.restore(empty)
    assert (metric.value, metric._update_count) == ([], 0)
    registry.restore(full)
    assert (metric.compute().tolist(), metric._update_count) == (3.0, 1)
