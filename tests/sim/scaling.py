"""Jobs that scale by themselves, in some seeds with workers of unlike speed: what they measure often lies.

The time of a step is another one at every look, as told by the ring and the step alone, so that a master that
recovers decides the same again. Jobs with an odd number of ESTs tell the truth, but every ring that is not
their widest is slow, so that they go back to it. None of it may do more than cost time: the target stays
within bounds, at most eight changes an hour are voluntary, what is tried is verified within 30 steps,
and a rung that was left is not asked for while it is barred.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from elastane_master.decisions import autoscaling
from elastane_master.decisions.effects import Note
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.state import JobState
from elastane_proto.history.events import HistoryEvent, JobAutoscaled
from elastane_proto.v1 import job_pb2
from elastane_scheduler.autoscaling import autoscaler
from elastane_scheduler.autoscaling.objectives import rungs_within
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
SLOW = 50.0
VERIFIED_STEPS_MAX = 30
HURRIED = {
    "SETTLING_STEPS": 1,
    "MEASURE_STEPS": 1,
    "VERIFY_STEPS": 2,
    "LOOK_STEPS": 1,
    "PAUSE_SECONDS": 0.3,
    "BAR_SECONDS": 1.0,
    "REACH_SECONDS": 2.0,
    "EXPLORE_FACTOR": 0.0,
    "CHANGE_FACTOR": 0.0,
}


def draw(seed: int, *, fixed: bool) -> str:
    """Return the mode of a run; "" in most seeds, and where the job trains only with its full number."""
    if seed % 20 not in SEEDS_OF_20 or seed // 20 % 2 or fixed:
        return ""
    return random.Random(f"scaling {seed}").choice(MODES)


def apply(mode: str, settings: job_pb2.JobSettings) -> None:
    """Write the mode into a job's settings."""
    if mode:
        settings.scaling, settings.workers_min, settings.workers_max = mode, 1, 0
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
        if state.settings.ests % 2:
            return msgspec.structs.replace(seen, step_seconds=seen.step_seconds * _slow(state))
        lie = random.Random(f"{state.ring.generation} {state.steps.current}").choice(FACTORS)
        return msgspec.structs.replace(seen, step_seconds=seen.step_seconds * lie)

    def looked_at(machine: JobMachine, event: Any, now: float) -> Any:
        old = machine.state.scaling.target
        possible = _rungs(machine.state) if machine.state.settings.scaling else ()
        decision = handle(machine, event, now)
        if decision.durable and machine.state.settings.scaling:
            noted = [note.event for note in decision.effects if isinstance(note, Note)]
            _check(world, machine, noted, possible)
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


def _slow(state: JobState) -> float:
    return SLOW if len(state.active_members()) < _most(state) else 1.0


def _most(state: JobState) -> int:
    return state.settings.workers_most


def _rungs(state: JobState) -> Sequence[int]:
    return rungs_within(autoscaling.bounds(state, state.settings))


def _check(world: World, machine: JobMachine, events: list[HistoryEvent], possible: Sequence[int]) -> None:
    """Check what was decided. possible: numbers of workers before, as memory of that ring allowed."""
    state = machine.state
    settings, most, book = state.settings, _most(state), state.scaling
    for event in events:
        bar = book.autoscaler.barred.get(event.workers) if isinstance(event, JobAutoscaled) else None
        # Where bounds or memory leave one number alone, or no longer allow the present one, the nearest is
        # taken, barred or not. A decision that changes the ring also changes of whose memory is known.
        is_free = min(len(possible), len(_rungs(state))) > 1
        if isinstance(event, JobAutoscaled):
            is_free &= possible[0] <= event.workers_before <= possible[-1]
        if bar is not None and bar.until > book.autoscaler.now and is_free:
            world.fail("scaling", f"{event} until {bar.until}, it is {book.autoscaler.now}")
    # In a ring of another size nothing is verified yet: it has steps from before the change.
    is_reached = len(state.active_members()) == book.autoscaler.target
    if book.autoscaler.before and is_reached and book.steps > VERIFIED_STEPS_MAX:
        why = f"{book.reason}; {book.autoscaler}"
        world.fail("scaling", f"a change is not verified after {book.steps} steps: {why}")
    target = autoscaling.workers_target(state)
    if not min(settings.workers_min, most) <= target <= most:
        world.fail("scaling", f"{target} workers are asked for, {settings.workers_min} to {most} are allowed")
    changes = state.scaling.autoscaler.changes
    if len(changes) > autoscaler.CHANGES_MAX or list(changes) != sorted(changes):
        world.fail("scaling", f"voluntary changes at {changes}")
