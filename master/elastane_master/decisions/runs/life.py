"""The ends of a launch and of a run.

A launch that must end is stopped on every runner. The run enters its next state only when all of them have
confirmed or are lost, so that no two launches of a run are alive at the same time, as far as the master can
know. A cancellation takes precedence over every other reason. Without a launch, a run ends at once.

The record of the run is written by the runner that had rank 0 in the last launch, when it receives Forget for
it; by the master if there was no launch, or if this runner is away.
"""

from __future__ import annotations

from elastane_master.decisions.runs import attempts, holdings
from elastane_master.decisions.runs.context import RunsContext
from elastane_master.decisions.runs.effects import CancelElasticJob, Forget, RunEnded, Stop, WriteRecord
from elastane_master.decisions.runs.events import AttemptKey
from elastane_master.decisions.runs.run import GONE, Ending, Launch, Run, RunState
from elastane_master.decisions.runs.runner import Runner


def key_of(run: Run, launch: Launch) -> AttemptKey:
    """Return the key that identifies a launch to runners."""
    return AttemptKey(run.run_id, launch.attempt, launch.fence)


def stop_launch(ctx: RunsContext, run: Run, ending: Ending) -> None:
    """Stop a launch everywhere; a reason of higher precedence replaces the current one."""
    launch = run.launch
    assert launch is not None
    first = launch.ending is None
    launch.ending = ending = _better(launch.ending, ending)
    ctx.changed_run(run)
    if run.state == "running" and ending.verdict == "suspended":
        run.enter("suspended", ending.reason, ctx.now)
    else:
        run.reason = f"{ending.reason}; its instances are being stopped"
    if ending.verdict in ("failed", "cancelled", "retry"):
        cancel_job(ctx, run)
    if first:
        for runner_id in launch.runners:
            runner = ctx.state.runners.get(runner_id)
            holding = runner.holds.get(launch.fence) if runner else None
            if runner is not None and holding is not None:
                launch.awaited[runner_id] = stop_deadline(ctx, run)
                ctx.send(runner, stop_message(run, launch))
    conclude_if_gone(ctx, run)


def stop_message(run: Run, launch: Launch) -> Stop:
    """Return the message that stops a launch on a runner."""
    reason = launch.ending.reason if launch.ending else run.reason
    return Stop(key_of(run, launch), run.demand.grace_seconds, reason)


def stop_deadline(ctx: RunsContext, run: Run) -> float:
    """Time until which a runner that was asked to stop may answer; after it, the runner counts as lost."""
    return ctx.now + run.demand.grace_seconds + ctx.state.settings.lease_seconds


def _better(old: Ending | None, new: Ending) -> Ending:
    """Order of precedence: cancellation; lost runner before exit code; end before a further launch."""
    outweighs = (
        old is None
        or new.verdict == "cancelled"
        or (old.by_exit and new.verdict == "suspended")
        or (old.verdict in ("suspended", "requeued") and new.verdict in ("succeeded", "failed"))
    )
    return new if old is None or (outweighs and old.verdict != "cancelled") else old


def cancel_job(ctx: RunsContext, run: Run) -> None:
    """Cancel the elastic job of a run, if it has an unfinished one; remembered until it has ended."""
    if run.job and not run.job_over and run.job not in ctx.state.jobs_to_cancel:
        ctx.touch()
        ctx.state.jobs_to_cancel[run.job] = run.run_id
        ctx.emit(CancelElasticJob(run.run_id, run.job))


def confirmed(ctx: RunsContext, run: Run, runner: Runner) -> None:
    """Handle a runner's confirmation that nothing is left of a launch that is being stopped."""
    launch = run.launch
    assert launch is not None
    holdings.release(ctx, runner, launch.fence)
    if launch.awaited.pop(runner.runner_id, None) is not None:
        ctx.changed_run(run)
    conclude_if_gone(ctx, run)


def conclude_if_gone(ctx: RunsContext, run: Run) -> None:
    """Change a run to its next state if nothing of its launch is left."""
    launch = run.launch
    if launch is None or launch.ending is None or launch.awaited:
        return
    ending = launch.ending
    ctx.changed_run(run)
    for record in run.ranks:
        if record.state not in GONE and record.runner_id:
            record.state, record.ended_at = "lost", ctx.now
        record.deadline_at = None
    for runner_id in launch.runners:
        runner = ctx.state.runners.get(runner_id)
        if runner is not None and launch.fence not in runner.holds:
            ctx.send(runner, Forget(key_of(run, launch)))
    recorded = _will_record(ctx, run, launch)
    run.launch = None
    ctx.capacity_grew = True
    _next_state(ctx, run, ending, recorded)


def _will_record(ctx: RunsContext, run: Run, launch: Launch) -> bool:
    """True if the runner of rank 0 will get Forget for its launch, and so writes the record."""
    first = run.ranks[0]
    runner = ctx.state.runners.get(first.runner_id)
    is_told = runner is not None and runner.attends and launch.fence not in runner.holds
    return is_told and bool(first.address)


def _next_state(ctx: RunsContext, run: Run, ending: Ending, recorded: bool) -> None:
    settings = ctx.state.settings
    match ending.verdict:
        case "succeeded":
            end(ctx, run, "succeeded", ending.reason, recorded)
        case "failed":
            end(ctx, run, "failed", ending.reason, recorded)
        case "cancelled":
            end(ctx, run, "cancelled", ending.reason, recorded)
        case "retry":
            run.failures += 1
            run.attempt_open, run.launch_failures = False, 0
            _wait_until(
                ctx, run, ending.reason, ctx.now + attempts.retry_delay_seconds(settings, run.failures)
            )
            run.waiting_since = run.next_attempt_at or ctx.now
        case "requeued":
            run.launch_failures += 1
            delay = attempts.relaunch_delay_seconds(settings, run.launch_failures)
            _wait_until(ctx, run, ending.reason, ctx.now + delay)
        case "suspended":
            run.waiting_since = ctx.now
            run.enter(
                "suspended" if run.state in ("running", "suspended") else "queued", ending.reason, ctx.now
            )
            ctx.fresh[run.run_id] = None


def _wait_until(ctx: RunsContext, run: Run, reason: str, at: float) -> None:
    run.next_attempt_at = at
    run.enter("queued", reason, ctx.now)


def end(ctx: RunsContext, run: Run, state: RunState, reason: str, recorded: bool = False) -> None:
    """Enter a final state. The run has no launch. recorded: a runner writes its record."""
    assert run.launch is None
    ctx.changed_run(run)
    run.enter(state, reason, ctx.now)
    run.ended_at = ctx.now
    run.cancelling, run.next_attempt_at, run.attempt_open = False, None, False
    cancel_job(ctx, run)
    ctx.emit(RunEnded(run.run_id))
    if not recorded:
        ctx.state.records_due.append(run.run_id)
        ctx.emit(WriteRecord(run.run_id))


def forget_record(ctx: RunsContext, run_id: int) -> None:
    """Note that the record of a run is written, or no longer due."""
    if run_id in ctx.state.records_due:
        ctx.touch()
        ctx.state.records_due.remove(run_id)
