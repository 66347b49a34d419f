"""The service as a scheduling policy sees it: runs as jobs, slots as devices. Pure.

A device is a slot of a runner, with the runner's type. A run whose instances take s slots counts as having s
times its N ESTs: n slots host ceil(N s / n) each, which gives the step time of floor(n / s) instances. A
black box runs on exactly its slots, all of one type; once it has them they are not offered to the policy.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from elastane_master.decisions.runs import device_kinds, placement, queue, scaling, usage
from elastane_master.decisions.runs.allocating import capacity, placed_by_type
from elastane_master.decisions.runs.allocation import Instances, Target
from elastane_master.decisions.runs.index import Index
from elastane_master.decisions.runs.queue_shares import QueueShare, queue_of, slots_held
from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.runner import Runner
from elastane_master.decisions.runs.state import RunsState
from elastane_scheduler.costs import Costs
from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.execution import change
from elastane_scheduler.jobs import Job, JobState, arrived, finish_of
from elastane_scheduler.mixing import kinds_at
from elastane_scheduler.plan import Shape
from elastane_scheduler.pool import Counts, Pool
from elastane_scheduler.queues import Queue
from elastane_scheduler.reasons import reasons
from elastane_scheduler.view import Decision, View

WAITING_MAX = 200
"""Maximum number of waiting runs that a policy sees, in the order of fair share; bounds its time."""
EST_SECONDS = 1.0
"""Assumed time of an EST's part of a step until one has been measured."""
GUESS_SECONDS_MIN = 60.0
"""Least remaining time assumed for a run of unknown length."""
NOT_MEASURED = "its speed is not measured"
_EARLIEST_SECONDS = 1e-6


@dataclass(frozen=True)
class Progress:
    """Measurements of an elastic run's job. est_seconds: of an EST's part of a step, by device type.

    steps: committed. steps_all: 0: unknown. step_seconds: of a step of its present ring; 0.0: unknown.
    ests_max: ESTs that fit into the memory of one instance, by device type; without an entry: unknown.
    """

    est_seconds: Mapping[str, float]
    steps: int = 0
    steps_all: int = 0
    step_seconds: float = 0.0
    ests_max: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PoolView:
    """The view. runs: of the jobs, in their order. unmeasured: runs whose speed is not measured.

    revision: of the state. left_out: runs that the pool cannot carry, with the reason.
    """

    view: View
    runs: tuple[Run, ...]
    unmeasured: frozenset[int]
    revision: int
    left_out: Mapping[int, str]

    def targets(self, decision: Decision) -> tuple[Target, ...]:
        """Translate a policy's decision to targets of runs, with a reason for each."""
        found: list[Target] = []
        texts = reasons(self.view, decision)
        for run, counts, reason in zip(self.runs, decision.allocation, texts, strict=True):
            slots = run.demand.slots_per_instance
            instances = {
                name: count // slots
                for name, count in zip(self.view.pool.types, counts, strict=True)
                if count // slots
            }
            text = f"{reason.text}; {NOT_MEASURED}" if run.run_id in self.unmeasured else reason.text
            found.append(Target(run.run_id, instances, text))
        found += [Target(run_id, {}, text) for run_id, text in self.left_out.items()]
        return tuple(found)


def pool_view(
    state: RunsState, index: Index, progress: Mapping[int, Progress], now: float, costs: Costs
) -> PoolView | None:
    """Return the view for a policy; None if there are no slots or no runs.

    progress: by run, for those whose job has reported it.
    """
    slots = capacity(state.runners)
    types = tuple(sorted(name for name, count in slots.items() if count > 0))
    runs, left_out = _runs(state, index, now)
    most = _most(state, runs)
    if not types or not runs:
        return None
    offered = Counter(slots)
    for run_id in index.active:
        run = state.runs[run_id]
        if not run.demand.elastic:
            for name, count in placed_by_type(run, state.runners, staying=True).items():
                offered[name] -= count * run.demand.slots_per_instance
    counts = tuple(max(0, offered[name]) for name in types)
    pool = Pool(types, tuple(slots[name] for name in types))
    usual = _usual(progress.values())
    jobs: list[JobState] = []
    shown: list[Run] = []
    unmeasured = set()
    for run in runs:
        known = progress.get(run.run_id)
        try:
            jobs.append(
                _job_state(
                    run,
                    state.runners,
                    pool,
                    known,
                    usual,
                    now,
                    costs,
                    most.get(run.run_id),
                    state.settings.queues,
                )
            )
        except InvalidSettings as error:
            left_out[run.run_id] = placement.obstacle(run, state.runners) or str(error)
            continue
        shown.append(run)
        if known is None or not known.est_seconds:
            unmeasured.add(run.run_id)
    # A runner may have come back with fewer slots than it has instances.
    held = [sum(job.devices[place] for job in jobs) for place in range(len(types))]
    counts = tuple(map(max, counts, held))
    view = View(now, jobs, pool, counts, costs, _queues(state, index, types))
    return PoolView(view, tuple(shown), frozenset(unmeasured), state.revision, left_out)


def _queues(state: RunsState, index: Index, types: Sequence[str]) -> tuple[Queue, ...]:
    """Return the queues, without guaranteed slots held by their black boxes, which are not offered."""
    queues = state.settings.queues
    fixed = [run for run_id in index.active if not (run := state.runs[run_id]).demand.elastic]
    held = slots_held(queues, fixed, state.runners) if queues else {}
    return tuple(
        Queue(
            queue.name,
            queue.weight,
            tuple(max(0, queue.guaranteed_of(kind) - held.get((queue.name, kind), 0)) for kind in types),
        )
        for queue in queues
    )


def _runs(state: RunsState, index: Index, now: float) -> tuple[list[Run], dict[int, str]]:
    """Return running elastic runs and the first waiting ones, oldest first; and the others with reasons.

    The others are runs whose owner's quota has no room for them: slots assigned to them would stay idle.
    """
    running = [
        run
        for run_id in index.active
        if (run := state.runs[run_id]).demand.elastic and run.launch is not None and run.launch.ending is None
    ]
    rooms = {owner: usage.room(state.uses, state.slots_max, owner) for owner in state.slots_max}
    startable: list[Run] = []
    left_out: dict[int, str] = {}
    for run_id in queue.ordered(state, index.waiting, now):
        run = state.runs[run_id]
        needed, room = run.demand.slots_min, rooms.get(run.owner, math.inf)
        if not (obstacle := usage.over_quota(run.owner, needed, room, state.slots_max.get(run.owner, 0))):
            startable.append(run)
            if run.owner in rooms:
                rooms[run.owner] -= needed
        elif len(left_out) < WAITING_MAX:
            left_out[run_id] = f"run {run_id} {obstacle}"
        if len(startable) == WAITING_MAX:
            break
    return sorted((*running, *startable), key=lambda run: (run.queued_at, run.run_id)), left_out


def _most(state: RunsState, runs: Sequence[Run]) -> dict[int, int]:
    """Return the slots that each run may have within its owner's quota; runs without a quota are left out.

    Each run may keep its slots and have its minimum; then the oldest get what they can use. This is not left
    to the policy, which does not know owners.
    """
    found: dict[int, int] = {}
    rooms = {owner: usage.room(state.uses, state.slots_max, owner) for owner in state.slots_max}
    limited = [run for run in runs if run.owner in rooms]
    for run in limited:
        found[run.run_id] = run.slots_held or run.demand.slots_min
        if not run.slots_held:
            rooms[run.owner] -= run.demand.slots_min
    for run in limited:
        each = run.demand.slots_per_instance
        wanted = run.demand.instances * each - found[run.run_id]
        more = max(0, min(wanted, int(rooms[run.owner]))) // each * each
        found[run.run_id] += more
        rooms[run.owner] -= more
    return found


# ------------------------------------------------------------------ speeds


def _usual(known: Iterable[Progress]) -> dict[str, float]:
    """Return the median of the runs' measurements, by device type."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for one in known:
        for name, seconds in one.est_seconds.items():
            found[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def est_seconds(
    types: Sequence[str], known: Mapping[str, float], usual: Mapping[str, float]
) -> tuple[float, ...]:
    """Return the seconds of an EST's part of a step on each type.

    Measured types as they are; others by the usual value of that type, scaled by this run's ratio to the
    usual values on its measured types; `EST_SECONDS` if nothing is known.
    """
    ratios = [known[name] / usual[name] for name in sorted(known) if usual.get(name)]
    factor = statistics.median(ratios) if ratios else 1.0
    typical = statistics.median(known.values()) if known else 0.0
    found = []
    for name in types:
        if known.get(name):
            found.append(known[name])
        elif usual.get(name):
            found.append(usual[name] * factor)
        else:
            found.append(typical or EST_SECONDS)
    return tuple(max(_EARLIEST_SECONDS, seconds) for seconds in found)


# ------------------------------------------------------------------ jobs


@lru_cache(maxsize=2048)
def _shape(
    ests: int,
    seconds: tuple[float, ...],
    limits: tuple[int, ...],
    kinds: tuple[int, ...],
    workers_min: int,
    exchange_seconds: float,
    workers_max: int,
) -> Shape:
    """Return a shape; equal runs share one, with its cache."""
    return Shape(
        ests, seconds, limits, True, workers_min, exchange_seconds, workers_max=workers_max, kinds=kinds
    )


def _job_state(
    run: Run,
    runners: Mapping[str, Runner],
    pool: Pool,
    known: Progress | None,
    usual: Mapping[str, float],
    now: float,
    costs: Costs,
    slots_max: int | None,
    queues: Sequence[QueueShare],
) -> JobState:
    """Return a run as a job. Raises InvalidSettings for one that the pool cannot carry.

    slots_max: limit from its owner's quota; None: no quota.
    """
    demand = run.demand
    known = known or Progress({})
    fits = _slots_that_fit(run, runners)
    seconds = est_seconds(pool.types, known.est_seconds, usual)
    ests = demand.instances * demand.slots_per_instance
    least = demand.instances_min * demand.slots_per_instance
    # With s slots an instance hosts as many ESTs as one slot would if there were s times as many.
    most = {name: min(ests, known.ests_max.get(name, ests)) if demand.elastic else 1 for name in pool.types}
    limits = tuple(most[name] if fits[name] else 0 for name in pool.types)
    # A black box is on devices of one type.
    kinds = kinds_at(device_kinds.level_of(run) if demand.elastic else "d1", pool.types)
    devices = _devices(run, runners, pool)
    exchange = _exchange(run, known, seconds, devices)
    # Policies do not see runners: if only some runners of a type fit, limit it to their slots.
    usable = min(ests, sum(fits.values()))
    if (classes := scaling.wanted(run)) is not None:
        usable = min(usable, sum(classes.values()) * demand.slots_per_instance)
    if usable < least:
        raise InvalidSettings(f"{usable} slots fit it, and it needs {least}", hint="Ask for fewer.")
    if slots_max is not None:
        usable = max(least, min(usable, slots_max))
    shape = _shape(ests, seconds, limits, kinds, least, exchange, usable if demand.elastic else 0)
    request = _request(run, pool, fits, seconds, usable)
    steps_left, is_known = _steps_left(run, known, shape)
    job = Job(
        f"run {run.run_id}",
        shape,
        max(1.0, known.steps + steps_left),
        run.queued_at,
        request,
        known=is_known,
        queue=queue_of(queues, run.owner),
        priority=run.priority,
    )
    state = arrived(job)
    state.remaining = steps_left
    if run.launch is None:
        state.started, state.service_seconds = run.attempt_open, run.slot_seconds
        return state
    return _running(state, run, devices, now, costs)


def _slots_that_fit(run: Run, runners: Mapping[str, Runner]) -> Counter[str]:
    """Return the slots of each device type that the run may have, in whole instances."""
    slots = run.demand.slots_per_instance
    found: Counter[str] = Counter()
    for runner in runners.values():
        if not runner.lost and not runner.leaving and not placement.mismatch(run, runner):
            found[runner.computes_on] += runner.slots // slots * slots
    return found


def _devices(run: Run, runners: Mapping[str, Runner], pool: Pool) -> Counts:
    has: Instances = placed_by_type(run, runners, staying=True)
    return tuple(has.get(name, 0) * run.demand.slots_per_instance for name in pool.types)


def _exchange(run: Run, known: Progress, seconds: Sequence[float], devices: Counts) -> float:
    """Return a measured step's time without the part of the slowest worker."""
    workers = sum(devices) // run.demand.slots_per_instance
    if not known.step_seconds or workers < 2:
        return 0.0
    slowest = max(one for one, count in zip(seconds, devices, strict=True) if count)
    computing = -(-run.demand.instances // workers) * slowest
    return round(max(0.0, known.step_seconds - computing), 3)


def _request(run: Run, pool: Pool, fits: Mapping[str, int], seconds: Sequence[float], usable: int) -> Counts:
    """Return the slots under policies without elasticity: all on one type, as many as that has.

    usable: the most that it can use.
    """
    demand = run.demand
    wanted = min(demand.instances * demand.slots_per_instance, usable)
    having = [place for place, name in enumerate(pool.types) if fits[name]]
    place = min(having, key=lambda one: (-min(fits[pool.types[one]], wanted), seconds[one], one), default=0)
    count = min(wanted, fits[pool.types[place]])
    return tuple(count if one == place else 0 for one in range(len(pool.types)))


def _steps_left(run: Run, known: Progress, shape: Shape) -> tuple[float, bool]:
    """Return the steps that a run has left; one of unknown length is assumed to be halfway."""
    if known.steps_all:
        return max(1.0, float(known.steps_all - known.steps)), True
    return max(float(known.steps), GUESS_SECONDS_MIN / shape.levels[0][0]), False


def _running(state: JobState, run: Run, devices: Counts, now: float, costs: Costs) -> JobState:
    launch = run.launch
    assert launch is not None
    left = state.remaining
    if launch.started_at is None:
        state.at_seconds = min(now, launch.begun_at)
        change(state, devices, state.at_seconds, costs)
    else:
        if len(state.shape.groups) > 1 and any(devices):
            state.shape = state.shape.bound_to(max(range(len(devices)), key=lambda one: devices[one]))
        seconds = state.shape.step_seconds(devices)
        rate = 0.0 if seconds == math.inf else 1.0 / seconds
        state.at_seconds, state.devices, state.started = now, devices, True
        state.stages, state.segments = ((now, devices),), ((now, rate),)
        state.finish_seconds = finish_of(state.segments, left)
    state.service_seconds = run.slot_seconds
    return state
