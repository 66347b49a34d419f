"""A deadline where workers may be on demand: what the job asks for on spot and on demand, and who trains.

`elastane_scheduler.autoscaling.spot_deadline` decides; here it is told what there is. It is asked every
POLL_SECONDS, and when workers come or go: the last moment to go on demand comes also while nobody trains.

What spot offers shows only when it is asked for, so the job always asks for the widest rung on spot. Where
there are more workers than are wanted, those of the wrong class stand by, and whoever started them gives them
back; nobody who trains is stopped before another is there to take its place.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from elastane_master.decisions import autoscaling, balance, quarantine
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.state import HALTED, OVER, JobState, WorkerRecord
from elastane_proto.history import events as history
from elastane_scheduler.autoscaling.modes import Deadline
from elastane_scheduler.autoscaling.spot_deadline import (
    SpotPolicy,
    SpotRung,
    SpotView,
    UniformProgress,
    WideSpot,
)
from elastane_scheduler.plan import ladder

POLL_SECONDS = 30.0
"""Time between two decisions, at most."""


def applies(state: JobState) -> bool:
    """True if the targets of a job are decided here: it has a deadline, and may have workers on demand."""
    settings = state.settings
    return settings.on_demand_workers > 0 and settings.scaling.startswith("deadline=")


def settle(ctx: DecisionContext) -> None:
    """Decide on the targets after an event, if it is time, or if workers have come or gone."""
    state = ctx.state
    if not applies(state) or not _is_wanted(state):
        return
    book = state.scaling.spot
    is_due = book.look_at is None or ctx.now >= book.look_at or book.seen != _attending(state)
    # The first measurement at once: workers may be gone at the next poll.
    if is_due or (not book.rests and balance.ring_step_seconds(state) is not None):
        _look(ctx)


def next_look(state: JobState) -> float | None:
    """Time at which the next Tick is needed; None: no decision is due."""
    return state.scaling.spot.look_at if applies(state) and _is_wanted(state) else None


def ranks(state: JobState, workers: Iterable[WorkerRecord]) -> dict[str, int]:
    """Return whom the ring takes first: as many on demand as are wanted, then spot, then the others.

    Empty where capacity makes no difference.
    """
    if not applies(state):
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


def measure(state: JobState) -> None:
    """Note the numbers of workers that pay within the job's bounds, with the seconds of a step as measured.

    Until whole steps of a ring were measured, nothing is known; while nobody trains, what was measured last.
    What a step needs besides its ESTs is known for the numbers that have trained; for others, the longest.
    """
    members, book, ests = state.active_members(), state.scaling.spot, state.settings.ests
    known = [record.est_seconds for record in members if record.est_seconds]
    whole = balance.ring_step_seconds(state)
    if members and whole is not None:
        hosted = max(member.end - member.start for member in state.ring.members)
        known = known or [whole / hosted]
        book.rests[len(members)] = max(0.0, whole - hosted * statistics.median(known))
    if not known or not book.rests:
        return
    most = min(state.settings.workers_max or ests, ests)
    least = min(max(state.settings.workers_min, 1), most)
    counts = {count for count in ladder(ests) if least <= count <= most} | {least}
    seconds, longest = statistics.median(known), max(book.rests.values())
    book.rungs = tuple(
        SpotRung(count, -(-ests // count) * seconds + book.rests.get(count, longest))
        for count in sorted(counts)
    )


def _look(ctx: DecisionContext) -> None:
    state, settings = ctx.state, ctx.state.settings
    mode = autoscaling.mode_of(state)
    if not isinstance(mode, Deadline):
        return
    ctx.touch()
    book, scaling = state.scaling.spot, state.scaling
    there = [
        record
        for record in state.ring_workers()
        if not (record.draining or record.drain_sent or quarantine.for_good(record))
    ]
    on_demand = sum(record.capacity == "on_demand" for record in there)
    measure(state)
    total = state.total_steps
    view = SpotView(
        now_seconds=ctx.now,
        deadline_seconds=mode.at,
        steps_left=max(0, total - state.steps.committed),
        rungs=book.rungs if total else (),
        spot_workers=len(there) - on_demand,
        on_demand_workers=on_demand,
        on_demand_ready=on_demand,
        on_demand_max=min(settings.on_demand_workers, settings.workers_max or settings.ests, settings.ests),
        cold_start_seconds=settings.cold_start_seconds,
        poll_seconds=POLL_SECONDS,
    )
    decision = _policy(state).decide(view, book.memory)
    book.memory, book.look_at, book.seen = decision.memory, ctx.now + POLL_SECONDS, _attending(state)
    before = (autoscaling.workers_target(state), scaling.on_demand_target)
    # As many as may train, while no rung is known.
    scaling.target = decision.spot_target + decision.on_demand_target if view.rungs else 0
    target = autoscaling.workers_target(state)
    scaling.on_demand_target = min(decision.on_demand_target, target)
    scaling.reason, scaling.predicted_finish_at = decision.reason, decision.finish_seconds
    if (target, scaling.on_demand_target) != before:
        scaling.changed_at = ctx.now
        mode_text = settings.scaling
        ctx.note(
            history.JobAutoscaled(before[0], target, scaling.on_demand_target, mode_text, decision.reason)
        )


def _policy(state: JobState) -> SpotPolicy:
    settings = state.settings
    if settings.spot_policy == "uniform":
        most = min(settings.workers_max or settings.ests, settings.ests)
        return UniformProgress(min(settings.on_demand_workers, most))
    return WideSpot()


def _is_wanted(state: JobState) -> bool:
    """True if steps are left to train, and nobody may return any more after a restart of the master."""
    if state.phase in OVER or state.phase in HALTED or state.all_committed:
        return False
    return not state.awaited()


def _attending(state: JobState) -> tuple[int, int]:
    workers = state.cost.ring_workers
    return workers.spot, workers.on_demand
