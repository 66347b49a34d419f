"""Deadlines with on-demand workers: the spot and on-demand workers that a job requests, and who trains.

`elastane_scheduler.autoscaling.spot_deadline` decides, from the state collected here. It is called every
POLL_SECONDS, and when workers come or go, also while nobody trains.

Spot availability is only known by requesting it, so the job always requests its largest useful number on
spot. If there are more workers than wanted, those of the wrong class stand by and are released by the program
that started them; no training worker is stopped before its replacement has joined.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from elastane_master.decisions import autoscaling, balance, quarantine
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.state import HALTED, OVER, JobState, SpotBook, WorkerRecord
from elastane_proto.history import events as history
from elastane_proto.job_settings import JobSettings
from elastane_scheduler.autoscaling.autoscaler import Action, Decision
from elastane_scheduler.autoscaling.modes import Deadline, parse_mode
from elastane_scheduler.autoscaling.spot_deadline import (
    SpotDecision,
    SpotMemory,
    SpotPolicy,
    SpotRung,
    SpotView,
    UniformProgress,
    WideSpot,
)
from elastane_scheduler.plan import ladder

POLL_SECONDS = 30.0
"""Time between two decisions, at most."""


def settle(ctx: DecisionContext) -> None:
    """Decide on the targets after an event, if it is time, or if workers have come or gone."""
    state = ctx.state
    if not autoscaling.is_on_spot(state.settings) or not _is_wanted(state):
        return
    book = state.scaling.spot
    is_due = book.look_at is None or ctx.now >= book.look_at or book.seen != _attending(state)
    # The first measurement at once: workers may be gone at the next poll.
    if is_due or (not book.rests and balance.ring_step_seconds(state) is not None):
        _look(ctx)


def next_look(state: JobState) -> float | None:
    """Time at which the next Tick is needed; None: no decision is due."""
    return (
        state.scaling.spot.look_at if autoscaling.is_on_spot(state.settings) and _is_wanted(state) else None
    )


def ranks(state: JobState, workers: Iterable[WorkerRecord]) -> dict[str, int]:
    """Return the ranks of workers for the ring: the wanted on-demand ones first, then spot, then the rest.

    Empty if capacity makes no difference.
    """
    if not autoscaling.is_on_spot(state.settings):
        return {}
    found, left = {}, state.scaling.on_demand_target
    in_ring = {worker: place for place, worker in enumerate(state.ring.order)}
    for record in sorted(workers, key=lambda one: (in_ring.get(one.worker, len(in_ring)), one.joined_order)):
        if record.capacity == "spot":
            found[record.worker] = 1
        elif record.draining:
            found[record.worker] = 2
        else:
            found[record.worker] = 0 if left > 0 else 2
            left -= 1
    return found


def preview(state: JobState, settings: JobSettings, now: float) -> tuple[Decision, ...]:
    """Return the decision that these settings would lead to now; changes nothing."""
    is_same = settings.scaling == state.settings.scaling
    found = _decided(state, settings, state.scaling.spot.memory if is_same else SpotMemory(), now)
    if found is None:
        return ()
    _, decision, target, on_demand = found
    present = (autoscaling.workers_target(state), state.scaling.on_demand_target)
    reason = f"{on_demand} on demand: {decision.reason}" if on_demand else decision.reason
    action: Action = "keep" if (target, on_demand) == present else "scale"
    finish, met = decision.finish_seconds, not decision.late
    return (Decision(state.scaling.autoscaler, target, action, reason, finish, met=met),)


def measured(state: JobState, settings: JobSettings) -> SpotBook:
    """Return the book with the useful numbers of workers within the job's bounds, as measured.

    Nothing is known until whole steps of a ring were measured; while nobody trains, the last measurement
    counts. The time of a step besides its ESTs is known for numbers that have trained; others get the
    longest.
    """
    members, book, ests = state.active_members(), state.scaling.spot, settings.ests
    known = [record.added_seconds for record in members if record.added_seconds]
    whole, rests = balance.ring_step_seconds(state), dict(book.rests)
    if members and whole is not None:
        hosted = max(member.end - member.start for member in state.ring.members)
        known = known or [whole / hosted]
        rests[len(members)] = max(0.0, whole - hosted * statistics.median(known))
    if not known or not rests:
        return book
    limits = autoscaling.bounds(state, settings)
    least, most = limits.workers_min, limits.workers_max
    counts = {count for count in ladder(ests) if least <= count <= most} | {least}
    seconds, longest = statistics.median(known), max(rests.values())
    rungs = tuple(
        SpotRung(count, -(-ests // count) * seconds + rests.get(count, longest)) for count in sorted(counts)
    )
    return msgspec.structs.replace(book, rungs=rungs, rests=rests)


def _look(ctx: DecisionContext) -> None:
    state, scaling = ctx.state, ctx.state.scaling
    found = _decided(state, state.settings, scaling.spot.memory, ctx.now)
    if found is None:
        return
    ctx.touch()
    book, decision, target, on_demand = found
    book.memory, book.look_at, book.seen = decision.memory, ctx.now + POLL_SECONDS, _attending(state)
    scaling.spot = book
    before = (autoscaling.workers_target(state), scaling.on_demand_target)
    scaling.target, scaling.on_demand_target = target, on_demand
    scaling.reason, scaling.predicted_finish_at = decision.reason, decision.finish_seconds
    if (target, on_demand) != before:
        scaling.changed_at = ctx.now
        mode_text = state.settings.scaling
        ctx.note(history.JobAutoscaled(before[0], target, on_demand, mode_text, decision.reason))


def _decided(
    state: JobState, settings: JobSettings, memory: SpotMemory, now: float
) -> tuple[SpotBook, SpotDecision, int, int] | None:
    """Return the measurement, the policy's decision, and the resulting targets: total and on demand."""
    mode = parse_mode(settings.scaling, now)
    if not isinstance(mode, Deadline):
        return None
    there = [
        record
        for record in state.ring_workers()
        if not (record.draining or record.drain_sent or quarantine.for_good(record))
    ]
    on_demand = sum(record.capacity == "on_demand" for record in there)
    book, total, most = measured(state, settings), state.total_steps, settings.workers_most
    view = SpotView(
        now_seconds=now,
        deadline_seconds=mode.at,
        steps_left=max(0, total - state.steps.committed),
        rungs=book.rungs if total else (),
        spot_workers=len(there) - on_demand,
        on_demand_workers=on_demand,
        on_demand_ready=on_demand,
        on_demand_max=min(settings.on_demand_workers, most),
        cold_start_seconds=settings.cold_start_seconds,
        poll_seconds=POLL_SECONDS,
    )
    decision = _policy(settings).decide(view, memory)
    if book.rungs and not total:
        unknown = "the number of steps is unknown: there is no last moment, and spot is waited for"
        decision = msgspec.structs.replace(decision, reason=unknown)
    # While no useful number is known, the maximum.
    wanted = decision.spot_target + decision.on_demand_target if view.rungs else most
    target = max(min(wanted, most), min(settings.workers_min, most), 1)
    return book, decision, target, min(decision.on_demand_target, target)


def _policy(settings: JobSettings) -> SpotPolicy:
    if settings.spot_policy == "uniform":
        return UniformProgress(min(settings.on_demand_workers, settings.workers_most))
    return WideSpot()


def _is_wanted(state: JobState) -> bool:
    """True if steps are left to train, and no worker may return any more after a restart of the master."""
    if state.phase in OVER or state.phase in HALTED or state.all_committed:
        return False
    return not state.awaited()


def _attending(state: JobState) -> tuple[int, int]:
    workers = state.cost.ring_workers
    return workers.spot, workers.on_demand
