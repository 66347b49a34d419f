"""Names of metrics: Prometheus' conventions, bounded labels, and the page that lists them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from elastane_common.observe import catalogue as agents
from elastane_common.observe.metric import Metric
from elastane_master.metrics import catalogue
from elastane_master.metrics.measures import CALL_SECONDS, Histogram

ROOT = Path(__file__).parents[3]
ALL = (*catalogue.METRICS, *agents.METRICS)
LABELS = {
    "job_name", "worker", "method", "code", "reason", "phase", "stage", "state", "queue", "cause", "kind",
    "outcome", "direction", "use", "capacity", "currency", "route", "version", "protocol", "python",
    "device", "verdict",
}  # fmt: skip
"""Of these `job_name` and `worker` have as many values as there are jobs and local workers, `currency`
one for each job, `device` at most 65 for each, all others a fixed set."""


def faults_of(name: str, kind: str, text: str, labels: tuple[str, ...]) -> list[str]:
    """What promtool's linter would say, and what this project asks beyond it."""
    faults = []
    if not re.fullmatch(r"elastane(_[a-z0-9]+)+", name):
        faults.append("is not lower case with the project's prefix")
    if (kind == "counter") != name.endswith("_total"):
        faults.append("a counter ends with _total, and nothing else does")
    if re.search(r"_(count|sum|bucket|created)$", name):
        faults.append("ends like a part of a histogram")
    if re.search(r"_(counter|gauge|histogram|metric)(_|$)", name):
        faults.append("has its kind in its name")
    if re.search(
        r"_(ms|msec|millis\w*|micros\w*|minutes?|hours?|days?|kb|mb|gb|kib|mib|kilobytes|megabytes)(_|$)",
        name,
    ):
        faults.append("has a unit that is no base unit")
    unit = re.search(r"(?<!_per)_(second|byte)(_total)?$", name)
    if unit:
        faults.append("has its unit in the singular")
    if kind == "histogram" and not re.search(r"_(seconds|bytes|records|ratio|tasks)$", name):
        faults.append("is a histogram without a unit")
    if not text or not text.endswith(".") or len(text) > 160:
        faults.append("has no help of one sentence")
    faults += [f"has the unknown label {label}" for label in labels if label not in LABELS]
    return faults


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Metric) -> None:
    assert faults_of(metric.name, metric.kind, metric.help, metric.labels) == []


def test_the_check_finds_what_is_wrong() -> None:
    assert len(faults_of("elastane_step_milliseconds", "histogram", "x", ("user",))) == 4
    assert faults_of("elastane_steps", "counter", "Steps.", ()) != []
    assert faults_of("elastane_steps_total", "gauge", "Steps.", ()) != []
    assert faults_of("step_seconds", "gauge", "Steps.", ()) != []


def test_no_name_is_given_twice_and_no_label_is_one_of_prometheus_own() -> None:
    names = [metric.name for metric in ALL]
    assert len(set(names)) == len(names)
    assert {label for metric in ALL for label in metric.labels} & {
        "job",
        "instance",
        "le",
        "quantile",
    } == set()
    assert {label for metric in ALL for label in metric.labels} == LABELS


def test_the_page_lists_every_metric() -> None:
    path = ROOT / "tools" / "metrics_page.py"
    spec = importlib.util.spec_from_file_location("metrics_page", path)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = ROOT / "docs" / "metrics.md"
    assert page.read_text() == tool.updated(page.read_text()), f"run python {path.relative_to(ROOT)}"


def test_histograms_count_up_to_and_with_their_bounds() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.2, 1.0, 7.0):
        histogram.observe(value)
    told = histogram.distribution()
    assert told.buckets == [("0.1", 2.0), ("1.0", 4.0), ("+Inf", 5.0)]
    assert told.sum == pytest.approx(8.35) and histogram.count == 5
    histogram.observe(0.0)
    assert told.buckets[0] == ("0.1", 2.0)  # a scrape in work does not change under its reader
    assert list(CALL_SECONDS) == sorted(CALL_SECONDS)
