"""The whole demo: elastic training with faults, the same script under stock DDP, the comparison."""

from __future__ import annotations

import importlib.util
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import elastane
from elastane.agent.cluster import local_cluster
from elastane.agent.reference import run_stock_ddp
from elastane.demo.compare import Comparison, compare_runs
from elastane.demo.picture import Picture
from elastane.demo.scenario import Play, Recovery, median_step_seconds, recoveries
from elastane.errors import RefusedError
from elastane_proto.v1 import job_pb2

TRAINING_SAMPLES = 1536
BATCH_SIZE = 32


@dataclass(frozen=True)
class DemoResult:
    """Results of the demo. Durations are seconds."""

    comparison: Comparison
    recoveries: tuple[Recovery, ...]
    step_seconds: float
    elastic_seconds: float
    stock_seconds: float

    def as_json(self) -> dict[str, object]:
        comparison = self.comparison
        return {
            "equal": comparison.equal,
            "sha256": {row.name: {"elastic": row.elastic, "stock": row.stock} for row in comparison.rows},
            "losses_compared": comparison.losses,
            "audit": {
                "ok": comparison.audit.ok,
                "entries": comparison.audit.entries,
                "superseded": comparison.audit.superseded,
                "samples_per_epoch": [epoch.samples for epoch in comparison.audit.epochs],
                "violations": list(comparison.audit.violations),
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

    Raises RefusedError if there is neither, or if its data set is not installed.
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
        play = Play(
            cluster,
            epochs * steps_per_epoch,
            on_job=picture.job,
            on_event=picture.event,
            on_fault=picture.fault,
        )
        play.run()
        history = list(cluster.client.audit_log(cluster.job))
        elastic_reports = cluster.reports
    elastic_seconds = time.monotonic() - started

    started = time.monotonic()
    with console.status(f"the same script under stock DDP(gloo) with {ests} processes"):
        stock_reports = run_stock_ddp(folder / "stock", script, processes=ests)
    stock_seconds = time.monotonic() - started

    comparison = compare_runs(
        elastic_reports,
        stock_reports,
        history,
        ests=ests,
        dataset_size=TRAINING_SAMPLES,
        steps_per_epoch=steps_per_epoch,
    )
    return DemoResult(
        comparison,
        tuple(recoveries(play.faults, history)),
        median_step_seconds(history),
        elastic_seconds,
        stock_seconds,
    )


def print_result(console: Console, result: DemoResult) -> None:
    """Print the result as a table."""
    comparison = result.comparison
    table = Table(title="Elastane under churn beside stock DDP", title_style="bold")
    for column in ("sha256 of", "Elastane", "stock DDP", "equal"):
        table.add_column(column)
    for row in comparison.rows:
        verdict = "[green]yes[/]" if row.equal else "[red]NO[/]"
        table.add_row(row.name, row.elastic[:16], row.stock[:16], verdict)
    console.print(table)
    report = comparison.audit
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
        "[bold green]same bits[/]" if comparison.equal else "[bold red]the runs differ[/]", highlight=False
    )
