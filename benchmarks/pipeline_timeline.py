"""The simulated step of pipelines beside real ones, in real processes whose units sleep.

    python benchmarks/pipeline_timeline.py [--quick] [--json [FILE]]

A unit's forward and backward sleep for the times in the profile and send a few bytes, so there may be more
workers than cores, though other load on the machine matters. The real time is the executor's, from the first
worker's `begin_step` to the last one's `sum_gradients`. The simulation uses unit times and block overheads
that are measured first, as in `elastane profile`. --unit-milliseconds: shorter units increase the share of
overhead.

The bubble is the share of time in which workers do not sleep. For S equal stages, M micro-batches, units that
sleep for t out of u seconds in the profile, and block overhead o (each forward plus backward), it is 1 - M /
(S - 1 + M) * t / (u + o); without overhead it would be (S - 1) / (S - 1 + M).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from harness import Report, Row, Series, run_benchmark
from pipeline_processes import Worker, together

from elastane.pipeline.block_overhead import Sleeper, overhead_seconds
from elastane.pipeline.profiling import profile_units
from elastane.pipeline.units import Units
from elastane_planner.cluster import Cluster, Device
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.schedule import Order, blocks, gpipe, one_f_one_b
from elastane_planner.simulate import Timeline, timeline

ORDERS: dict[str, Callable[[Plan, int], Order]] = {"listed": blocks, "GPipe": gpipe, "1F1B": one_f_one_b}
TARGET_STEP, TARGET_BUBBLE = 5.0, 2.0
"""Targets: percent of the simulated step; percentage points of the bubble of equal stages."""


@dataclass(frozen=True)
class Case:
    """A pipeline. units: (forward, backward) of each, in multiples of --unit-milliseconds."""

    title: str
    units: tuple[tuple[float, float], ...]
    plan: Plan
    micro_batches: int = 8
    order: str = "listed"

    @property
    def workers(self) -> int:
        return len(self.plan.devices)

    def sleeping(self, unit_seconds: float) -> Profile:
        """Return the profile of sleeping units in blocks without overhead."""
        return Profile(
            tuple(
                UnitProfile(str(index), forward * unit_seconds, backward * unit_seconds)
                for index, (forward, backward) in enumerate(self.units)
            )
        )

    def simulated(self, profile: Profile) -> Timeline:
        """Return the simulated step."""
        cluster = Cluster.uniform([Device(f"worker{index}") for index in range(self.workers)], 1e12)
        order = ORDERS[self.order](self.plan, self.micro_batches)
        return timeline(profile, cluster, self.plan, self.micro_batches, order)


def plan_of(*stages: tuple[int, int], memory: Any = "plain") -> Plan:
    """Return a plan. stages: (units, replicas) of each; workers are numbered stage by stage."""
    unit = worker = 0
    made = []
    for units, replicas in stages:
        made.append(Stage(unit, unit + units, tuple(range(worker, worker + replicas)), memory))
        unit, worker = unit + units, worker + replicas
    return Plan(tuple(made))


def equal(stages: int) -> Case:
    """Return a case of equal stages."""
    return Case(f"{stages} equal stages", ((1.0, 2.0),) * stages, plan_of(*((1, 1),) * stages))


UNLIKE = ((1.0, 2.5), (2.0, 2.0), (0.5, 1.5), (3.0, 4.0), (1.0, 1.0))
CASES = (
    *map(equal, (2, 3, 4)),
    *(Case(f"unlike stages, {order}", UNLIKE, plan_of((2, 1), (2, 1), (1, 1)), 8, order) for order in ORDERS),
    Case("replicas 1, 3, 1", UNLIKE, plan_of((1, 1), (3, 3), (1, 1)), 9),
    Case("recomputed", UNLIKE, plan_of((2, 1), (3, 2), memory="checkpoint"), 6),
)


def _worker(
    me: int, address: str, cases: Sequence[Case], unit_seconds: float, repeats: int
) -> dict[str, Any]:
    """Return each case's times at worker `me`: (step, slept) seconds of every step."""
    found: dict[str, Any] = {}
    for number, case in enumerate(cases):
        if me >= case.workers:
            for _ in range(repeats + 1):
                dist.barrier()
            continue
        units = [Sleeper(forward * unit_seconds, backward * unit_seconds) for forward, backward in case.units]
        worker = Worker(
            me,
            address,
            case.workers,
            units,
            case.plan,
            case.micro_batches,
            lambda est: (torch.zeros(4), torch.zeros(())),
            lambda output, target: output.sum() + target,
            prefix=f"case{number}",
        )
        worker.set_order(ORDERS[case.order](case.plan, case.micro_batches))
        times = []
        for _ in range(repeats + 1):
            for unit in units:
                unit.slept.clear()
            dist.barrier()
            began = time.perf_counter()
            worker.step()
            times.append((time.perf_counter() - began, sum(sum(unit.slept) for unit in units)))
        found[case.title] = times[1:]
        worker.close()
    return found


@dataclass(frozen=True)
class Measured:
    """Measured steps of a case. step_seconds, bubbles: one value per step."""

    step_seconds: list[float]
    bubbles: list[float]


def real(cases: Sequence[Case], unit_seconds: float, repeats: int) -> dict[str, Measured]:
    """Run the cases one after the other, in as many processes as the largest case has workers."""
    count = max(case.workers for case in cases)
    found = together(count, _worker, cases, unit_seconds, repeats)
    measured = {}
    for case in cases:
        by_worker = [found[me][case.title] for me in range(case.workers)]
        steps = [max(seconds for seconds, _ in step) for step in zip(*by_worker, strict=True)]
        slept = [sum(one for _, one in step) for step in zip(*by_worker, strict=True)]
        bubbles = [1 - busy / (step * case.workers) for busy, step in zip(slept, steps, strict=True)]
        measured[case.title] = Measured(steps, bubbles)
    return measured


def profiled(cases: Sequence[Case], unit_seconds: float, steps: int) -> dict[str, Profile]:
    """Return the cases' profiles as `elastane profile` measures them, by title."""
    torch.set_num_threads(1)
    overhead = overhead_seconds()
    kinds = sorted({unit for case in cases for unit in case.units})
    units = Units.build([Sleeper(*(each * unit_seconds for each in unit)) for unit in kinds])
    batches = [(torch.zeros(4), torch.zeros(()))]
    found = profile_units(units, batches, lambda output, target: output.sum() + target, steps=steps)
    known = dict(zip(kinds, found.profile.units, strict=True))
    return {case.title: Profile(tuple(known[unit] for unit in case.units), *overhead) for case in cases}


def measure(options: argparse.Namespace, report: Report) -> None:
    """Compare all cases."""
    unit_seconds = options.unit_milliseconds / 1000
    steps = 3 if options.quick else 10
    profiles = profiled(CASES, unit_seconds, steps)
    found = real(CASES, unit_seconds, steps)
    for case in CASES:
        profile, measured = profiles[case.title], found[case.title]
        simulated = case.simulated(profile)
        error = [100 * abs(seconds / simulated.step_seconds - 1) for seconds in measured.step_seconds]
        row = Row(f"step beside the simulated one, {case.title}", Series(error, "%"), target=TARGET_STEP)
        row.target_absolute = True
        sleeps = case.simulated(case.sleeping(unit_seconds))
        row.note = (
            f"{1000 * median(measured.step_seconds):.1f} ms, "
            f"simulated {1000 * simulated.step_seconds:.1f} ms, "
            f"of nothing but sleep {1000 * sleeps.step_seconds:.1f} ms; {case.micro_batches} micro-batches"
        )
        report.rows.append(row)
        if "equal" in case.title:
            report.rows.append(_bubble_row(case, unit_seconds, profile, measured.bubbles))
    overhead = profile.forward_overhead_seconds, profile.backward_overhead_seconds
    told = " and ".join(f"{1000 * seconds:.2f} ms" for seconds in overhead)
    report.facts["a block beside its unit, forward and backward"] = told


def _bubble_row(case: Case, unit_seconds: float, profile: Profile, bubbles: list[float]) -> Row:
    """Compare the bubble of equal stages with the formulas."""
    stages, slept = len(case.plan.stages), sum(case.units[0]) * unit_seconds
    unit = profile.units[0]
    taken = unit.forward_seconds + unit.backward_seconds
    taken += profile.forward_overhead_seconds + profile.backward_overhead_seconds
    busy = case.micro_batches / (stages - 1 + case.micro_batches)
    formula = 1 - busy * slept / taken
    off = [100 * abs(bubble - formula) for bubble in bubbles]
    row = Row(f"bubble off the formula, {case.title}", Series(off, "points"))
    row.target, row.target_absolute = TARGET_BUBBLE, True
    row.note = (
        f"{100 * median(bubbles):.1f} %; by the formula {100 * formula:.1f} %, "
        f"without overhead {100 * (1 - busy):.1f} %"
    )
    return row


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--unit-milliseconds", type=float, default=20.0, help="a time of 1 in the cases")


if __name__ == "__main__":
    run_benchmark("pipeline_timeline", __doc__ or "", measure, add_options)
