"""Slots that instances take on runners, and who is charged for them.

Every change of what a runner holds goes through here, so that its slots, its owners' use and the runs'
slot-seconds cannot drift apart.
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
    """Note an instance that has been given up but still is on the runner. slots: of one instance."""
    holding = runner.holds.setdefault(fence, Holding(run_id, attempt, fence, slots))
    if rank not in holding.stale:
        holding.stale.append(rank)
        runner.slots_used += holding.slots_per_instance
    ctx.changed_runner(runner)


def give_up(ctx: RunsContext, runner: Runner, fence: int, ranks: Iterable[int] | None = None) -> None:
    """Charge nobody any more for these instances (None: all of the launch), which still end there."""
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
    """Forget everything that a runner holds."""
    for fence in list(runner.holds):
        release(ctx, runner, fence)


def has(runner: Runner, fence: int, rank: int) -> bool:
    """True if the runner holds this instance, be it stale."""
    holding = runner.holds.get(fence)
    return holding is not None and (rank in holding.ranks or rank in holding.stale)


def _uncharge(ctx: RunsContext, holding: Holding, instances: int) -> None:
    run = ctx.state.runs.get(holding.run_id)
    if run is not None:  # only a run without a launch can be deleted, and then nothing is charged to it
        _charge(ctx, run, -instances * holding.slots_per_instance)


def _charge(ctx: RunsContext, run: Run, slots: int) -> None:
    """Charge a run and its owner up to now, and for `slots` more from now on."""
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
