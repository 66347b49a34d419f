"""A job that scales by itself beside every fixed number of workers, under faults: the same bits, money, time.

    python benchmarks/auto_against_fixed.py [--quick] [--steps N] [--seed N] [--at-once N] [--json [FILE]]

Runs a real job of eight ESTs whose steps mostly sleep, so that two cores can run several at a time: 75 ms for
each EST, and another 75 ms per step, so that fewer workers are cheaper and more workers are faster. It runs
with each useful fixed number of workers, then scales itself in two modes: `deadline`, whose cost is compared
with the cheapest fixed number that meets the deadline, and `budget`, whose time is compared with the fastest
fixed number within the budget. Either limit is slightly below what the third best fixed number needed. Every
run has the same faults at the same steps: a worker killed, the master killed, another worker killed; killed
workers are replaced. Three runs at a time slow each other down equally and take about eight minutes on two
idle cores; `--at-once 1` takes twenty. Jobs below about 300 steps (`--quick`) are too short to be scaled.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from harness import Report, Row, Series, run_benchmark

from elastane_cli.commands.signals import sigterm_cleans_up
from elastane_cli.rehearse.cluster import OVER, LocalCluster, local_cluster
from elastane_cli.rehearse.results import leader_report
from elastane_proto.v1 import job_pb2
from elastane_scheduler.plan import ladder

SCRIPT: Final = Path(__file__).parent / "peer_scripts" / "waiting_job.py"
ESTS: Final = 8
EST_SECONDS: Final = 0.075
REST_SECONDS: Final = 0.075
"""Seconds of a step besides its ESTs, in each worker."""
PRICE_MICROS: Final = 3_600_000_000
"""Price of a worker per hour: one unit of money per second."""

WITHIN: Final = 1.1
LIMIT: Final = 0.97
"""Deadline and budget, as fractions of what the third best fixed number needed."""
_LOOK_SECONDS: Final = 0.1
_END_SECONDS: Final = 1800.0


@dataclass
class Outcome:
    """Result of one run. seconds: from the start of its first worker to its end. changes: of the target."""

    name: str
    seconds: float
    money: float
    digest: str
    targets: list[int] = field(default_factory=list)


@dataclass
class Faults:
    """Faults at given steps, the same in every run; a seed selects the victims."""

    steps: Sequence[int]
    seed: int

    def __post_init__(self) -> None:
        self._left = list(self.steps)
        self._rng = random.Random(self.seed)

    def strike(self, cluster: LocalCluster, job: job_pb2.Job) -> None:
        """Inject the faults that are due at the job's step."""
        if not self._left or job.step < self._left[0] or job.phase != job_pb2.JOB_PHASE_RUNNING:
            return
        number = len(self.steps) - len(self._left)
        del self._left[0]
        if number % 2:
            cluster.restart_master()
            return
        members = [one.worker_id for one in job.workers if one.state == job_pb2.WORKER_STATE_MEMBER]
        alive = sorted(name for name in members if cluster.workers[name].status is None)
        if alive:
            cluster.workers[self._rng.choice(alive)].signal(signal.SIGKILL)


class Provider:
    """Starts and releases workers to follow the job's target."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._released: set[str] = set()
        self.targets: list[int] = []

    def follow(self, job: job_pb2.Job) -> None:
        """Start workers that are missing for the target; release standby workers beyond it."""
        target = job.scaling.workers_target if job.HasField("scaling") else job.settings.workers_max
        if not self.targets or self.targets[-1] != target:
            self.targets.append(target)
        running = [
            name
            for name, process in self._cluster.workers.items()
            if process.status is None and name not in self._released
        ]
        for _ in range(target - len(running)):
            self._cluster.add_worker()
        standby = [one.worker_id for one in job.workers if one.state == job_pb2.WORKER_STATE_STANDBY]
        surplus = len(running) - target
        for name in [name for name in standby if name in running][: max(0, surplus)]:
            self._released.add(name)
            self._cluster.workers[name].signal(signal.SIGTERM)


def run(folder: Path, name: str, steps: int, seed: int, workers_max: int, scaling: str = "") -> Outcome:
    """Run the job to its end. Raises RuntimeError if it does not succeed."""
    settings = job_pb2.JobSettings(
        ests=ESTS,
        workers_min=1,
        workers_max=workers_max,
        seed=7,
        checkpoint_url=str(folder / name / "checkpoints"),
        checkpoint_interval_steps=max(10, steps // 20),
        currency="USD",
        spot_price_micros=PRICE_MICROS,
        on_demand_price_micros=PRICE_MICROS,
        scaling=scaling,
    )
    settings.join_window.FromMilliseconds(200)
    words = ["--ests", str(ESTS), "--steps", str(steps), "--seconds", str(EST_SECONDS)]
    words += ["--rest", str(REST_SECONDS)]
    faults = Faults([steps * part // 4 for part in (1, 2, 3)], seed)
    with local_cluster(folder / name, settings, [str(SCRIPT), *words]) as cluster:
        provider, began = Provider(cluster), time.monotonic()
        while True:
            job = cluster.get_job()
            if job.phase in OVER:
                break
            if time.monotonic() - began > _END_SECONDS:
                raise RuntimeError(f"{name} did not end\n{cluster.last_lines()}")
            provider.follow(job)
            faults.strike(cluster, job)
            time.sleep(_LOOK_SECONDS)
        seconds = time.monotonic() - began
        cluster.wait_for_success()
        money = cluster.get_job().cost.spent_micros / 1e6
        fingerprint = leader_report(cluster.reports)["fingerprint"]
    say(f"{name}: {seconds:.1f} s, {money:.1f}, targets {provider.targets}")
    return Outcome(name, seconds, money, json.dumps(fingerprint, sort_keys=True), provider.targets)


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the job's size and the faults' seed."""
    parser.add_argument("--steps", type=int, help="of the job (default: 440; with --quick 80)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (default: 1)")
    parser.add_argument(
        "--at-once",
        type=int,
        default=3,
        metavar="N",
        help="runs beside each other (default: 3)",
    )


def measure(arguments: argparse.Namespace, report: Report) -> None:
    """Run all, and compare."""
    steps = arguments.steps or (80 if arguments.quick else 440)
    with (
        sigterm_cleans_up(),
        tempfile.TemporaryDirectory(prefix="elastane-auto-") as text,
        ThreadPoolExecutor(arguments.at_once) as pool,
    ):
        folder = Path(text)
        # The slowest first, so that the others run meanwhile.
        fixed = list(
            pool.map(
                lambda count: run(folder, f"fixed-{count}", steps, arguments.seed, count),
                sorted(ladder(ESTS)),
            )
        )
        by_time = sorted(fixed, key=lambda one: one.seconds)
        # The limit must separate fixed numbers that meet it from those that do not.
        seconds = LIMIT * by_time[2].seconds
        by_money = sorted(fixed, key=lambda one: one.money)
        money = LIMIT * by_money[2].money
        deadline, budget = pool.map(
            lambda mode: run(folder, mode.partition("=")[0], steps, arguments.seed, ESTS, mode),
            (f"deadline=+{seconds:.1f}s", f"budget={money:.2f}"),
        )
    in_time = min((one for one in fixed if one.seconds <= seconds), key=lambda one: one.money)
    within = min((one for one in fixed if one.money <= money), key=lambda one: one.seconds)
    report.rows += [
        row(f"deadline {seconds:.0f} s: money", deadline.money, in_time.money, in_time.name),
        bound(f"deadline {seconds:.0f} s: time", deadline.seconds, seconds, "s"),
        row(f"budget {money:.0f}: time", budget.seconds, within.seconds, within.name, "s"),
        bound(f"budget {money:.0f}: money", budget.money, money, ""),
    ]
    everyone = [*fixed, deadline, budget]
    other = [one.name for one in everyone if one.digest != everyone[0].digest]
    report.rows.append(
        Row(
            "runs with other weights",
            Series([float(len(other))], ""),
            target=0.0,
            target_absolute=True,
            note=", ".join(other),
        )
    )
    for one in everyone:
        report.facts[one.name] = f"{one.seconds:.1f} s, {one.money:.1f}, targets {one.targets}"


def row(case: str, ours: float, best: float, name: str, unit: str = "") -> Row:
    """Build a row: a figure beside that of the best fixed number."""
    return Row(case, Series([ours], unit), Series([best], unit), name, target=WITHIN)


def bound(case: str, ours: float, most: float, unit: str) -> Row:
    """Build a row: a figure with an upper bound."""
    return Row(case, Series([ours], unit), target=most, target_absolute=True)


if __name__ == "__main__":
    run_benchmark("auto_against_fixed", __doc__ or "", measure, options)
