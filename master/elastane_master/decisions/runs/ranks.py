"""Events of instances: start, end, loss.

When all instances of a black box have ended with 0, the run has succeeded. So has an elastic run that does
tasks, once all are done and its workers have: the end of such a job is nobody's to tell but its scripts'.
Parameter servers serve until they are stopped.
"""

from __future__ import annotations

from elastane_master.decisions.runs import attempts, holdings, launch, life, scaling
from elastane_master.decisions.runs.context import RunsContext
from elastane_master.decisions.runs.events import (
    AttemptStopped,
    ElasticJobEnded,
    ElasticJobScaled,
    RankChanged,
    RankStatus,
)
from elastane_master.decisions.runs.run import Ending, RankRecord, Run, ScaledTo
from elastane_master.decisions.runs.runner import Runner

NO_PROCESS = frozenset({"exited", "lost"})
"""Reported states of an instance that has no process any more."""


def changed(ctx: RunsContext, event: RankChanged) -> None:
    """Handle a report of one instance."""
    runner = ctx.attending(event.runner_id, event.session)
    if runner is None:
        return
    key, status = event.report.attempt, event.report.status
    run = ctx.run_of_fence(key.run_id, key.fence)
    if run is None:
        if status.state in NO_PROCESS:
            _gone_stale(ctx, runner, key.fence, status.rank)
        else:
            launch.send_stop_of_given_up(ctx, runner, key)
        return
    reported(ctx, run, runner, status)


def reported(ctx: RunsContext, run: Run, runner: Runner, status: RankStatus) -> None:
    """Apply a runner's report on an instance of the current launch."""
    assert run.launch is not None
    fence = run.launch.fence
    record = launch.record_of(run, status.rank, runner)
    if record is None or record.state == "lost":
        if status.state in NO_PROCESS:
            _gone_stale(ctx, runner, fence, status.rank)
        elif run.launch.ending is None:
            launch.send_stop_rank(ctx, run, runner, status.rank, "it was given up")
        return
    if record.state == "exited":
        return
    match status.state:
        case "running":
            _runs(ctx, run, runner, record, status)
        case "exited" if record.state in ("starting", "running"):
            _exited(ctx, run, runner, record, status)
        case "lost":
            _lost(ctx, run, runner, record, status)
        case "pending" if record.state in ("pending", "starting") and run.launch.ending is None:
            launch.at_work(ctx, run, record, status.reason)
        case _:
            pass  # prepared: Prepared reports it, with the endpoint; ended: an older instance of this rank


def _gone_stale(ctx: RunsContext, runner: Runner, fence: int, rank: int) -> None:
    """Free the slots of an abandoned instance that is gone."""
    if holdings.has(runner, fence, rank):
        ctx.touch()
        holdings.release(ctx, runner, fence, [rank])


def _take_over(record: RankRecord, status: RankStatus) -> None:
    record.host = status.host or record.host
    record.last_line = status.last_line or record.last_line
    record.started_at = status.started_at or record.started_at


def _runs(ctx: RunsContext, run: Run, runner: Runner, record: RankRecord, status: RankStatus) -> None:
    assert run.launch is not None
    same = record.state == "running" and (status.last_line or record.last_line) == record.last_line
    if same or record.state == "pending":
        return
    ctx.changed_run(run)
    _take_over(record, status)
    record.state, record.deadline_at = "running", None
    if run.demand.elastic:
        run.trains_on = run.trains_on or runner.device_type
    record.started_at = record.started_at or ctx.now
    launch.succeeded_on(ctx, runner)
    launch.settle_running(ctx, run)
    if run.demand.elastic and ctx.state.allocation.in_charge:
        ctx.capacity_grew = True  # instances for which this one was awaited may go


def _exited(ctx: RunsContext, run: Run, runner: Runner, record: RankRecord, status: RankStatus) -> None:
    assert run.launch is not None
    ctx.changed_run(run)
    _take_over(record, status)
    record.state, record.deadline_at = "exited", None
    record.exit_code = status.exit_code
    record.ended_at = status.ended_at or ctx.now
    launch.succeeded_on(ctx, runner)
    holdings.release(ctx, runner, run.launch.fence, [record.rank])
    if run.launch.ending is not None:
        if run.launch.fence not in runner.holds:
            life.confirmed(ctx, run, runner)
        return
    launch.settle_running(ctx, run)
    if run.demand.elastic:
        _elastic_exited(ctx, run, runner, record)
    else:
        _black_box_exited(ctx, run, runner, record)


def _black_box_exited(ctx: RunsContext, run: Run, runner: Runner, record: RankRecord) -> None:
    if not record.exit_code:
        deciding = run.ranks[: run.servers.start]
        if all(one.state == "exited" and not one.exit_code for one in deciding):
            but = " but parameter servers" if run.servers else ""
            life.stop_launch(ctx, run, Ending("succeeded", f"all instances{but} ended with 0"))
        return
    what = attempts.exit_text(record.rank, record.exit_code)
    passing = attempts.may_pass(record.exit_code) or attempts.lost_its_port(record.last_line)
    if passing and runner.leaving:
        life.stop_launch(ctx, run, Ending("suspended", f"{what}: its runner {runner.runner_id} leaves"))
        return
    life.stop_launch(ctx, run, attempts.after_failure(run, what, passing))


def _elastic_exited(ctx: RunsContext, run: Run, runner: Runner, record: RankRecord) -> None:
    """Handle the end of an elastic run's instance: after a temporary failure it is placed again."""
    assert run.launch is not None
    what = attempts.exit_text(record.rank, record.exit_code)
    if record.exit_code and not attempts.may_pass(record.exit_code):
        life.stop_launch(ctx, run, attempts.after_failure(run, what, passing=False))
        return
    if record.exit_code:
        record.state = "lost"
        if not runner.leaving:
            ending = attempts.after_failure(run, what, passing=True)
            if ending.verdict == "failed":
                life.stop_launch(ctx, run, ending)
                return
            run.failures += 1
        launch.after_loss(ctx, run, what)
    _succeed_if_done(ctx, run)
    if run.launch is not None and not any(one.placed for one in run.ranks):
        run.launch.quiet_since = ctx.now


def _succeed_if_done(ctx: RunsContext, run: Run) -> None:
    """End an elastic run whose tasks are done and whose scripts have come to their end."""
    workers = run.ranks[: run.servers.start]
    at_end = any(one.state == "exited" and not one.exit_code for one in workers)
    going = run.launch is not None and run.launch.ending is None
    if run.tasks_over and going and at_end and not any(one.placed for one in workers):
        life.stop_launch(ctx, run, Ending("succeeded", "all tasks are done, and all workers ended with 0"))


def _lost(ctx: RunsContext, run: Run, runner: Runner, record: RankRecord, status: RankStatus) -> None:
    """Handle an instance that its runner has lost: it was preempted."""
    assert run.launch is not None
    ctx.changed_run(run)
    _take_over(record, status)
    never_started = record.state in ("pending", "prepared", "starting")
    reason = f"{runner.runner_id} has lost rank {record.rank}"
    if status.reason:
        reason = f"{reason}: {status.reason}"
    if record.state == "pending" and run.demand.elastic and run.launch.ending is None:
        # This may be a late report on the previous instance: the one being prepared has to go first.
        launch.take_back(ctx, run, runner, [record.rank], reason)
    else:
        record.state, record.deadline_at, record.ended_at = "lost", None, status.ended_at or ctx.now
        holdings.release(ctx, runner, run.launch.fence, [record.rank])
    if run.launch.ending is not None:
        if run.launch.fence not in runner.holds:
            life.confirmed(ctx, run, runner)
        return
    if never_started:
        launch.count_failure(ctx, runner, reason)
    launch.after_loss(ctx, run, reason, launch_failed=never_started)


def stopped(ctx: RunsContext, event: AttemptStopped) -> None:
    """Handle a runner's report that nothing is left of a launch."""
    runner = ctx.attending(event.runner_id, event.session)
    if runner is None:
        return
    key = event.attempt
    run = ctx.run_of_fence(key.run_id, key.fence)
    if key.fence in runner.holds:
        ctx.touch()
    if run is None:
        holdings.release(ctx, runner, key.fence)
        return
    if run.launch is not None and run.launch.ending is not None:
        life.confirmed(ctx, run, runner)
        return
    if key.fence in runner.holds:
        holdings.release(ctx, runner, key.fence)
        launch.lose_ranks(ctx, run, runner)
        launch.after_loss(ctx, run, f"{runner.runner_id} has stopped it")


def job_ended(ctx: RunsContext, event: ElasticJobEnded) -> None:
    """Handle the end of an elastic run's job."""
    ours = event.job in ctx.state.jobs_to_cancel
    if ours:
        ctx.touch()
        del ctx.state.jobs_to_cancel[event.job]
    run = ctx.state.runs.get(event.run_id)
    if run is None or run.job != event.job or run.job_over:
        return
    ctx.changed_run(run)
    run.job_over = True
    if ours and event.phase == "cancelled":
        return  # the run ends for the reason of its job's cancellation
    reason = event.reason or f"its job has {event.phase}"
    ending = Ending(event.phase, reason)
    if run.launch is not None:
        life.stop_launch(ctx, run, ending)
    elif not run.over and run.attempt_open:  # between two launches of its attempt
        life.end(ctx, run, event.phase, reason)


def job_scaled(ctx: RunsContext, event: ElasticJobScaled) -> None:
    """Start or stop instances of an elastic run by its job's new target or progress."""
    run = ctx.state.runs.get(event.run_id)
    if run is None or run.job != event.job or run.job_over:
        return
    if event.tasks_over != run.tasks_over:
        ctx.changed_run(run)
        run.tasks_over = event.tasks_over
        _succeed_if_done(ctx, run)
    scaled = ScaledTo(event.job, event.workers, event.on_demand) if event.workers else None
    if scaled == run.scaled:
        return
    ctx.changed_run(run)
    ctx.capacity_grew = True  # others can use its surplus slots
    run.scaled = scaled
    if event.on_demand and not scaling.offers_on_demand(ctx.state.runners):
        run.reason = (
            f"its job wants {event.on_demand} workers on demand, and no runner has the label "
            f"{scaling.CAPACITY_LABEL}={scaling.ON_DEMAND}: its deadline is met with the others alone"
        )
        run.note(ctx.now)
