"""Launches: prepare -> prepared by all -> start -> running. An incomplete launch is undone as a whole.

An elastic run's instances are prepared and started one by one. Its launch is complete once instances_min of
them run, and continues as long as that many are placed. Every launch has a new fence: a message with an older
one is answered with Stop, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from elastane_master.decisions.runs import attempts, holdings, life
from elastane_master.decisions.runs.context import RunsContext
from elastane_master.decisions.runs.effects import (
    CreateElasticJob,
    LaunchFailureCounted,
    Prepare,
    Start,
    Stop,
)
from elastane_master.decisions.runs.events import AttemptKey, Endpoint, LaunchFailed, LaunchPrepared
from elastane_master.decisions.runs.placement import Assignment
from elastane_master.decisions.runs.run import Ending, Launch, RankRecord, Run
from elastane_master.decisions.runs.runner import Runner


def begin(ctx: RunsContext, run: Run, assignment: Assignment) -> None:
    """Launch a run that waits, on the runners of the assignment."""
    state = ctx.state
    if not run.attempt_open:
        run.attempt += 1
        run.attempt_open = True
        if run.demand.elastic:
            run.job, run.job_over, run.trains_on = f"run-{run.run_id}-{run.attempt}", False, ""
            run.tasks_over = False
    state.fence += 1
    run.launch = Launch(run.attempt, state.fence, ctx.now)
    run.ranks = [RankRecord(rank) for rank in range(run.demand.instances)]
    run.started_at = None
    many = "instance" if sum(map(len, assignment.values())) == 1 else "instances"
    where = f"{sum(map(len, assignment.values()))} {many} on {_names(assignment)}"
    run.enter("launching", f"prepares {where}", ctx.now)
    if run.job and not run.job_over:
        ctx.emit(CreateElasticJob(run.run_id, run.job))
    add(ctx, run, assignment)


def _names(assignment: Assignment) -> str:
    """Name the first runners of an assignment."""
    names = list(assignment)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def add(ctx: RunsContext, run: Run, assignment: Assignment) -> None:
    """Have runners prepare instances of the current launch."""
    launch = run.launch
    assert launch is not None
    for runner_id, ranks in assignment.items():
        runner = ctx.state.runners[runner_id]
        if runner_id not in launch.runners:
            launch.runners.append(runner_id)
        launch.drained = [rank for rank in launch.drained if rank not in ranks]
        for rank in ranks:
            run.ranks[rank] = RankRecord(
                rank, runner_id=runner_id, host=runner.host, deadline_at=_deadline(ctx)
            )
        holdings.hold(ctx, runner, run, ranks)
        send_prepare(ctx, run, runner, ranks)
    launch.quiet_since = None
    ctx.changed_run(run)


def _deadline(ctx: RunsContext) -> float:
    return ctx.now + ctx.state.settings.prepare_seconds


def send_prepare(ctx: RunsContext, run: Run, runner: Runner, ranks: Iterable[int]) -> None:
    """Ask a runner to prepare ranks; it repeats its answer for those that it has prepared already."""
    assert run.launch is not None
    ctx.send(
        runner,
        Prepare(
            life.key_of(run, run.launch), run.spec, tuple(ranks), run.demand.instances, run.job, run.data_url
        ),
    )


def prepared(ctx: RunsContext, event: LaunchPrepared) -> None:
    """Handle Prepared: when all instances of a black box are, they are started together."""
    runner = ctx.attending(event.runner_id, event.session)
    if runner is None:
        return
    run = current(ctx, runner, event.attempt)
    if run is None:
        return
    ready: list[int] = []
    for endpoint in event.endpoints:
        record = record_of(run, endpoint.rank, runner)
        if record is not None and record.state == "pending":
            record.state, record.address, record.port = "prepared", endpoint.host, endpoint.port
            record.deadline_at = None  # the others have theirs
            ready.append(endpoint.rank)
    if not ready:
        return
    ctx.changed_run(run)
    if run.demand.elastic:
        _start(ctx, run, ready)
    elif all(record.state == "prepared" for record in run.ranks):
        run.reason = "all instances are prepared, and start"
        _start(ctx, run, [record.rank for record in run.ranks])


def at_work(ctx: RunsContext, run: Run, record: RankRecord, words: str) -> None:
    """Handle a runner's progress report on preparing or starting a rank: extend the rank's deadline."""
    record.deadline_at = _deadline(ctx)
    if words:
        run.reason = f"{record.runner_id}: {words}"
    ctx.changed_run(run)


def _start(ctx: RunsContext, run: Run, ranks: Iterable[int]) -> None:
    by_runner: dict[str, list[int]] = {}
    for rank in ranks:
        record = run.ranks[rank]
        record.state, record.deadline_at = "starting", _deadline(ctx)
        by_runner.setdefault(record.runner_id, []).append(rank)
    for runner_id, mine in by_runner.items():
        send_start(ctx, run, ctx.state.runners[runner_id], mine)


def send_start(ctx: RunsContext, run: Run, runner: Runner, ranks: Iterable[int]) -> None:
    """Have a runner start its prepared instances; for a black box, send the endpoints of all instances."""
    assert run.launch is not None
    chosen = [run.ranks[rank] for rank in ranks] if run.demand.elastic else run.ranks
    endpoints = tuple(Endpoint(one.rank, one.address, one.port) for one in chosen)
    ctx.send(runner, Start(life.key_of(run, run.launch), endpoints))


def current(ctx: RunsContext, runner: Runner, key: AttemptKey) -> Run | None:
    """Return the run whose current launch a runner's message is about.

    None for a launch that is being stopped, and for an abandoned one, which the runner must then stop.
    """
    run = ctx.run_of_fence(key.run_id, key.fence)
    if run is None or run.launch is None or run.launch.attempt != key.attempt:
        send_stop_of_given_up(ctx, runner, key)
        return None
    if run.launch.ending is not None:
        return None
    return run


def send_stop_of_given_up(ctx: RunsContext, runner: Runner, key: AttemptKey) -> None:
    """Order a runner to stop a launch that is not its run's current one."""
    run = ctx.state.runs.get(key.run_id)
    grace_seconds = run.demand.grace_seconds if run is not None else 0.0
    ctx.send(runner, Stop(key, grace_seconds, "this launch was given up"))


def record_of(run: Run, rank: int, runner: Runner) -> RankRecord | None:
    """Return the record of a rank that is on this runner; None if it is elsewhere or there is none."""
    if not 0 <= rank < len(run.ranks) or run.ranks[rank].runner_id != runner.runner_id:
        return None
    return run.ranks[rank]


def settle_running(ctx: RunsContext, run: Run) -> None:
    """Enter `running` if enough instances run."""
    launch = run.launch
    assert launch is not None
    if launch.started_at is not None or launch.ending is not None:
        return
    up = sum(1 for record in run.ranks if record.state in ("running", "exited"))
    if up < run.demand.instances_min:
        return
    launch.started_at = run.started_at = ctx.now
    run.launch_failures = 0
    what = f"{up} of {run.demand.instances} instances run"
    run.enter("running", what, ctx.now)
    ctx.changed_run(run)


def failed(ctx: RunsContext, event: LaunchFailed) -> None:
    """Handle a launch that a runner could not make."""
    runner = ctx.attending(event.runner_id, event.session)
    if runner is None:
        return
    run = ctx.run_of_fence(event.attempt.run_id, event.attempt.fence)
    if run is None or run.launch is None or run.launch.ending is not None:
        return  # confirms a requested stop
    reason = f"{runner.runner_id} could not launch it: {event.reason}"
    if run.demand.elastic:
        # Other instances of the launch may run there, or a later Prepare may be on its way.
        holdings.give_up(ctx, runner, event.attempt.fence)
        if not event.permanent:
            ctx.send(runner, Stop(event.attempt, run.demand.grace_seconds, reason))
    else:
        holdings.release(ctx, runner, event.attempt.fence)
    lose_ranks(ctx, run, runner)
    if event.permanent:  # the run's fault: the runner is not paused for it
        ctx.emit(LaunchFailureCounted(runner.runner_id))
        life.stop_launch(ctx, run, Ending("failed", reason))
        return
    count_failure(ctx, runner, event.reason)
    after_loss(ctx, run, reason, launch_failed=True)


def lose_ranks(ctx: RunsContext, run: Run, runner: Runner, ranks: Iterable[int] | None = None) -> None:
    """Mark instances on a runner (None: all that it has of the current launch) as lost."""
    for record in run.ranks:
        if record.runner_id == runner.runner_id and record.placed and (ranks is None or record.rank in ranks):
            record.state, record.ended_at, record.deadline_at = "lost", ctx.now, None
    ctx.changed_run(run)


def after_loss(ctx: RunsContext, run: Run, reason: str, launch_failed: bool = False) -> None:
    """Handle lost instances: an elastic run with enough left continues; any other launch is stopped.

    launch_failed: they were never started.
    """
    launch = run.launch
    assert launch is not None
    if launch.ending is not None:
        life.stop_launch(ctx, run, Ending("suspended", reason))
        return
    if run.demand.elastic:
        placed = sum(1 for record in run.ranks if record.placed)
        if placed >= run.demand.instances_min:
            run.reason = f"{placed} of {run.demand.instances} instances; {reason}"
            ctx.capacity_grew = True
            return
    if launch.started_at is None:
        if launch_failed and run.launch_failures + 1 >= ctx.state.settings.launch_failures_max:
            what = f"{run.launch_failures + 1} launches in a row failed, the last since {reason}"
            life.stop_launch(ctx, run, attempts.after_failure(run, what, passing=True))
            return
        life.stop_launch(ctx, run, Ending("requeued" if launch_failed else "suspended", reason))
        return
    life.stop_launch(ctx, run, Ending("suspended", reason))


def count_failure(ctx: RunsContext, runner: Runner, reason: str) -> None:
    """Count a failed launch; after several in a row the runner is paused, for longer each time."""
    settings = ctx.state.settings
    runner.failed_launches += 1
    ctx.changed_runner(runner)
    ctx.emit(LaunchFailureCounted(runner.runner_id))
    if runner.failed_launches < settings.runner_failures_max:
        return
    runner.pauses += 1
    seconds = attempts.pause_seconds(settings, runner.pauses)
    runner.paused_until = ctx.now + seconds
    failures = f"{runner.failed_launches} launches in a row failed, the last since {reason}"
    runner.pause_reason = f"{failures}; paused for {seconds:.0f} s"


def succeeded_on(ctx: RunsContext, runner: Runner) -> None:
    """Record that an instance runs, which shows that the runner can launch."""
    if runner.failed_launches or runner.pauses:
        runner.failed_launches = runner.pauses = 0
        ctx.changed_runner(runner)


def put_off(ctx: RunsContext, run: Run, runner: Runner) -> None:
    """Give a runner whose stream is lost as long anew after its lease.

    Until then it may return with an instance that runs: placed elsewhere, that would run twice.
    """
    assert runner.lease_until is not None
    until = runner.lease_until + ctx.state.settings.prepare_seconds
    for record in run.ranks:
        if record.runner_id == runner.runner_id and record.placed and record.deadline_at is not None:
            record.deadline_at = max(record.deadline_at, until)
    ctx.changed_run(run)


def expire(ctx: RunsContext, run: Run) -> None:
    """Undo instances that were not prepared, or do not run, in time."""
    late = [
        record
        for record in run.ranks
        if record.deadline_at is not None and record.deadline_at <= ctx.now and record.placed
    ]
    if not late or run.launch is None or run.launch.ending is not None:
        return
    ctx.touch()
    by_runner: dict[str, list[RankRecord]] = {}
    for record in late:
        by_runner.setdefault(record.runner_id, []).append(record)
    reason = ""
    for runner_id, records in by_runner.items():
        runner = ctx.state.runners[runner_id]
        what = "prepared" if records[0].state == "pending" else "started"
        seconds = f"{ctx.state.settings.prepare_seconds:.0f} s"
        reason = f"{runner_id} had not {what} it after {seconds} without progress"
        if runner.attends:
            count_failure(ctx, runner, reason)
        if run.demand.elastic:
            take_back(ctx, run, runner, [record.rank for record in records], reason)
    if run.launch.ending is None:
        after_loss(ctx, run, reason, launch_failed=True)


def take_back(ctx: RunsContext, run: Run, runner: Runner, ranks: list[int], reason: str) -> None:
    """Stop single instances of an elastic run; their slots become free once the runner confirms."""
    assert run.launch is not None
    holdings.give_up(ctx, runner, run.launch.fence, ranks)
    lose_ranks(ctx, run, runner, ranks)
    for rank in ranks:
        send_stop_rank(ctx, run, runner, rank, reason)


def send_stop_rank(ctx: RunsContext, run: Run, runner: Runner, rank: int, reason: str) -> None:
    """Stop one instance of the current launch of an elastic run."""
    assert run.launch is not None
    ctx.send(runner, Stop(life.key_of(run, run.launch), run.demand.grace_seconds, reason, rank))


def master_started(ctx: RunsContext, run: Run) -> None:
    """Restart all waits for runners, which have to return to the new master."""
    launch = run.launch
    if launch is None:
        return
    ctx.changed_run(run)
    for runner_id in launch.awaited:
        launch.awaited[runner_id] = life.stop_deadline(ctx, run)
    for record in run.ranks:
        if record.state == "prepared":
            record.deadline_at = None
        elif record.deadline_at is not None:
            record.deadline_at = _deadline(ctx) + ctx.state.settings.lease_seconds
