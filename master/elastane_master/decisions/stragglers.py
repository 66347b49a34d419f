"""Stragglers: reactions to a worker that is slower than others on its device type.

Stragglers and their causes are detected outside the state machine, from the workers' reported rates
(`elastane_scheduler.autoscaling.stragglers`); the verdict arrives with the worker's heartbeat, and changes
are stored.

    first    fewer ESTs for it: balance.py uses a straggler's own speed, and alone decides ranges
    then     a replacement, if steps become shorter by 5 % or more than with the best ranges, and

                 steps left x (T_best ranges - T_replaced) > 2 x the time that a change takes

A standby must be present: it joins and the straggler leaves in one planned change, so that the ring never
shrinks. Until the new ring trains the straggler stands by, and returns to its place if the replacement is
lost; then it is drained. This includes the leader, whose role moves with EST 0.

As for changes of ranges, a pause doubles with each replacement within an hour, and longer steps afterwards
prevent further ones for ten minutes, then twenty. A host with two replaced workers within an hour gets no
worker for an hour, unless all workers of the job are on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import get_args

from msgspec.structs import replace

from elastane_master.decisions import balance, held_state
from elastane_master.decisions.assignment import Choice, balanced_counts
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Member
from elastane_master.decisions.events import AppliedReported
from elastane_master.decisions.state import JobState, Replacement, WorkerRecord
from elastane_proto.history import events as history
from elastane_proto.history.describe import how_slow, stands_by
from elastane_scheduler.autoscaling.stragglers import Cause

CAUSES: tuple[str, ...] = get_args(Cause)
NONE = "none"
"""Value for a worker that is not a straggler; empty if that is unknown."""
RATIO_CHANGE_MIN = 0.05
UPDATE_SECONDS = 1.0
"""Minimum time between two changes of a straggler's ratio or cause: each one is stored."""
WINDOW_SECONDS = 3600.0
"""Time for which replacements count."""
HOST_REPLACED_MAX = 2
BAR_SECONDS = 3600.0
HOSTS_MAX = 1000
"""Limit of remembered hosts; those whose last replacement is oldest are forgotten."""
DRAINED_BY = "straggler"
"""Value of `WorkerDraining.by` for a replaced straggler."""


def judged(ctx: DecisionContext, record: WorkerRecord, event: AppliedReported) -> None:
    """Record whether a worker is a straggler, if that has changed."""
    if not event.straggler:
        return
    cause = "" if event.straggler == NONE else event.straggler
    moved = cause != record.straggler or abs(event.rate_ratio - record.rate_ratio) > RATIO_CHANGE_MIN
    is_soon = ctx.now < record.straggler_at + UPDATE_SECONDS
    if bool(cause) == bool(record.straggler) and (not cause or not moved or is_soon):
        return
    ctx.touch()
    record.straggler, record.straggler_at = cause, ctx.now
    record.rate_ratio = event.rate_ratio if cause else 1.0
    member = ctx.state.ring.member(record.worker)
    if member is not None and not record.draining:
        record.reason = hosts(record, member)


def hosts(record: WorkerRecord, member: Member) -> str:
    """Describe what a member hosts, and whether it is slow."""
    first, last = member.start, member.end - 1
    ests = f"hosts EST {first}" if first == last else f"hosts ESTs {first} to {last}"
    return (
        f"{ests}; a straggler: {how_slow(record.straggler, record.rate_ratio)}" if record.straggler else ests
    )


def replacement(state: JobState, now: float, without: Callable[[str], Choice]) -> Choice | None:
    """Choose a ring in which the slowest straggler is replaced, if that pays off; None for no change.

    without: chooses the ring as if a worker were absent.
    """
    if not balance.is_turn(state):  # called at each boundary: return early
        return None
    record = _slowest(state)
    if record is None or not _may_replace(state, now):
        return None
    before, choice = state.ring.members, without(record.worker)
    names = set(state.ring.names())
    joined = [member.worker for member in choice.members if member.worker not in names]
    if len(joined) != 1 or len(choice.members) != len(before):
        return None
    newcomer = state.workers[joined[0]]
    if newcomer.straggler or newcomer.held_until is not None or not _holds_state(state, choice.members):
        return None
    old = _step_time(state, before, _speeds(state, before))
    new = _step_time(state, choice.members, _speeds(state, choice.members))
    if not (old and new and balance.pays(state, old, new)):
        return None
    why = (
        f"{newcomer.worker} takes the place of {record.worker}, a straggler: "
        f"{how_slow(record.straggler, record.rate_ratio)}"
    )
    return replace(choice, change=why, replaces=record.worker)


def standbys_wanted(state: JobState) -> int:
    """Return how many standbys are wanted to replace a straggler: 1 or 0.

    1 while replacement by an equal device would pay off, whether or not there is a standby already. Called
    for the number of workers that a job asks for.
    """
    record, members = _slowest(state), state.ring.members
    if record is None or not _may_replace(state, state.decided_at):
        return 0
    known = _speeds(state, members)
    like = [
        known[one.worker]
        for one in state.active_members()
        if known and one.device_type == record.device_type and not one.straggler
    ]
    if not like:
        return 0
    healthy = known | {record.worker: min(like)}
    pays = balance.pays(state, _step_time(state, members, known), _step_time(state, members, healthy))
    return int(pays)


def _slowest(state: JobState) -> WorkerRecord | None:
    slow = [record for record in state.active_members() if record.straggler and not record.draining]
    return min(slow, key=lambda one: (one.rate_ratio, one.worker), default=None)


def _may_replace(state: JobState, now: float) -> bool:
    book = state.stragglers
    since = max((*(at for times in book.replaced.values() for at in times), book.changed_at or 0.0))
    pause = balance.pause_seconds(len(_recent(state, now)))
    return now >= book.backoff_until and (not since or now >= since + pause)


def _recent(state: JobState, now: float) -> list[float]:
    """Return the times of recent replacements."""
    return [at for times in state.stragglers.replaced.values() for at in times if at > now - WINDOW_SECONDS]


def _holds_state(state: JobState, members: Sequence[Member]) -> bool:
    return any(held_state.usable_step(state, state.workers[member.worker]) >= 0 for member in members)


def _speeds(state: JobState, members: Sequence[Member]) -> dict[str, float]:
    """Return the seconds that an EST adds to a step by worker; empty if one is unknown.

    A slow network delays a step independent of the worker's number of ESTs: it counts as a delay of each, and
    the worker's ratio as that of their computing.
    """
    records = [state.workers[member.worker] for member in members]
    known = balance.speeds(records)
    for record in records:
        if known and record.straggler == "network" and record.rate_ratio > 0:
            after = min(record.after_est_seconds, known[record.worker])
            known[record.worker] = (known[record.worker] - after) / record.rate_ratio + after
    return known


def _step_time(state: JobState, members: Sequence[Member], known: Mapping[str, float]) -> float:
    """Return the seconds of a step with the best ranges; 0.0: not known.

    known: seconds of an EST by worker.
    """
    if not known:
        return 0.0
    carried = [balance.capacity(state, state.workers[member.worker], known) for member in members]
    counts = balanced_counts(state.settings.ests, carried)
    return max(count * one.est_seconds for count, one in zip(counts, carried, strict=True))


def _rates(state: JobState, members: Sequence[Member]) -> tuple[float, float]:
    """Return the steps per second of the present ring, as measured, and those expected of the next one.

    0.0: not known.
    """
    seconds = balance.ring_step_seconds(state)
    before, after = _speeds(state, state.ring.members), _speeds(state, members)
    if seconds is None or not before or not after:
        return 0.0, 0.0
    gain = balance.step_time(state.ring.members, before) - balance.step_time(members, after)
    return 1 / seconds, 1 / (seconds - gain) if seconds > gain else 0.0


def announced(ctx: DecisionContext, choice: Choice, *, planned: bool) -> None:
    """Note that the next ring is decided, while `state.ring` is still the one before."""
    state, book = ctx.state, ctx.state.stragglers
    if not planned or state.ring.gone or not choice.members:
        return
    _note_reweighted(ctx, choice)
    record = state.workers.get(choice.replaces)
    if record is None:
        return
    before, after = _rates(state, choice.members)
    known = set(state.ring.names())
    newcomer = next(member.worker for member in choice.members if member.worker not in known)
    book.changed_at = ctx.now
    book.replacing = Replacement(
        record.worker,
        newcomer,
        record.host,
        record.straggler,
        record.rate_ratio,
        state.ring.generation + 1,
        before,
        after,
    )
    book.tried_seconds = balance.ring_step_seconds(state) or 0.0


def _note_reweighted(ctx: DecisionContext, choice: Choice) -> None:
    """Record events for stragglers that will host fewer ESTs than before and than others."""
    state = ctx.state
    even = state.settings.ests // len(choice.members)
    rates: tuple[float, float] | None = None
    for member in choice.members:
        record, old = state.workers[member.worker], state.ring.member(member.worker)
        ests = member.end - member.start
        if not record.straggler or old is None or ests >= min(even, old.end - old.start):
            continue
        rates = rates or _rates(state, choice.members)
        ctx.note(
            history.StragglerReweighted(
                record.worker, record.straggler, record.rate_ratio, old.end - old.start, ests, *rates
            )
        )


def formed(ctx: DecisionContext) -> None:
    """Release a replaced straggler, now that the ring is ready."""
    state, book = ctx.state, ctx.state.stragglers
    done, book.replacing = book.replacing, None
    if done is None or done.generation != state.ring.generation:
        return
    book.tried_generation = done.generation
    seconds = _count(state, done, ctx.now)
    replaced = history.StragglerReplaced(
        done.worker,
        done.newcomer,
        done.cause,
        done.ratio,
        done.host,
        seconds,
        done.rate_before,
        done.rate_after,
    )
    ctx.note(replaced)
    record = state.workers.get(done.worker)
    if record is None or record.draining or state.ring.member(done.worker) is not None:
        return
    record.draining, record.straggler = True, done.cause
    record.drain_reason = f"{done.newcomer} replaced it: {how_slow(done.cause, done.ratio)}"
    record.reason = f"leaves: {record.drain_reason}"
    ctx.note(history.WorkerDraining(record.worker, record.drain_reason, DRAINED_BY))


def _count(state: JobState, done: Replacement, now: float) -> float:
    """Count a replacement for its host. Returns the seconds for which the host is barred; 0.0: not barred."""
    book, host = state.stragglers, done.host
    times = (*(at for at in book.replaced.pop(host, ()) if at > now - WINDOW_SECONDS), now)
    book.replaced[host] = times
    while len(book.replaced) > HOSTS_MAX:
        del book.replaced[next(iter(book.replaced))]
    book.barred = {name: until for name, until in book.barred.items() if until > now}
    is_only = all(record.host == host for record in state.ring_workers())
    if not host or is_only or len(times) < HOST_REPLACED_MAX:
        return 0.0
    book.barred[host] = now + BAR_SECONDS
    for record in state.ring_workers():
        if record.host == host and state.ring.member(record.worker) is None and not record.draining:
            record.held_until = max(record.held_until or 0.0, now + BAR_SECONDS)
            record.reason = stands_by(history.HostBarred(record.worker, host, BAR_SECONDS))
    return BAR_SECONDS


def barred_until(state: JobState, host: str, now: float) -> float | None:
    """Return until when a host is barred from getting a worker; None: it is not."""
    until = state.stragglers.barred.get(host, 0.0)
    return until if until > now else None


def judge(state: JobState) -> None:
    """Compare the steps before and after the last replacement, once both are known.

    Called at a step boundary, whose event is stored in any case.
    """
    book = state.stragglers
    if not book.tried_generation or book.tried_generation != state.ring.generation:
        return
    after = balance.ring_step_seconds(state)
    if after is None:
        return
    book.tried_generation = 0
    if book.tried_seconds and after > (1 + balance.NOISE_FRACTION) * book.tried_seconds:
        seconds = min(2 * book.backoff_seconds, balance.SECONDS_MAX) or balance.BACKOFF_SECONDS
        book.backoff_seconds, book.backoff_until = seconds, state.decided_at + seconds
    else:
        book.backoff_seconds = 0.0
