"""Jobs that scale by themselves, in some seeds with workers of unlike speed: what they measure often lies.

The time of a step is another one at every look, as told by the ring and the step alone, so that a master that
recovers decides the same again. None of it may do more than cost time: the target stays within the job's
bounds, and at most eight changes an hour are voluntary.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from elastane_master.decisions import autoscaling
from elastane_master.decisions.machine import JobMachine
from elastane_proto.v1 import job_pb2
from elastane_scheduler.autoscaling import autoscaler
from sim.unlike import SEEDS_OF_20
from sim.world import World

TARGETS = "targets of jobs that scale by themselves"
MODES = (
    "efficiency",
    "efficiency=0.5",
    "utility=100,60",
    "utility=0:5,10:5",
    "budget=0.001",
    "budget=5",
    "deadline=+10s",
    "deadline=+1h",
)
FACTORS = (0.001, 0.1, 1.0, 1.0, 1.0, 3.0, 1000.0, float("nan"), float("inf"), -1.0)
HURRIED = {
    "MEASURE_STEPS": 1,
    "VERIFY_STEPS": 2,
    "LOOK_STEPS": 1,
    "PAUSE_SECONDS": 0.3,
    "BAR_SECONDS": 1.0,
    "REACH_SECONDS": 2.0,
}


def draw(seed: int, *, fixed: bool) -> str:
    """Return the mode of a run; "" in most seeds, and where the job trains only with its full number."""
    if seed % 20 not in SEEDS_OF_20 or seed // 20 % 2 or fixed:
        return ""
    return random.Random(f"scaling {seed}").choice(MODES)


def apply(mode: str, settings: job_pb2.JobSettings) -> None:
    """Write the mode into a job's settings."""
    if mode:
        settings.scaling = mode
        settings.over_budget = random.Random(mode).choice((0, job_pb2.OVER_BUDGET_SUSPEND))


@contextmanager
def hurried(world: World, taken: list[int]) -> Iterator[None]:
    """Decide as often as a run of half a minute needs, on measurements that lie, and check what follows.

    taken: how often the target changed is appended.
    """
    modules = (autoscaler, autoscaling)
    before = [{name: value for name, value in vars(module).items() if name in HURRIED} for module in modules]
    measurement, handle = autoscaling.measurement, JobMachine.handle

    def lying(state: Any, now: float) -> autoscaler.Measurement:
        seen = measurement(state, now)
        lie = random.Random(f"{state.ring.generation} {state.steps.current}").choice(FACTORS)
        return msgspec.structs.replace(seen, step_seconds=seen.step_seconds * lie)

    def looked_at(machine: JobMachine, event: Any, now: float) -> Any:
        old = machine.state.scaling.target
        decision = handle(machine, event, now)
        if decision.durable and machine.state.settings.scaling:
            _check(world, machine)
            if machine.state.scaling.target != old:
                taken.append(machine.state.scaling.target)
        return decision

    try:
        for module, names in zip(modules, before, strict=True):
            vars(module).update({name: HURRIED[name] for name in names})
        autoscaling.measurement = lying
        JobMachine.handle = looked_at  # type: ignore[method-assign]
        yield
    finally:
        for module, names in zip(modules, before, strict=True):
            vars(module).update(names)
        autoscaling.measurement = measurement
        JobMachine.handle = handle  # type: ignore[method-assign]


def _check(world: World, machine: JobMachine) -> None:
    state = machine.state
    settings = state.settings
    most = min(settings.workers_max or settings.ests, settings.ests)
    target = autoscaling.workers_target(state)
    if not min(settings.workers_min, most) <= target <= most:
        world.fail("scaling", f"{target} workers are asked for, {settings.workers_min} to {most} are allowed")
    changes = state.scaling.autoscaler.changes
    if len(changes) > autoscaler.CHANGES_MAX or list(changes) != sorted(changes):
        world.fail("scaling", f"voluntary changes at {changes}")
