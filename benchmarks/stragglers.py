"""A worker becomes half as fast: how fast the job is with fewer ESTs for it, and with another in its place.

    python benchmarks/stragglers.py [--quick] [--json [FILE]] [--est-milliseconds 40]

Four workers train 16 ESTs whose steps mostly wait, so that two cores carry them. The leader is slowed to half
its rate, then a fifth worker is added, which stands by. Rates are steps per second, beside those of the best
plan (5 c, with shares of 5, 5, 4 and 2) and of the four without a fault (4 c). A stall is the longest time
without a step around a change, less one step. The weights, and everything else that is compared, must be
those of stock DDP.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from pathlib import Path

from harness import Better, Report, Row, Series, run_benchmark

from elastane_cli.rehearse.cluster import LocalCluster, local_cluster
from elastane_cli.rehearse.results import compare_outcomes, read_elastic, read_stock
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_proto.history import events as history
from elastane_proto.history_wire import dated_event_of
from elastane_proto.v1 import job_pb2, shard_pb2

SCRIPT = Path(__file__).parent.parent / "tests" / "integration" / "scripts" / "train_matrix.py"
ESTS, WORKERS, BATCH, PER_EPOCH, EPOCHS = 16, 4, 4, 50, 9
SLOW, STANDBY = "w0", "w4"
SETTLE_STEPS = 10


class Steps:
    """Commit times of a job's steps, from its whole audit log."""

    def __init__(self, audit: Sequence[shard_pb2.AuditEntry]) -> None:
        self._at: dict[int, float] = {}
        self._hosts: dict[int, Counter[str]] = {}
        for entry in audit:
            number = entry.step + 1
            self._at[number] = entry.committed.ToNanoseconds() / 1e9
            self._hosts.setdefault(number, Counter())[entry.worker_id] += 1

    def _between(self, first: int, end: int) -> list[float]:
        times = [at for number, at in sorted(self._at.items()) if first <= number <= end]
        return [b - a for a, b in pairwise(times)]

    def seconds(self, first: int, end: int) -> float:
        """Return the median time of a step, by the master's clock."""
        return statistics.median(self._between(first, end))

    def stall(self, first: int, end: int) -> float:
        """Return the longest time without a step, less the usual step time."""
        return max(0.0, max(self._between(first, end)) - self.seconds(first, end))

    def longest_wait(self, number: int) -> int:
        """Return how long the busiest worker sleeps in a step, in sleeps of a healthy EST.

        This is a lower bound of the step time that does not depend on the machine's load. An EST of the
        straggler counts twice. One step is used, because on a busy machine steps may become longer by chance,
        and the master then takes new ranges back.
        """
        return max((1 + (worker == SLOW)) * ests for worker, ests in self._hosts[number].items())


@dataclass(frozen=True)
class Outcome:
    """Result of a run. Seconds of a step: clean, slowed, and after each remedy; est: of one EST.

    waits: `longest_wait` in the first counted step while slowed, and after each remedy. shares: ESTs by
    member after the first remedy. sizes: of all rings since the first full one. differences: from stock DDP,
    as text.
    """

    est: float
    clean: float
    slowed: float
    reweighted: float
    replaced: float
    waits: tuple[int, int, int]
    shares: tuple[int, ...]
    stalls: tuple[float, float]
    sizes: tuple[int, ...]
    told: tuple[history.HistoryEvent, ...]
    differences: tuple[str, ...]

    @property
    def best_plan(self) -> float:
        """Seconds of a step of the best plan, with the same overhead as in the clean ring."""
        return 5 * self.est + (self.clean - 4 * self.est)


def counts(job: job_pb2.Job) -> dict[str, int]:
    """Return how many ESTs each member of the ring hosts."""
    members = (worker for worker in job.workers if worker.state == job_pb2.WORKER_STATE_MEMBER)
    return {worker.worker_id: worker.ests.end - worker.ests.start for worker in members}


def run(folder: Path, est_seconds: float, steps: int, *, ests: int = ESTS, epochs: int = EPOCHS) -> Outcome:
    """Run the job and the reference. steps: number of steps in each measurement."""
    even = ests // WORKERS
    arguments = [str(SCRIPT), "--optimizer", "adamw", "--epochs", str(epochs), "--seed", "3"]
    arguments += ["--size", str(ests * BATCH * PER_EPOCH), "--batch-size", str(BATCH)]
    settings = job_pb2.JobSettings(ests=ests, workers_min=2, workers_max=WORKERS, audit_samples=True)
    settings.join_window.FromMilliseconds(500)
    slowed_by = folder / "slowed"
    environment = {"BUSY_SECONDS": str(est_seconds)}
    with local_cluster(folder / "elastic", settings, arguments, environment=environment) as cluster:
        for number in range(WORKERS):
            is_slow = f"w{number}" == SLOW
            cluster.add_worker(environment={"SLOWED_BY": str(slowed_by)} if is_slow else {})
        first = _wait(cluster, "four workers", lambda hosted: set(hosted.values()) == {even})
        begin = first.step + SETTLE_STEPS
        cluster.wait_for_step(begin + steps)
        figures = cluster.client.worker_figures(cluster.job, [f"w{number}" for number in range(WORKERS)])
        est = statistics.median(one.est_seconds for one in figures.values())
        slowed_by.touch()
        changed = _wait(cluster, "fewer ESTs for the straggler", lambda hosted: hosted.get(SLOW, even) < even)
        again = changed.step + SETTLE_STEPS
        cluster.wait_for_step(again + steps)
        cluster.add_worker(STANDBY)
        out = _wait(cluster, "another in its place", lambda hosted: STANDBY in hosted and SLOW not in hosted)
        last = out.step + SETTLE_STEPS
        cluster.wait_for_step(last + steps)
        cluster.wait_for_success()
        told = tuple(dated_event_of(event).event for event in cluster.client.events(cluster.job))
        audit = list(cluster.client.audit_log(cluster.job))
    taken = Steps(audit)
    slowed, reweighted, replaced = (
        (begin + steps + 2, changed.step - 1),
        (again, again + steps),
        (last, last + steps),
    )
    return Outcome(
        est,
        taken.seconds(begin, begin + steps),
        taken.seconds(*slowed),
        taken.seconds(*reweighted),
        taken.seconds(*replaced),
        (taken.longest_wait(slowed[0]), taken.longest_wait(again), taken.longest_wait(last)),
        tuple(counts(changed).values()),
        (taken.stall(changed.step - 5, again), taken.stall(out.step - 5, last)),
        _sizes(told),
        told,
        _differences(folder, arguments, ests, cluster.reports, audit),
    )


def _sizes(told: Sequence[history.HistoryEvent]) -> tuple[int, ...]:
    """Return the sizes of the rings from the first full one on; before it workers join one by one."""
    sizes = (len(event.members) for event in told if isinstance(event, history.RingAnnounced))
    return tuple(dropwhile(lambda size: size < WORKERS, sizes))


def _wait(cluster: LocalCluster, what: str, condition: Callable[[dict[str, int]], bool]) -> job_pb2.Job:
    return cluster.wait_for(lambda job: condition(counts(job)), what=what)


def _differences(
    folder: Path, arguments: list[str], ests: int, reports: Path, audit: list
) -> tuple[str, ...]:
    stock = run_stock_ddp(folder / "stock", arguments, processes=ests)
    size = ests * BATCH * PER_EPOCH
    elastic = read_elastic(reports, audit, ests, steps_per_epoch=PER_EPOCH, dataset_size=size)
    compared = compare_outcomes(read_stock(stock, ests), elastic)
    return (*compared.audit.violations, *(row.name for row in compared.rows if not row.equal))


def measure(args: argparse.Namespace, report: Report) -> None:
    """Run the job, and add its figures to the report."""
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), args.est_milliseconds / 1000, 20 if args.quick else 50)

    def add(case: str, value: float, unit: str, target: float | None = None, *, better: Better = "higher"):
        report.rows.append(Row(case, Series([value], unit), None, "", better, target, True))

    add("slowed: rate over the clean one", found.clean / found.slowed, "")
    add("fewer ESTs: rate over the best plan's", found.best_plan / found.reweighted, "", 0.9)
    add("replaced: rate over the clean one", found.clean / found.replaced, "", 0.95)
    add("fewer ESTs: stall", found.stalls[0], "s", 1.0, better="lower")
    add("replaced: stall", found.stalls[1], "s", 1.0, better="lower")
    add("smallest ring", min(found.sizes), "workers", WORKERS)
    add("differences from stock DDP", len(found.differences), "", 0, better="lower")
    report.facts["shares"] = list(found.shares)
    report.facts["seconds of a step"] = {
        name: getattr(found, name) for name in ("clean", "slowed", "reweighted", "replaced")
    }
    if found.differences:
        report.facts["differences"] = list(found.differences)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--est-milliseconds", type=float, default=40.0, help="what an EST waits in a step")


if __name__ == "__main__":
    run_benchmark("stragglers", __doc__ or "", measure, _options)
