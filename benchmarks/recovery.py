"""Training stalls when a worker dies, freezes, joins or leaves, beside torchft and torchrun.

    python benchmarks/recovery.py [--quick] [--json [FILE]] [--frameworks a,b] [--models small]

Three workers train the same model under each framework in turn, and all events happen to the same cluster,
one after the other. "torchft" runs at its defaults, "torchft 1 s" and "elastane 1 s" treat a node as lost
after one second of silence, "torchrun" is three elastic agents of one worker each. The stall is the longest
time after the event in which no remaining worker applies a step, minus one median step. Three workers, or
four with a newcomer, share the machine's cores, and their steps vary; "elastane pair" is one worker that
another one joins and leaves, with a core for each. A planned change is charged with the time by which its
stall exceeds the longest of the 20 steps before it.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from time import monotonic

from harness import Report, Row, Series, median_of, run_benchmark
from recovery_clusters import FRAMEWORKS, Cluster, Elastane, EventTimeout, Torchft, Torchrun, until

STEPS_BEFORE = 10
"""Steps that every worker must have applied before the first event."""
SETTLE_STEPS = 10
SPREAD_STEPS = 21
AWAY_SECONDS = 2.0
#: Timeout for one event, for frameworks whose peers take longer than the default.
WAIT_SECONDS = {"torchrun": 75.0}
WAIT_SECONDS_ELSE = 90.0

Figures = dict[str, dict[str, list[float]]]
"""Measured values by case and framework."""

KILLED = "worker killed: stall"
NODE_KILLED = "node killed (agent and worker): stall"
FROZEN = "worker frozen: stall"
NEWCOMER = "newcomer: ready to first step"
STALL_OF_JOIN = "newcomer: the others' stall"
DRAINED = "drain: stall"
BEYOND = "beyond the longest of the steps before"
AWAY = f"coordinator killed, back after {AWAY_SECONDS:g} s: stall beyond"

GOING_ON = f"coordinator killed, back after {AWAY_SECONDS:g} s: workers that train on"
LOST = "drain: steps lost"
STEP = "ordinary step, seconds"
NO_TIMES = (GOING_ON, LOST, STEP)
OURS_BESIDE = {"torchft 1 s": "elastane 1 s"}
"""Our configuration to compare with a tuned peer, if it was measured; else the default one."""

Recorder = Callable[[str, float], None]


def kill(cluster: Cluster, record: Recorder) -> None:
    """Kill a worker; record the stall of the others."""
    record(KILLED, _lose(cluster, signal.SIGKILL))


def freeze(cluster: Cluster, record: Recorder) -> None:
    """Freeze a worker, as if its node were silent, and kill it afterwards; record the stall of the others."""
    record(FROZEN, _lose(cluster, signal.SIGSTOP))


def kill_node(cluster: Cluster, record: Recorder) -> None:
    """Kill an agent and its worker, but not the agent that holds the others' store; record the stall."""
    assert isinstance(cluster, Torchrun)
    staying = cluster.kill_last_node()
    began = monotonic()
    until(lambda: len(cluster.marks.training(3, began + 1.0)) >= 2, "steps after the node's death")
    record(NODE_KILLED, stall_of(cluster, staying + cluster.alive(), began))


def _lose(cluster: Cluster, number: int) -> float:
    victim, *others = cluster.alive()
    began = monotonic()
    os.kill(victim, number)
    cluster.gone.add(victim)
    try:
        if isinstance(cluster, Torchrun):
            # torchrun restarts all its workers, so two of any processes that train are enough.
            until(lambda: len(cluster.marks.training(3, began + 1.0)) >= 2, "steps after the death")
            return stall_of(cluster, cluster.alive(), began)
        until(
            lambda: set(others) <= set(cluster.marks.training(SETTLE_STEPS, began)), "steps after the event"
        )
        return stall_of(cluster, others, began)
    finally:
        if number == signal.SIGSTOP:
            os.kill(victim, signal.SIGKILL)


def join(cluster: Cluster, record: Recorder) -> None:
    """Add a worker; record its wait from ready to its first step, and the stall of the others."""
    others = cluster.alive()
    spread = spread_of(cluster, others)
    known = set(cluster.marks.pids())
    began = monotonic()
    cluster.add()

    def newcomer() -> int | None:
        return next((pid for pid in cluster.marks.training(SETTLE_STEPS) if pid not in known), None)

    until(lambda: newcomer() is not None, "a newcomer that trains")
    pid = newcomer()
    assert pid is not None
    record(NEWCOMER, cluster.marks.steps(pid)[0] - cluster.marks.ready(pid))
    stall = stall_of(cluster, others, began)
    record(STALL_OF_JOIN, stall)
    record(f"{STALL_OF_JOIN} {BEYOND}", max(0.0, stall - spread))


def drain(cluster: Cluster, record: Recorder) -> None:
    """Drain a worker; record the stall of the others, and that no step was lost."""
    assert isinstance(cluster, Elastane)
    victim, *others = cluster.alive()
    spread = spread_of(cluster, others)
    changes = cluster.unplanned_changes()
    began = monotonic()
    cluster.drain(victim)
    cluster.gone.add(victim)
    until(lambda: not cluster.runs(victim), "the end of the drained worker")
    ended = monotonic()
    until(lambda: set(others) <= set(cluster.marks.training(SETTLE_STEPS, ended)), "steps without it")
    stall = stall_of(cluster, others, began)
    record(DRAINED, stall)
    record(f"{DRAINED} {BEYOND}", max(0.0, stall - spread))
    record(LOST, float(cluster.unplanned_changes() - changes))


def coordinator_away(cluster: Cluster, record: Recorder) -> None:
    """Kill the master, or the lighthouse, and restart it after a while.

    Records the stall beyond its absence, infinity if training does not continue within half a minute, and the
    number of workers that continue.
    """
    assert isinstance(cluster, Elastane | Torchft)
    pids = cluster.alive()
    began = monotonic()
    cluster.restart_coordinator(AWAY_SECONDS)
    back = monotonic()
    with contextlib.suppress(EventTimeout):
        until(
            lambda: (
                set(pids) <= set(cluster.marks.training(SETTLE_STEPS, back))
                or not any(map(cluster.runs, pids))
            ),
            "steps after the restart",
            30.0,
        )
    going_on = [pid for pid in cluster.marks.training(SETTLE_STEPS, back) if pid in pids]
    record(AWAY, stall_of(cluster, going_on, began) - AWAY_SECONDS if going_on else math.inf)
    record(GOING_ON, float(len(going_on)))


Scenario = list[Callable[[Cluster, Recorder], None]]


def scenario(framework: str, model: str, quick: bool) -> Scenario:
    """Return the events for a cluster of this framework, in order."""
    if framework == "elastane":
        return [kill, join, freeze, join, drain, join, coordinator_away]
    if framework == "elastane pair":
        return [join, drain, join, drain] if model == "25m" else []
    if framework == "elastane 1 s":
        return [freeze] if model == "small" else []
    if framework == "torchft":
        if quick:
            return [kill, join, freeze, coordinator_away] if model == "small" else [kill, join]
        return [kill, join, freeze, join, coordinator_away]
    if framework == "torchft 1 s":
        if quick:
            return [kill, freeze] if model == "small" else []
        return [kill, join, freeze, join]
    if quick:
        return [kill] if model == "small" else []
    return [kill, kill_node] if model == "small" else [kill]


@contextlib.contextmanager
def running(framework: str, model: str) -> Iterator[Cluster]:
    """Yield a cluster whose three workers have trained some steps."""
    with tempfile.TemporaryDirectory() as name:
        cluster = FRAMEWORKS[framework](Path(name), model)
        try:
            cluster.start()
            until(lambda: len(cluster.marks.training(STEPS_BEFORE)) == cluster.workers, "workers that train")
            steps = cluster.marks.steps(cluster.alive()[0])
            ordinary = [after - before for before, after in pairwise(steps[2:])]
            cluster.step_seconds = statistics.median(ordinary)
            print(f"  ordinary step {cluster.step_seconds:.3f}, longest {max(ordinary):.3f}", file=sys.stderr)
            yield cluster
        except EventTimeout:
            for log in sorted(Path(name).glob("log-*")):
                lines = log.read_text(errors="replace").splitlines()
                print(f"  {log.name}: " + " | ".join(line[:200] for line in lines[-4:]), file=sys.stderr)
            raise
        finally:
            cluster.close()


def spread_of(cluster: Cluster, staying: list[int]) -> float:
    """Return by how much the longest of the last 20 steps exceeded one median step."""
    steps = sorted(seconds for pid in staying for seconds in cluster.marks.steps(pid)[-SPREAD_STEPS:])
    gaps = [after - before for before, after in pairwise(steps)]
    return max(0.0, max(gaps) - cluster.step_seconds)


def stall_of(cluster: Cluster, staying: list[int], began: float) -> float:
    """Return the longest time after `began` without a step of the remaining workers, minus one step.

    For workers that were restarted after the event, the wait for their first step counts too.
    """
    steps = sorted(seconds for pid in staying for seconds in cluster.marks.steps(pid) if seconds > began)
    gaps = [after - before for before, after in pairwise([began, *steps])]
    return max(0.0, max(gaps, default=math.inf) - cluster.step_seconds)


def benchmark(args: argparse.Namespace, report: Report) -> None:
    repeats = 1 if args.quick else 3
    chosen = [name.strip() for name in args.frameworks.split(",")]
    for model in args.models.split(","):
        figures: Figures = {}
        faults: list[str] = []
        for number in range(repeats):
            for framework in chosen:
                events = scenario(framework, model, args.quick)
                if events:
                    print(f"{model}, run {number + 1} of {repeats}: {framework}", file=sys.stderr)
                    faults += play(framework, model, events, figures)
        report.rows += rows(model, figures)
        report.facts |= facts(model, figures, faults)


def play(framework: str, model: str, events: Scenario, figures: Figures) -> list[str]:
    """Run the scenario once, adding to `figures`; return the events that timed out."""

    def record(case: str, figure: float) -> None:
        print(f"  {case}: {figure:.3f}", file=sys.stderr)
        figures.setdefault(case, {}).setdefault(framework, []).append(figure)

    doing = "the start"
    until.seconds = WAIT_SECONDS.get(framework, WAIT_SECONDS_ELSE)
    try:
        with running(framework, model) as cluster:
            figures.setdefault(STEP, {}).setdefault(framework, []).append(cluster.step_seconds)
            for event in events:
                doing = event.__name__
                event(cluster, record)
    except EventTimeout as error:
        # A timeout of a peer is a result; the remaining events need a working cluster and are skipped.
        print(f"  {doing}: {error}", file=sys.stderr)
        return [f"{framework}, {doing}: {error}"]
    return []


def rows(model: str, figures: Figures) -> list[Row]:
    """Build the rows of our figures beside each measured peer's."""
    found = []
    for name, by_framework in figures.items():
        if name in PLANNED and "elastane pair" in by_framework:
            pair = Series(by_framework["elastane pair"], "s")
            case = f"{model}: {name}, a core each"
            found.append(Row(case, pair, target=PLANNED_SECONDS, target_absolute=True, noise=2.0))
        peers = {key: values for key, values in by_framework.items() if not key.startswith("elastane")}
        if name in NO_TIMES or "elastane" not in by_framework:
            continue
        case = f"{model}: {name}"
        series = Series(by_framework["elastane"], "s")
        target = TARGETS.get(name)
        if target is not None or name == AWAY:
            found.append(Row(case, series, target=target, target_absolute=True, noise=2.0))
        for peer, values in peers.items():
            mine = Series(by_framework.get(OURS_BESIDE.get(peer, ""), series.values), "s")
            if all(map(math.isfinite, values)):
                beside = f"{case}, beside {peer}"
                # One reconfiguration takes tens of milliseconds, which other load can double.
                found.append(Row(beside, mine, Series(values, "s"), peer, target=1.0, noise=2.5))
    for row in found:
        name = row.case.removeprefix(f"{model}: ").removesuffix(", a core each").partition(", beside")[0]
        row.note = NOTES.get(name, "")
    return found


PLANNED_SECONDS = 0.05
PLANNED = (STALL_OF_JOIN, f"{STALL_OF_JOIN} {BEYOND}", DRAINED, f"{DRAINED} {BEYOND}")
TARGETS = {
    KILLED: 0.3,
    DRAINED: 0.1,
    f"{STALL_OF_JOIN} {BEYOND}": PLANNED_SECONDS,
    f"{DRAINED} {BEYOND}": PLANNED_SECONDS,
}
NOTES = {
    KILLED: "torchft's survivors wait until the dead worker's heartbeat is missed, 5 s by default; they were "
    "also seen to wait 60 s, the time-out of its group. torchrun starts all its workers again",
    FROZEN: "the heartbeat time-out, 3 s by default (torchft: 5 s), is all there is to it; "
    "--heartbeat-timeout 1 stands beside torchft's of one second. torchft's survivors were seen to wait "
    "4.8 s, or 60 s, the time-out of its group",
    DRAINED: "the longest step after it less the median step before: where steps take 0.4 s, three "
    "workers on two cores let them vary by 0.2 s, and that is what stands here; no step is lost",
    NEWCOMER: "a small model: 20 ms to form the group, 14 ms to open the channel, 13 ms a step; torchft's "
    "newcomer takes part without the ring being made anew",
    STALL_OF_JOIN: "a small model's state travels while the others stand still; with a large one the "
    "newcomer follows their steps first, and they wait until the last of them is made there, too; torchft's "
    "newcomer adds zeros",
    AWAY: "the restart of the master's process (about 0.5 s) and the workers' next look for it",
}


def facts(model: str, figures: Figures, faults: list[str]) -> dict[str, object]:
    """Return the results that are not times: lost steps, remaining workers, timeouts."""
    found: dict[str, object] = {}
    for name, by_framework in figures.items():
        if name in NO_TIMES:
            found[f"{model}: {name}"] = {
                key: round(median_of(values), 3) for key, values in by_framework.items()
            }
    if AWAY in figures:
        gone = [key for key, values in figures[AWAY].items() if not all(map(math.isfinite, values))]
        if gone:
            found[f"{model}: training does not go on without the coordinator"] = ", ".join(gone)
    if faults:
        found[f"{model}: did not come about in time"] = "; ".join(faults)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS), help="which to run")
    parser.add_argument("--models", default="small,25m", help="small, 25m or both")


if __name__ == "__main__":
    run_benchmark("recovery", __doc__, benchmark, options)
