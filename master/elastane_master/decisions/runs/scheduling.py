"""Gives free slots to runs that wait, in the order of the policy, then to elastic runs that may grow.

Done after every event that may have freed slots, at a Tick, and where a new run fits at once.
"""

from __future__ import annotations

from elastane_master.decisions.runs import launch, placement, usage
from elastane_master.decisions.runs.context import RunsContext
from elastane_master.decisions.runs.placement import Free
from elastane_master.decisions.runs.queue import QueuePolicy
from elastane_master.decisions.runs.run import GONE, Run


def settle(ctx: RunsContext, policy: QueuePolicy, always: bool) -> bool:
    """Start and grow what can be; True if something may have. always: time alone may allow it."""
    if not (always or ctx.capacity_grew or ctx.fresh):
        return False
    free = placement.free_slots(ctx.state.runners)
    if not free:
        return False
    if not (always or ctx.capacity_grew or any(_fits(ctx, run_id, free) for run_id in ctx.fresh)):
        return False
    started = _start(ctx, policy, free)
    _grow(ctx, free, started)
    return True


def _fits(ctx: RunsContext, run_id: int, free: Free) -> bool:
    run = ctx.state.runs.get(run_id)
    return run is not None and run.waits and placement.place_start(run, ctx.state.runners, free) is not None


def _start(ctx: RunsContext, policy: QueuePolicy, free: Free) -> set[int]:
    """Launch runs that wait; return them."""
    started: set[int] = set()
    if not len(ctx.index.waiting):
        return started
    for place in policy.order(ctx.state, ctx.index.waiting, free, ctx.now, whole=False):
        if place.verdict == "start":
            ctx.touch()
            ctx.state.reserved_turn = place.reserved
            launch.begin(ctx, ctx.state.runs[place.run_id], place.assignment)
            started.add(place.run_id)
        if not free:
            break
    return started


def _grow(ctx: RunsContext, free: Free, started: set[int]) -> None:
    """Give what nobody waits for to elastic runs that have fewer instances than they can use."""
    for run_id in sorted(ctx.index.active | started):
        if not free:
            return
        run = ctx.state.runs[run_id]
        missing = missing_ranks(run)
        room = usage.room(ctx.state.uses, ctx.state.slots_max, run.owner)
        if room < len(missing) * run.demand.slots_per_instance:
            missing = missing[: int(room) // run.demand.slots_per_instance]
        if missing:
            assignment = placement.place_more(run, missing, ctx.state.runners, free)
            if assignment:
                placement.take(free, assignment, run.demand.slots_per_instance)
                launch.add(ctx, run, assignment)


def missing_ranks(run: Run) -> list[int]:
    """Instances of an elastic run that have no place: never placed, or lost. Ended ones are not missing."""
    if run.launch is None or run.launch.ending is not None or not run.demand.elastic or run.job_over:
        return []
    return [
        record.rank
        for record in run.ranks
        if record.state == "lost" or (record.state not in GONE and not record.runner_id)
    ]
