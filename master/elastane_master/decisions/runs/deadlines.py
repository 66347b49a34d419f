"""Deadlines of a run: of its next attempt, its launch, its stop, its time limit, the end of its job."""

from __future__ import annotations

import math

from elastane_master.decisions.runs import holdings, launch, life
from elastane_master.decisions.runs.context import RunsContext
from elastane_master.decisions.runs.run import Ending, Run


def deadline(ctx: RunsContext, run: Run) -> float | None:
    """Return the next time at which something is due for a run."""
    times = [run.next_attempt_at] if run.next_attempt_at is not None else []
    current = run.launch
    if current is not None:
        if current.ending is not None:
            times += current.awaited.values()
        else:
            times += [one.deadline_at for one in run.ranks if one.deadline_at is not None and one.placed]
            if current.started_at is not None:
                times.append(current.started_at + run.demand.run_time_max_seconds)
            if current.quiet_since is not None:
                times.append(current.quiet_since + ctx.state.settings.quiet_seconds)
    at = min(times, default=math.inf)
    return at if at < math.inf else None


def expire(ctx: RunsContext, run: Run) -> None:
    """Handle everything that is due."""
    if run.next_attempt_at is not None and run.next_attempt_at <= ctx.now:
        ctx.changed_run(run)
        run.next_attempt_at = None
        ctx.fresh[run.run_id] = None
    current = run.launch
    if current is None:
        return
    if current.ending is not None:
        _expire_stop(ctx, run)
        return
    if current.started_at is not None and current.started_at + run.demand.run_time_max_seconds <= ctx.now:
        seconds = f"{run.demand.run_time_max_seconds:g}"
        life.stop_launch(ctx, run, Ending("failed", f"it ran for longer than run_time_max, {seconds} s"))
        return
    launch.expire(ctx, run)
    if run.launch is None or current.ending is not None or current.quiet_since is None:
        return
    if current.quiet_since + ctx.state.settings.quiet_seconds <= ctx.now:
        current.quiet_since = None
        life.stop_launch(ctx, run, Ending("suspended", "all its instances have ended, and its job has not"))


def _expire_stop(ctx: RunsContext, run: Run) -> None:
    """Stop waiting for runners that have not confirmed a stop in time; their ranks are stale from now on."""
    current = run.launch
    assert current is not None
    late = [runner_id for runner_id, at in current.awaited.items() if at <= ctx.now]
    for runner_id in late:
        ctx.changed_run(run)
        del current.awaited[runner_id]
        runner = ctx.state.runners.get(runner_id)
        if runner is not None:
            holdings.give_up(ctx, runner, current.fence)
            launch.count_failure(ctx, runner, f"it did not stop run {run.run_id}")
    if late:
        life.conclude_if_gone(ctx, run)
