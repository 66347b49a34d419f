"""Gives free slots to waiting runs, in the order of the policy, then to elastic runs that may grow.

If the job of an elastic run scales by itself, its target is the maximum for the run.

While a scheduling policy decides, elastic runs grow only to its targets and give back the surplus.

Called after every event that may have freed slots, at a Tick, and when a new run fits at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from elastane_master.decisions.runs import (
    allocating,
    holdings,
    launch,
    placement,
    reshaping,
    scaling,
    usage,
)
from elastane_master.decisions.runs.allocation import Instances
from elastane_master.decisions.runs.context import RunsContext
from elastane_master.decisions.runs.placement import Free
from elastane_master.decisions.runs.queue import QueuePolicy
from elastane_master.decisions.runs.run import GONE, Run


def settle(ctx: RunsContext, policy: QueuePolicy, always: bool) -> bool:
    """Start, grow and shrink runs; True if anything may have changed. always: also without freed slots."""
    in_charge = ctx.state.allocation.in_charge
    shrunk = in_charge and _shrink(ctx, always or ctx.capacity_grew)
    shrunk = _follow_jobs(ctx, always or ctx.capacity_grew) or shrunk
    if not (always or ctx.capacity_grew or ctx.fresh):
        return shrunk
    free = placement.free_slots(ctx.state.runners)
    if not free and not (in_charge and _starves(ctx)):
        return shrunk
    if not (always or ctx.capacity_grew or any(_fits(ctx, run_id, free) for run_id in ctx.fresh)):
        return shrunk
    started = _start(ctx, policy, free)
    if in_charge:
        _grow_to_targets(ctx, free, started)
    else:
        _grow(ctx, free, started)
    return True


def _shrink(ctx: RunsContext, all_runs: bool) -> bool:
    """Stop running runs' instances beyond their targets; True if any was stopped."""
    effects = len(ctx.effects)
    for run_id in sorted(ctx.index.active) if all_runs else list(ctx.runs_changed):
        if (run := ctx.state.runs.get(run_id)) is not None:
            reshaping.shrink(ctx, run)
    return len(ctx.effects) > effects


def _follow_jobs(ctx: RunsContext, all_runs: bool) -> bool:
    """Stop runs' instances beyond the targets of their self-scaling jobs; True if any was stopped."""
    effects = len(ctx.effects)
    for run_id in sorted(ctx.index.active) if all_runs else list(ctx.runs_changed):
        if (run := ctx.state.runs.get(run_id)) is not None:
            reshaping.follow_job(ctx, run)
    return len(ctx.effects) > effects


def _starves(ctx: RunsContext) -> bool:
    seconds = ctx.state.settings.starvation_seconds
    return next(ctx.index.waiting.starving(ctx.now, seconds), None) is not None


def _fits(ctx: RunsContext, run_id: int, free: Free) -> bool:
    run = ctx.state.runs.get(run_id)
    return run is not None and run.waits and placement.place_start(run, ctx.state.runners, free) is not None


def _start(ctx: RunsContext, policy: QueuePolicy, free: Free) -> set[int]:
    """Launch waiting runs; return them."""
    started: set[int] = set()
    if not len(ctx.index.waiting):
        return started
    for place in policy.order(ctx.state, ctx.index.waiting, free, ctx.now, whole=False):
        if place.verdict == "reserve" and ctx.state.allocation.in_charge:
            reshaping.make_room(ctx, ctx.state.runs[place.run_id], place.needs)
        if place.verdict == "start":
            ctx.touch()
            ctx.state.reserved_turn = place.reserved
            launch.begin(ctx, ctx.state.runs[place.run_id], place.assignment)
            started.add(place.run_id)
        if not free:
            break
    return started


def _grow(ctx: RunsContext, free: Free, started: set[int]) -> None:
    """Give slots that no run waits for to elastic runs that can use more instances."""
    for run_id in sorted(ctx.index.active | started):
        if not free:
            return
        run = ctx.state.runs[run_id]
        for ranks, there in _by_class(ctx, run, _placeable(ctx, run), free):
            _add(ctx, run, ranks, there, free)


def _add(ctx: RunsContext, run: Run, missing: list[int], there: Free, free: Free) -> None:
    """Place these instances on `there`, a part of `free`, as far as its owner's quota allows."""
    slots = run.demand.slots_per_instance
    room = usage.room(ctx.state.uses, ctx.state.slots_max, run.owner)
    if room < len(missing) * slots:
        missing = missing[: int(room) // slots]
    if missing and (assignment := placement.place_more(run, missing, ctx.state.runners, there)):
        placement.take(free, assignment, slots)
        launch.add(ctx, run, assignment)


def _by_class(ctx: RunsContext, run: Run, missing: list[int], free: Free) -> Iterator[tuple[list[int], Free]]:
    """Yield instances to place, with the free slots that the run's job allows for them."""
    classes = scaling.wanted(run)
    if classes is None or not missing:
        yield missing, free
        return
    runners = ctx.state.runners
    has = scaling.placed(run, runners, classes)
    for name in sorted(classes, reverse=True):  # on demand first: its availability is certain
        room = max(0, classes[name] - has[name])
        there = {one: slots for one, slots in free.items() if scaling.class_of(runners[one], classes) == name}
        yield missing[:room], there
        missing = missing[room:]


def _grow_to_targets(ctx: RunsContext, free: Free, started: set[int]) -> None:
    """Grow elastic runs to the scheduling policy's targets, on its device types."""
    state = ctx.state
    for run_id in list(state.allocation.targets):
        if not free:
            return
        run = state.runs.get(run_id)
        if run is None or not (run_id in ctx.index.active or run_id in started):
            continue
        _grow_one(ctx, run, state.allocation.targets[run_id], free)
        reshaping.move(ctx, run, free)


def _grow_one(ctx: RunsContext, run: Run, target: Instances, free: Free) -> None:
    state, slots = ctx.state, run.demand.slots_per_instance
    has = allocating.placed_by_type(run, state.runners)
    room = usage.room(state.uses, state.slots_max, run.owner)
    for name in sorted(target):
        missing = _placeable(ctx, run)[: max(0, target[name] - has.get(name, 0))]
        missing = missing[: _left_by_job(ctx, run)]
        if room < len(missing) * slots:
            missing = missing[: int(room) // slots]
        if not missing:
            continue
        there = {one: slots for one, slots in free.items() if state.runners[one].computes_on == name}
        if assignment := placement.place_more(run, missing, state.runners, there):
            placement.take(free, assignment, slots)
            room -= slots * sum(map(len, assignment.values()))
            launch.add(ctx, run, assignment)


def _left_by_job(ctx: RunsContext, run: Run) -> int:
    """Return how many more instances a run may have under its job's target; all if it has none."""
    classes = scaling.wanted(run)
    if classes is None:
        return run.demand.instances
    return max(0, sum(classes.values()) - sum(1 for record in run.ranks if record.placed))


def _placeable(ctx: RunsContext, run: Run) -> list[int]:
    """Return the unplaced instances that may be placed now.

    While a policy decides, instances that are still ending are left out; otherwise those that a policy has
    stopped and that are still ending, so that a draining instance has no successor beside it. Other abandoned
    instances may be on a runner that does not answer, and are not awaited.
    """
    missing = missing_ranks(run)
    if not missing or run.launch is None:
        return missing
    waited_for = missing if ctx.state.allocation.policy else run.launch.drained
    runners = [ctx.state.runners[name] for name in run.launch.runners if name in ctx.state.runners]
    return [
        rank
        for rank in missing
        if rank not in waited_for
        or not any(holdings.has(runner, run.launch.fence, rank) for runner in runners)
    ]


def missing_ranks(run: Run) -> list[int]:
    """Return unplaced instances of an elastic run: never placed, or lost; ended ones do not count.

    Parameter servers come first.
    """
    if run.launch is None or run.launch.ending is not None or not run.demand.elastic or run.job_over:
        return []
    return [
        record.rank
        for record in (run.ranks[rank] for rank in run.in_order)
        if record.state == "lost" or (record.state not in GONE and not record.runner_id)
    ]
