"""Accounting of slots that instances take on runners.

Every change of a runner's holdings goes through this module, so that its slots, the owners' use and the runs'
slot-seconds stay consistent.
"""

from __future__ import annotations

from collections.abc import Iterable

from elastane_master.decisions.runs import usage
from elastane_master.decisions.runs.context import RunsContext
from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.runner import Holding, Runner
from elastane_master.decisions.runs.usage import Use


def hold(ctx: RunsContext, runner: Runner, run: Run, ranks: Iterable[int]) -> None:
    """Give slots of a runner to instances of a run's current launch."""
    launch = run.launch
    assert launch is not None
    holding = runner.holds.get(launch.fence)
    if holding is None:
        holding = Holding(run.run_id, launch.attempt, launch.fence, run.demand.slots_per_instance)
        runner.holds[launch.fence] = holding
    added = [rank for rank in ranks if rank not in holding.ranks]
    holding.ranks += added
    slots = len(added) * holding.slots_per_instance
    runner.slots_used += slots
    _charge(ctx, run, slots)
    ctx.changed_runner(runner)


def hold_stale(
    ctx: RunsContext, runner: Runner, run_id: int, attempt: int, fence: int, slots: int, rank: int
) -> None:
    """Record an abandoned instance that is still on the runner. slots: of one instance."""
    holding = runner.holds.setdefault(fence, Holding(run_id, attempt, fence, slots))
    if rank not in holding.stale:
        holding.stale.append(rank)
        runner.slots_used += holding.slots_per_instance
    ctx.changed_runner(runner)


def give_up(ctx: RunsContext, runner: Runner, fence: int, ranks: Iterable[int] | None = None) -> None:
    """Stop charging for these instances (None: all of the launch), which are still ending."""
    holding = runner.holds.get(fence)
    if holding is None:
        return
    for rank in list(holding.ranks if ranks is None else ranks):
        if rank in holding.ranks:
            holding.ranks.remove(rank)
            holding.stale.append(rank)
            _uncharge(ctx, holding, 1)
    ctx.changed_runner(runner)


def release(ctx: RunsContext, runner: Runner, fence: int, ranks: Iterable[int] | None = None) -> None:
    """Free the slots of instances that are gone (None: all of the launch)."""
    holding = runner.holds.get(fence)
    if holding is None:
        return
    gone = [*holding.ranks, *holding.stale] if ranks is None else ranks
    for rank in gone:
        if rank in holding.ranks:
            holding.ranks.remove(rank)
            _uncharge(ctx, holding, 1)
        elif rank in holding.stale:
            holding.stale.remove(rank)
        else:
            continue
        runner.slots_used -= holding.slots_per_instance
        ctx.capacity_grew = True
    if not holding.ranks and not holding.stale:
        del runner.holds[fence]
    ctx.changed_runner(runner)


def release_all(ctx: RunsContext, runner: Runner) -> None:
    """Remove all holdings of a runner."""
    for fence in list(runner.holds):
        release(ctx, runner, fence)


def has(runner: Runner, fence: int, rank: int) -> bool:
    """True if the runner holds this instance, even as stale."""
    holding = runner.holds.get(fence)
    return holding is not None and (rank in holding.ranks or rank in holding.stale)


def _uncharge(ctx: RunsContext, holding: Holding, instances: int) -> None:
    run = ctx.state.runs.get(holding.run_id)
    if run is not None:  # only a run without a launch can be deleted, and then nothing is charged to it
        _charge(ctx, run, -instances * holding.slots_per_instance)


def _charge(ctx: RunsContext, run: Run, slots: int) -> None:
    """Charge a run and its owner up to now, and add `slots` from now on."""
    use = ctx.state.uses.get(run.owner)
    if use is None:
        use = ctx.state.uses[run.owner] = Use(step=usage.step_of(ctx.now), charged_at=ctx.now)
    usage.charge(use, ctx.now)
    use.slots += slots
    run.slot_seconds = slot_seconds(run, ctx.now)
    run.charged_at = ctx.now
    run.slots_held += slots
    ctx.changed_run(run)


def slot_seconds(run: Run, now: float) -> float:
    """Slot-seconds that a run has used by now."""
    return run.slot_seconds + run.slots_held * max(0.0, now - run.charged_at)
