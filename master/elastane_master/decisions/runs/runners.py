"""Life cycle of runners: join, silence, return, leave, loss.

A runner whose stream is lost keeps its instances for the rest of its lease. If it returns in time, its Hello
is compared with the records, and messages that may have been lost are sent again; running instances are not
restarted. After the lease its instances are lost; if it returns then, it is asked to stop them.
"""

from __future__ import annotations

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs import holdings, launch, life, ranks
from elastane_master.decisions.runs.context import RunsContext
from elastane_master.decisions.runs.effects import Forget
from elastane_master.decisions.runs.events import (
    AttemptKey,
    RankStatus,
    RunnerJoined,
    RunnerLeft,
    RunnerStreamLost,
)
from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.runner import DEVICE_TYPE, DEVICE_TYPE_MAX, Runner
from elastane_master.decisions.runs.spec import NAME, SLOTS_MAX

RUNNERS_MAX = 10_000
RANKS_MAX = 65_536
FOLDER_ID_MAX = 128


def joined(ctx: RunsContext, event: RunnerJoined) -> None:
    """Handle Hello. A newer stream of the same runner replaces the older one."""
    _check(ctx, event)
    ctx.touch()
    runner = ctx.state.runners.get(event.runner_id)
    if runner is None:
        runner = Runner(event.runner_id, event.host, event.kind, event.slots)
        ctx.state.runners[event.runner_id] = runner
    runner.session, runner.host, runner.kind, runner.slots = (
        event.session,
        event.host,
        event.kind,
        event.slots,
    )
    runner.labels, runner.algorithms, runner.owners = event.labels, event.algorithms, event.owners
    runner.folder_id = event.folder_id
    device_type = event.device_type or DEVICE_TYPE
    if runner.device_type != device_type:
        runner.device_type, runner.measured_type = device_type, ""
    runner.memory_bytes = max(0, event.memory_bytes)
    runner.joined_at = runner.heard_at = ctx.now
    runner.lease_until, runner.lost = None, False
    runner.leaving, runner.leave_reason = False, ""
    ctx.changed_runner(runner)
    ctx.capacity_grew = True
    _adopt(ctx, runner, event)


def _check(ctx: RunsContext, event: RunnerJoined) -> None:
    """Raise Rejection for an invalid Hello."""
    if not NAME.fullmatch(event.runner_id):
        raise Rejection(
            "invalid_argument",
            f"invalid runner id {event.runner_id!r:.80}",
            hint="1 to 128 letters, digits, dots, dashes and underscores, the first a letter or digit",
            field="hello.runner_id",
        )
    if not event.session:
        raise Rejection("invalid_argument", "a stream without a session", field="session")
    if not 0 <= event.slots <= SLOTS_MAX:
        raise Rejection(
            "invalid_argument", f"{event.slots} slots", hint=f"0 to {SLOTS_MAX}", field="hello.slots"
        )
    if len(event.folder_id) > FOLDER_ID_MAX:
        raise Rejection(
            "invalid_argument",
            f"a folder id of {len(event.folder_id)} characters",
            hint=f"at most {FOLDER_ID_MAX}",
            field="hello.folder_id",
        )
    if len(event.device_type) > DEVICE_TYPE_MAX:
        raise Rejection(
            "invalid_argument",
            f"a device type of {len(event.device_type)} characters",
            hint=f"at most {DEVICE_TYPE_MAX}",
            field="hello.device_type",
        )
    _check_name(ctx, event)
    if len(event.ranks) > RANKS_MAX:
        raise Rejection("invalid_argument", f"{len(event.ranks)} instances", field="hello.ranks")
    if event.runner_id not in ctx.state.runners and len(ctx.state.runners) >= RUNNERS_MAX:
        raise Rejection(
            "limit_exceeded", f"{RUNNERS_MAX} runners are known", hint="lost ones are forgotten after a while"
        )


def _check_name(ctx: RunsContext, event: RunnerJoined) -> None:
    """Raise Rejection while another runner has this name: its instances would count as lost."""
    known = ctx.state.runners.get(event.runner_id)
    if known is None or not known.attends or not (known.folder_id and event.folder_id):
        return
    if known.folder_id != event.folder_id:
        raise Rejection(
            "already_exists",
            f"another runner attends as {event.runner_id}, from {known.host}",
            hint="give each runner a --name of its own, or end the other one first",
            field="hello.runner_id",
        )


def _adopt(ctx: RunsContext, runner: Runner, event: RunnerJoined) -> None:
    """Compare a runner's instances with the records."""
    reports: dict[AttemptKey, dict[int, RankStatus]] = {}
    for report in event.ranks:
        reports.setdefault(report.attempt, {})[report.status.rank] = report.status
    expected = {fence: holding.run_id for fence, holding in runner.holds.items()}
    for fence in list(runner.holds):  # abandoned ones count only if it still has them
        holdings.release(ctx, runner, fence, list(runner.holds[fence].stale))
    fences = set()
    for key, statuses in reports.items():
        run = ctx.run_of_fence(key.run_id, key.fence)
        if run is None or run.launch is None or run.launch.attempt != key.attempt:
            _stop_given_up(ctx, runner, key, statuses)
        else:
            fences.add(key.fence)
            _compare(ctx, runner, run, statuses)
    for fence, run_id in expected.items():
        if fence not in fences and (run := ctx.run_of_fence(run_id, fence)) is not None:
            _compare(ctx, runner, run, {})


def _stop_given_up(
    ctx: RunsContext, runner: Runner, key: AttemptKey, statuses: dict[int, RankStatus]
) -> None:
    """Clean up a launch that is not its run's current one: stop live instances, remove the rest."""
    living = [rank for rank, status in statuses.items() if status.state not in ranks.NO_PROCESS]
    if not living:
        ctx.send(runner, Forget(key))
        return
    run = ctx.state.runs.get(key.run_id)
    slots = run.demand.slots_per_instance if run is not None else 1
    for rank in living:
        holdings.hold_stale(ctx, runner, key.run_id, key.attempt, key.fence, slots, rank)
    launch.send_stop_of_given_up(ctx, runner, key)


def _compare(ctx: RunsContext, runner: Runner, run: Run, statuses: dict[int, RankStatus]) -> None:
    """Compare a runner's instances of a run's current launch with the records."""
    current = run.launch
    assert current is not None
    fence = current.fence
    living = {rank for rank, status in statuses.items() if status.state not in ranks.NO_PROCESS}
    mine = {record.rank for record in run.ranks if record.runner_id == runner.runner_id and record.placed}
    for rank in sorted(living - mine):
        holdings.hold_stale(
            ctx, runner, run.run_id, current.attempt, fence, run.demand.slots_per_instance, rank
        )
    if current.ending is not None:
        _compare_stopping(ctx, runner, run, statuses, living)
        return
    for rank in sorted(living - mine):
        launch.send_stop_rank(ctx, run, runner, rank, "it was given up")
    prepare, start = [], []
    for rank in sorted(mine):
        record, status = run.ranks[rank], statuses.get(rank)
        reported = status.state if status is not None else None
        if record.state == "pending" or (record.state == "prepared" and reported != "prepared"):
            record.state = "pending"
            prepare.append(rank)
        elif record.state == "starting" and reported == "prepared":
            start.append(rank)
    if prepare:
        launch.send_prepare(ctx, run, runner, prepare)
    if start:
        launch.send_start(ctx, run, runner, start)
    _apply(ctx, runner, run, {rank: statuses.get(rank) for rank in sorted(mine) if rank not in prepare})


def _apply(ctx: RunsContext, runner: Runner, run: Run, statuses: dict[int, RankStatus | None]) -> None:
    """Apply reports of started instances; missing ones are lost."""
    fence = run.launch.fence if run.launch else 0
    for rank, status in statuses.items():
        if ctx.run_of_fence(run.run_id, fence) is None:
            return
        record = run.ranks[rank]
        if not record.placed or record.state == "prepared":
            continue
        # Others already know the address of a prepared instance, so it cannot be prepared again.
        if (
            status is None
            or status.state == "pending"
            or (status.state, record.state) == ("prepared", "running")
        ):
            status = RankStatus(rank, "lost")
        ranks.reported(ctx, run, runner, status)


def _compare_stopping(
    ctx: RunsContext, runner: Runner, run: Run, statuses: dict[int, RankStatus], living: set[int]
) -> None:
    """Handle a launch that is being stopped: stop live instances again; nothing else is awaited."""
    current = run.launch
    assert current is not None
    for status in statuses.values():
        if status.state == "exited" and ctx.run_of_fence(run.run_id, current.fence) is not None:
            ranks.reported(ctx, run, runner, status)
    if ctx.run_of_fence(run.run_id, current.fence) is None:
        return
    if not living:
        life.confirmed(ctx, run, runner)
        return
    holding = runner.holds.get(current.fence)
    if holding is not None:
        holdings.release(ctx, runner, current.fence, [r for r in list(holding.ranks) if r not in living])
    if runner.runner_id in current.awaited:
        current.awaited[runner.runner_id] = life.stop_deadline(ctx, run)
    ctx.send(runner, life.stop_message(run, current))


def stream_lost(ctx: RunsContext, event: RunnerStreamLost) -> None:
    """Handle the loss of a runner's stream; its lease runs from its last message."""
    runner = ctx.attending(event.runner_id, event.session)
    if runner is None:
        return
    ctx.changed_runner(runner)
    runner.session = ""
    runner.heard_at = max(runner.joined_at, min(event.heard_at, ctx.now))
    runner.lease_until = runner.heard_at + ctx.state.settings.lease_seconds
    for fence, holding in runner.holds.items():
        if (run := ctx.run_of_fence(holding.run_id, fence)) is not None:
            launch.put_off(ctx, run, runner)
    expire(ctx, runner)


def left(ctx: RunsContext, event: RunnerLeft) -> None:
    """Handle a runner that takes no new instances."""
    runner = ctx.attending(event.runner_id, event.session)
    if runner is None or runner.leaving:
        return
    ctx.changed_runner(runner)
    runner.leaving, runner.leave_reason = True, event.reason


def master_started(ctx: RunsContext) -> None:
    """Restart every lease after the master's restart: the master was away, not the runners."""
    settings = ctx.state.settings
    for runner in ctx.state.runners.values():
        if runner.lost:
            continue
        ctx.changed_runner(runner)
        runner.session = ""
        runner.lease_until = ctx.now + settings.lease_seconds


def expire(ctx: RunsContext, runner: Runner) -> None:
    """Handle due times of a runner: its lease, the end of its pause, its record."""
    now, settings = ctx.now, ctx.state.settings
    if runner.paused_until is not None and runner.paused_until <= now:
        ctx.changed_runner(runner)
        runner.paused_until, runner.pause_reason = None, ""
        ctx.capacity_grew = True
    if runner.lease_until is None or runner.lease_until > now:
        return
    ctx.changed_runner(runner)
    if runner.lost or runner.leaving:
        _lose(ctx, runner)
        del ctx.state.runners[runner.runner_id]
        return
    runner.lost = True
    runner.lease_until = now + settings.runner_keep_seconds
    _lose(ctx, runner)


def _lose(ctx: RunsContext, runner: Runner) -> None:
    """Abandon all instances of a runner."""
    reason = f"runner {runner.runner_id} is lost"
    held = [(fence, holding.run_id) for fence, holding in runner.holds.items()]
    holdings.release_all(ctx, runner)
    for fence, run_id in held:
        run = ctx.run_of_fence(run_id, fence)
        if run is None or run.launch is None:
            continue
        starting = run.launch.started_at is None
        lost = any(record.runner_id == runner.runner_id and record.placed for record in run.ranks)
        run.launch.awaited.pop(runner.runner_id, None)
        launch.lose_ranks(ctx, run, runner)
        if lost:
            launch.after_loss(ctx, run, reason, launch_failed=starting and run.launch.ending is None)
        else:
            life.conclude_if_gone(ctx, run)


def deadline(runner: Runner) -> float | None:
    """Return the next time at which something is due for a runner."""
    times = [at for at in (runner.lease_until, runner.paused_until) if at is not None]
    return min(times, default=None)
