"""The planner of pipelines: gap to the best of all plans, time, and the bound of the list ordering.

    python benchmarks/planner.py [--quick] [--json [FILE]] [--profiles DIR]

A gap compares the predicted step with that of an oracle, which tries every plan and every order of devices
(for the reference models: every plan in the recursive order). DIR contains PipeDream's profiles, NAME.txt:
vgg16, alexnet, resnet50, resnet101 and gnmt, with 12 units each; their batch is divided into M = 8
micro-batches, on three topologies.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from unittest.mock import patch

from harness import Report, Row, Series, run_benchmark
from pipeline_instances import (
    Instance,
    divided,
    random_instance,
    random_plan,
    random_profile,
    reference_topologies,
    servers,
)
from plan_oracle import best_order, best_plan, least_step_seconds

from elastane_planner.costs import Costs
from elastane_planner.device_order import device_order
from elastane_planner.errors import InvalidRequest
from elastane_planner.pipedream import coalesced, read_graph
from elastane_planner.planner import EXHAUSTED_MAX, make_plan
from elastane_planner.simulate import step_seconds

MODELS = ("vgg16", "alexnet", "resnet50", "resnet101", "gnmt")
UNITS, MICRO_BATCHES = 12, 8
ORDERS_MAX = 20_000
"""Maximum number of partial orders of blocks that are tried for one plan."""


def percent(plan_seconds: float, best_seconds: float) -> float:
    """Return by how many percent a step is longer than the best one."""
    return round(100 * (plan_seconds / best_seconds - 1), 9)


def gaps(report: Report, instances: int, seed: int, devices: tuple[int, int], exhausted_max: int) -> None:
    """Measure the gap of random instances to the best plan and order, after each stage of the search.

    exhausted_max: number of plans up to which the planner tries all of them; small cases do not exceed it.
    """
    with patch("elastane_planner.planner.EXHAUSTED_MAX", exhausted_max):
        _gaps(report, instances, seed, devices, targets=bool(exhausted_max))


def _gaps(report: Report, instances: int, seed: int, devices: tuple[int, int], *, targets: bool) -> None:
    rng = random.Random(seed)
    by_search: dict[str, list[float]] = {}
    final, took = [], []
    for _ in range(instances):
        instance = random_instance(rng, devices)
        began = time.perf_counter()
        answer = make_plan(*instance)
        took.append(1000 * (time.perf_counter() - began))
        best, _ = best_plan(Costs(*instance))
        for gain in answer.gains:
            by_search.setdefault(gain.search, []).append(percent(gain.step_seconds, best))
        final.append(percent(answer.step_seconds, best))
    number = "-".join(str(each) for each in dict.fromkeys(devices))
    what = f"{number} devices, {instances} instances" + ("" if targets else ", search alone")
    for search, found in by_search.items():
        note = f"max {max(found):.2f} %"
        report.rows.append(Row(f"mean gap after {search}, {what}", Series([mean(found)], "%"), note=note))
    for name, value, target in (("mean", mean(final), 0.1), ("max", max(final), 1.0)):
        row = Row(f"{name} gap, {what}", Series([value], "%"), target=target if targets else None)
        row.target_absolute = targets
        report.rows.append(row)
    report.rows.append(Row(f"time of a plan, {what}", Series([mean(took)], "ms")))


def bound(report: Report, instances: int, seed: int) -> None:
    """Measure the greatest T / ((2 + (4S - 4) / m) W) of random plans, m the least ceil(M / r)."""
    rng, worst = random.Random(seed), 0.0
    for _ in range(instances):
        instance = random_instance(rng, (1, 10), (1, 12), (1, 40))
        plan, costs = random_plan(rng, instance), Costs(*instance)
        least = min(-(-instance.micro_batches // stage.replicas) for stage in plan.stages)
        limit = (2 + (4 * len(plan.stages) - 4) / least) * costs.load(plan)
        worst = max(worst, step_seconds(costs, plan) / limit)
    case = f"greatest step / ((2 + (4S - 4) / m) W), {instances} plans"
    report.rows.append(Row(case, Series([worst], ""), target=1.0, target_absolute=True))


def orders(report: Report, instances: int, seed: int) -> None:
    """Measure how much longer list ordering is than the best order of the same plan's blocks.

    Plans for which the search of all orders does not finish are left out.
    """
    rng = random.Random(seed)
    over: list[float] = []
    left_out = 0
    for _ in range(instances):
        instance = random_instance(rng, (2, 3), (3, 5), (2, 4))
        plan, costs = random_plan(rng, instance), Costs(*instance)
        try:
            best, _ = best_order(costs, plan, ORDERS_MAX)
        except InvalidRequest:
            left_out += 1
            continue
        over.append(percent(step_seconds(costs, plan), best))
    case = f"list ordering over the best order of blocks, {len(over)} plans"
    note = f"max {max(over):.2f} %, {left_out} plans left out"
    report.rows.append(Row(case, Series([mean(over)], "%"), note=note))


def times(report: Report, repeats: int) -> None:
    """Measure the planning time for large models, and the gap to a lower bound that ignores links."""
    for units, cluster, micro_batches, budget, target in (
        (24, servers(2, 4, 100.0, 20.0), 16, 0.8, 1.0),
        (100, servers(8, 8, 100.0, 20.0), 64, 8.0, 10.0),
    ):
        took, over = [], []
        for repeat in range(repeats):
            instance = Instance(random_profile(random.Random(repeat), units), cluster, micro_batches)
            began = time.perf_counter()
            answer = make_plan(*instance, seconds=time.perf_counter, budget_seconds=budget)
            took.append(time.perf_counter() - began)
            over.append(answer.step_seconds / least_step_seconds(Costs(*instance)))
        name = f"{units} units on {len(cluster.devices)} devices"
        report.rows.append(Row(f"time, {name}", Series(took, "s"), target=target, target_absolute=True))
        note = "; ".join(note for note in answer.notes if "coarsened" in note)
        report.rows.append(Row(f"step / lower bound, {name}", Series(over, ""), note=note))


def reference(report: Report, folder: Path) -> None:
    """Measure the gap for the reference models, and that of the dynamic programme alone."""
    report.facts["gaps of models (--profiles FOLDER)"] = (
        "to the best of all plans on the recursive order of devices; below 0 where another order is better"
    )
    for topology, cluster in reference_topologies().items():
        for model in MODELS:
            profile = divided(
                coalesced(read_graph((folder / f"{model}.txt").read_text()), UNITS), MICRO_BATCHES
            )
            began = time.perf_counter()
            answer = make_plan(profile, cluster, MICRO_BATCHES)
            took = time.perf_counter() - began
            costs = Costs(profile, cluster, MICRO_BATCHES)
            print(f"oracle of {model} on {topology}", file=sys.stderr)
            best, _ = best_plan(costs, [device_order(cluster, range(len(cluster.devices)))])
            replicas = ",".join(str(stage.replicas) for stage in answer.plan.stages)
            note = (
                f"{1000 * answer.step_seconds:.1f} ms, replicas {replicas}, least load "
                f"{percent(answer.gains[0].step_seconds, best):.1f} %, {took:.2f} s"
            )
            gap = Series([percent(answer.step_seconds, best)], "%")
            report.rows.append(
                Row(f"gap, {model} on {topology}", gap, target=1e-6, target_absolute=True, note=note)
            )


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def measure(options: argparse.Namespace, report: Report) -> None:
    """Measure all of it."""
    for exhausted_max in (EXHAUSTED_MAX, 0):
        gaps(report, 50 if options.quick else 1_000, 1, (3, 4), exhausted_max)
        gaps(report, 5 if options.quick else 50, 2, (5, 5), exhausted_max)
    bound(report, 1_000 if options.quick else 20_000, 3)
    orders(report, 30 if options.quick else 300, 4)
    times(report, 1 if options.quick else 5)
    if options.profiles is not None:
        reference(report, options.profiles)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this benchmark alone takes."""
    parser.add_argument("--profiles", type=Path, help="folder with PipeDream's profiles")


if __name__ == "__main__":
    run_benchmark("planner", __doc__ or "", measure, add_options)
