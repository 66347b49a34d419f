"""The whole demo: elastic training with faults, the same script under stock DDP, the comparison."""

from __future__ import annotations

import hashlib
import importlib.util
import statistics
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import elastane
from elastane_cli.audit import AuditResult
from elastane_cli.demo.picture import Picture
from elastane_cli.demo.scenario import Play, Recovery, median_step_seconds, recoveries, story
from elastane_cli.rehearse.cluster import local_cluster
from elastane_cli.rehearse.results import (
    PARTS,
    Comparison,
    Row,
    Values,
    compare_outcomes,
    read_elastic,
    read_stock,
)
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.errors import RefusedError
from elastane_proto.v1 import job_pb2

TRAINING_SAMPLES = 1536
BATCH_SIZE = 32


@dataclass(frozen=True)
class DemoResult:
    """Results of the demo. Durations are in seconds. rows: of the comparison table."""

    comparison: Comparison
    rows: tuple[Row, ...]
    recoveries: tuple[Recovery, ...]
    step_seconds: float
    elastic_seconds: float
    stock_seconds: float

    @property
    def equal(self) -> bool:
        return self.comparison.equal and self.comparison.values > 0

    @property
    def audit(self) -> AuditResult:
        assert self.comparison.audit is not None
        return self.comparison.audit

    def as_json(self) -> dict[str, object]:
        audit = self.audit
        return {
            "equal": self.equal,
            "sha256": {row.name: {"elastic": row.found, "stock": row.reference} for row in self.rows},
            "losses_compared": self.comparison.values,
            "audit": {
                "ok": audit.ok,
                "entries": audit.entries,
                "superseded": audit.superseded,
                "samples_per_epoch": [epoch.samples for epoch in audit.epochs],
                "violations": list(audit.violations),
            },
            "recoveries": [
                {"fault": r.text, "next_committed_step": r.step, "seconds": round(r.seconds, 3)}
                for r in self.recoveries
            ],
            "median_step_seconds": round(self.step_seconds, 4),
            "elastic_seconds": round(self.elastic_seconds, 1),
            "stock_seconds": round(self.stock_seconds, 1),
        }


def demo_script() -> Path:
    """Return digits_cnn.py: from the checkout that contains the package, or the wheel's copy.

    Raises RefusedError if there is neither, or if its dataset is not installed.
    """
    name = "digits_cnn.py"
    places = (
        Path(elastane.__file__).resolve().parents[2] / "examples" / name,
        Path(__file__).resolve().with_name(name),
    )
    script = next((place for place in places if place.exists()), None)
    if script is None:
        raise RefusedError(
            f"the demo's script, {name}, is not where Elastane was installed",
            hint="install it again: pip install --force-reinstall elastane",
        )
    if importlib.util.find_spec("sklearn") is None:
        raise RefusedError(
            "the demo trains on the digits of scikit-learn, which is not installed here",
            hint="pip install scikit-learn",
        )
    return script


def run_demo(folder: Path, console: Console, *, ests: int, epochs: int, data_workers: int) -> DemoResult:
    """Run both sides in `folder` and compare them. Raises ElastaneError if either cannot be run."""
    script = [str(demo_script()), "--epochs", str(epochs), "--batch-size", str(BATCH_SIZE)]
    script += ["--data-workers", str(data_workers)]
    steps_per_epoch = -(-TRAINING_SAMPLES // (ests * BATCH_SIZE))
    settings = job_pb2.JobSettings(ests=ests, workers_min=1, workers_max=ests, audit_samples=True)
    started = time.monotonic()
    with (
        local_cluster(folder / "elastic", settings, script) as cluster,
        Picture(console, ests, epochs * steps_per_epoch) as picture,
    ):
        picture.note(f"digits, {ests} logical workers, starting with 3 worker processes")
        for _ in range(3):
            cluster.add_worker()
        total_steps = epochs * steps_per_epoch
        cluster.on_job = picture.job
        play = Play(cluster, total_steps, picture.event, picture.fault, story(total_steps))
        play.run()
        history = list(cluster.client.audit_log(cluster.job))
        elastic_reports = cluster.reports
    elastic_seconds = time.monotonic() - started

    started = time.monotonic()
    with console.status(f"the same script under stock DDP(gloo) with {ests} processes"):
        stock_reports = run_stock_ddp(folder / "stock", script, processes=ests)
    stock_seconds = time.monotonic() - started

    reference = read_stock(stock_reports, ests)
    found = read_elastic(
        elastic_reports, history, ests, steps_per_epoch=steps_per_epoch, dataset_size=TRAINING_SAMPLES
    )
    comparison = compare_outcomes(reference, found)
    losses = Row("losses", _series_sha256(reference.values), _series_sha256(found.values))
    return DemoResult(
        comparison,
        (*(row for row in comparison.rows if row.name in PARTS), losses),
        tuple(recoveries(play.injected, history)),
        median_step_seconds(history),
        elastic_seconds,
        stock_seconds,
    )


def print_result(console: Console, result: DemoResult) -> None:
    """Print the result as a table."""
    table = Table(title="Elastane under churn beside stock DDP", title_style="bold")
    for column in ("sha256 of", "Elastane", "stock DDP", "equal"):
        table.add_column(column)
    for row in result.rows:
        verdict = "[green]yes[/]" if row.equal else "[red]NO[/]"
        table.add_row(row.name, row.found[:16], row.reference[:16], verdict)
    console.print(table)
    report = result.audit
    epochs = {epoch.samples for epoch in report.epochs}
    console.print(
        f"audit: {report.entries} tasks committed in {len(report.epochs)} epochs, "
        f"{'/'.join(map(str, sorted(epochs)))} samples each exactly once: "
        + ("[green]yes[/]" if report.ok else "[red]NO[/] " + "; ".join(report.violations[:3]))
    )
    for recovery in result.recoveries:
        console.print(
            f"{recovery.text}: {recovery.seconds:.2f} s to the next committed step ({recovery.step})"
        )
    workers = [r.seconds for r in result.recoveries if "worker" in r.text]
    if workers:
        console.print(
            f"median after a worker's death: {statistics.median(workers):.2f} s "
            f"(a step takes {result.step_seconds:.3f} s); elastic run {result.elastic_seconds:.0f} s, "
            f"stock run {result.stock_seconds:.0f} s"
        )
    console.print(
        "[bold green]same bits[/]" if result.equal else "[bold red]the runs differ[/]", highlight=False
    )


def _series_sha256(values: Values) -> str:
    """Return the sha256 over (step, rank, float64) in order."""
    digest = hashlib.sha256()
    for (step, rank, _), value in sorted(values.items()):
        digest.update(struct.pack("<qqd", step, rank, float.fromhex(value)))
    return digest.hexdigest()
