"""Stops instances of running elastic runs: to follow the policy, or for a run that has waited too long.

An instance is stopped alone, with SIGTERM and the run's grace period, so its worker leaves as planned and
nothing is lost. A run keeps at least `instances_min`, and running instances are stopped only once the target
number of others runs: old ones train until new ones are ready.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from elastane_master.decisions.runs import launch, placement, scaling
from elastane_master.decisions.runs.context import RunsContext
from elastane_master.decisions.runs.placement import Free
from elastane_master.decisions.runs.run import RankRecord, Run
from elastane_master.decisions.runs.runner import Runner


def shrink(ctx: RunsContext, run: Run) -> None:
    """Stop instances of a running run beyond its target."""
    target = ctx.state.allocation.targets.get(run.run_id)
    if target is None or not _may_shrink(run):
        return
    least = max(run.demand.instances_min, sum(target.values()))
    surplus = _by_type(ctx, run)
    surplus.subtract(target)
    _stop(ctx, run, surplus, _type_of(ctx), _Least(least, least), "the scheduling policy takes it back")


def move(ctx: RunsContext, run: Run, free: Free) -> None:
    """Stop instances of a complete run, so that some can be placed on another device type.

    As many are stopped as can be placed there now; a run with missing instances does not need this.
    """
    target = ctx.state.allocation.targets.get(run.run_id)
    if target is None or not _may_shrink(run) or any(not record.placed for record in run.ranks):
        return
    has, slots = _by_type(ctx, run), run.demand.slots_per_instance
    room = sum(
        min(count - has[name], _free_of(ctx, run, free, name) // slots)
        for name, count in target.items()
        if count > has[name]
    )
    room = min(room, len(run.ranks) - run.demand.instances_min)
    has.subtract(target)
    least = _Least(len(run.ranks) - room, run.demand.instances_min)
    _stop(ctx, run, has, _type_of(ctx), least, "the scheduling policy moves it")


def follow_job(ctx: RunsContext, run: Run) -> None:
    """Stop instances of a running run beyond the target of its job, which scales by itself.

    If all its instances are placed, those of one class make room for the other as slots become free there.
    """
    classes = scaling.wanted(run)
    if classes is None or not _may_shrink(run):
        return
    runners, slots = ctx.state.runners, run.demand.slots_per_instance
    surplus = scaling.placed(run, runners, classes)
    surplus.subtract(classes)
    least = max(run.demand.instances_min, sum(classes.values()))
    if all(record.placed for record in run.ranks):
        free = placement.free_slots(runners)
        least -= sum(
            min(-count, _free_of_class(run, runners, free, name, classes) // slots)
            for name, count in surplus.items()
            if count < 0
        )
        least = max(least, run.demand.instances_min)
    total = sum(classes.values())
    of_them = f", {classes[scaling.ON_DEMAND]} of them on demand" if scaling.ON_DEMAND in classes else ""
    reason = f"its job wants {total} workers{of_them}"

    def class_of(record: RankRecord) -> str:
        return scaling.class_of(runners[record.runner_id], classes)

    _stop(ctx, run, surplus, class_of, _Least(least, least), reason)


def make_room(ctx: RunsContext, starving: Run, needs: Free) -> None:
    """Take slots from running elastic runs, largest first, for one that has waited too long.

    needs: slots that are reserved for it, by runner.
    """
    missing: Free = {}
    for name, slots in needs.items():
        runner = ctx.state.runners[name]
        ending = sum(len(holding.stale) * holding.slots_per_instance for holding in runner.holds.values())
        if slots > runner.slots_free + ending:
            missing[name] = slots - runner.slots_free - ending
    givers = [
        run
        for run_id in sorted(ctx.index.active)
        if _may_shrink(run := ctx.state.runs[run_id]) and run.priority <= starving.priority
    ]
    givers.sort(key=lambda run: run.demand.instances_min - sum(1 for one in run.ranks if one.placed))
    for run in givers:
        if not missing:
            return
        _give(ctx, run, missing, "another run has waited longest")


def _give(ctx: RunsContext, run: Run, missing: Free, reason: str) -> None:
    """Stop a run's instances beyond its minimum on these runners, and subtract them from the need."""
    least, each = run.demand.instances_min, run.demand.slots_per_instance
    surplus = {name: -(-slots // each) for name, slots in missing.items()}
    stopped = _stop(ctx, run, surplus, lambda record: record.runner_id, _Least(least, least), reason)
    for name, count in stopped.items():
        missing[name] -= count * each
        if missing[name] <= 0:
            del missing[name]


def _may_shrink(run: Run) -> bool:
    return (
        run.demand.elastic
        and run.launch is not None
        and run.launch.ending is None
        and run.launch.started_at is not None
        and not run.job_over
    )


def _by_type(ctx: RunsContext, run: Run) -> Counter[str]:
    runners = ctx.state.runners
    return Counter(runners[record.runner_id].computes_on for record in run.ranks if record.placed)


def _free_of(ctx: RunsContext, run: Run, free: Free, device_type: str) -> int:
    """Slots that are free for a run on runners of a device type."""
    runners = ctx.state.runners
    return sum(
        slots
        for name, slots in free.items()
        if runners[name].computes_on == device_type and not placement.mismatch(run, runners[name])
    )


def _free_of_class(
    run: Run, runners: Mapping[str, Runner], free: Free, name: str, classes: scaling.Classes
) -> int:
    """Slots that are free for a run on runners of a class."""
    return sum(
        slots
        for one, slots in free.items()
        if scaling.class_of(runners[one], classes) == name and not placement.mismatch(run, runners[one])
    )


def _last_first(run: Run) -> list[RankRecord]:
    """Return the placed instances: first those that do not run yet, then by descending rank.

    Parameter servers come last.
    """
    placed = [record for record in run.ranks if record.placed]
    return sorted(placed, key=lambda one: (one.rank in run.servers, one.state == "running", -one.rank))


def _type_of(ctx: RunsContext) -> Callable[[RankRecord], str]:
    """Return a function from an instance to its device type."""
    runners = ctx.state.runners
    return lambda record: runners[record.runner_id].computes_on


class _Least(NamedTuple):
    """Minimum numbers of placed and running instances that a run keeps."""

    placed: int
    running: int


def _stop(
    ctx: RunsContext,
    run: Run,
    surplus: Mapping[str, int],
    group_of: Callable[[RankRecord], str],
    least: _Least,
    reason: str,
) -> Counter[str]:
    """Stop the surplus instances of each group, down to the minimum; return how many were stopped.

    surplus: by group, as returned by `group_of`.
    """
    placed = sum(1 for record in run.ranks if record.placed)
    running = sum(1 for record in run.ranks if record.state == "running")
    stopped: Counter[str] = Counter()
    by_runner: dict[str, list[int]] = {}
    for record in _last_first(run):
        group, runs = group_of(record), record.state == "running"
        if stopped[group] >= surplus.get(group, 0) or placed <= least.placed:
            continue
        if runs and running <= least.running:
            continue
        stopped[group] += 1
        placed -= 1
        running -= runs
        by_runner.setdefault(record.runner_id, []).append(record.rank)
    assert run.launch is not None
    for name, ranks in by_runner.items():
        run.launch.drained += sorted(ranks)
        launch.take_back(ctx, run, ctx.state.runners[name], sorted(ranks), reason)
    if by_runner:
        run.reason = f"{placed} of {run.demand.instances} instances; {reason}"
    return stopped
