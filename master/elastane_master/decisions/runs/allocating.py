"""Turns a decision of the scheduling policy into the allocation, as far as it is feasible.

The policy decides outside the state machine, about a state that may have changed since, and may be wrong. So
a decision is reduced to what is feasible: finished runs are left out, no run gets more than it can use or
than exists, a running black box keeps its slots, and a running elastic run keeps `instances_min` instances.
The rest are wishes: only slots that are really free are given away.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from elastane_master.decisions.runs.allocation import (
    REJECTED_MAX,
    RUNS_OF_DECISION_MAX,
    Decided,
    DecisionKind,
    Instances,
    RunDecision,
    Target,
)
from elastane_master.decisions.runs.context import RunsContext
from elastane_master.decisions.runs.events import AllocationDecided
from elastane_master.decisions.runs.queue_shares import guarantee_is_due, guaranteed_first
from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.runner import DEVICE_TYPE_MAX, Runner
from elastane_master.decisions.runs.state import FAIR_SHARE, RunsState

TEXT_MAX = 500
"""Characters of a reason that are kept."""


def decided(ctx: RunsContext, event: AllocationDecided) -> None:
    """Handle a decision; one about an older state than the last one's is ignored."""
    state, allocation = ctx.state, ctx.state.allocation
    if event.policy != state.settings.scheduling_policy or event.policy == FAIR_SHARE:
        return
    if not allocation.revision <= event.revision <= state.revision:
        return
    if event.failure:
        _failed(ctx, event)
        return
    if _note_unlike(ctx, event.unlike):
        return  # its targets refer to the old types: the next decision knows the new ones
    wanted = _feasible(state, event.targets)
    targets, declined = _damped(ctx, wanted)
    reasons = {target.run_id: target.reason for target in event.targets}
    about = _about(ctx, event, targets, declined, reasons)
    if targets == allocation.targets and allocation.in_charge and not about:
        return
    ctx.touch()
    ctx.capacity_grew = True
    _note_reshaped(ctx, targets)
    allocation.policy, allocation.failure = event.policy, ""
    allocation.decided_at, allocation.revision = ctx.now, event.revision
    allocation.targets = targets
    _note(ctx, event, about)


def _note_unlike(ctx: RunsContext, unlike: Mapping[str, str]) -> bool:
    """Record runners' types as measured; True if any has changed."""
    changed = False
    for name, runner in ctx.state.runners.items():
        measured = unlike.get(name, "")[:DEVICE_TYPE_MAX]
        if runner.measured_type != measured:
            runner.measured_type, changed = measured, True
            ctx.changed_runner(runner)
    return changed


def _failed(ctx: RunsContext, event: AllocationDecided) -> None:
    """Record a failure of the policy: runs are ordered by fair share until it decides."""
    allocation = ctx.state.allocation
    failure = event.failure[:TEXT_MAX]
    if allocation.failure == failure:
        return
    ctx.touch()
    ctx.capacity_grew = True
    allocation.policy, allocation.failure = event.policy, failure
    allocation.decided_at, allocation.revision = ctx.now, event.revision
    choice = f"{FAIR_SHARE}, since {event.policy} did not decide: {failure}"
    allocation.note(Decided(ctx.now, FAIR_SHARE, choice, (), ()))


def master_started(ctx: RunsContext) -> None:
    """Keep the allocation after a restart; running runs are not moved before the policy has measurements."""
    settings, allocation = ctx.state.settings, ctx.state.allocation
    if allocation.policy != settings.scheduling_policy:
        allocation.policy, allocation.failure = "", ""
        allocation.targets, allocation.reshaped_at = {}, {}
    allocation.steady_until = ctx.now + settings.reshape_seconds


# ------------------------------------------------------------------ what is possible


def capacity(runners: Mapping[str, Runner]) -> Counter[str]:
    """Return the slots of each device type on all runners that are not lost or leaving."""
    slots: Counter[str] = Counter()
    for runner in runners.values():
        if not runner.lost and not runner.leaving:
            slots[runner.computes_on] += runner.slots
    return slots


def placed_by_type(run: Run, runners: Mapping[str, Runner], *, staying: bool = False) -> Instances:
    """Return the placed instances of a run by device type. staying: without those on leaving runners."""
    counts: Instances = {}
    for record in run.ranks:
        runner = runners.get(record.runner_id) if record.placed else None
        if runner is not None and not (staying and runner.leaving):
            counts[runner.computes_on] = counts.get(runner.computes_on, 0) + 1
    return counts


def _feasible(state: RunsState, wanted: Iterable[Target]) -> dict[int, Instances]:
    """Reduce targets to available slots, in order, after guarantees and the minimums of running runs."""
    left = capacity(state.runners)
    rooms = {owner: most for owner, most in state.slots_max.items() if most}
    floors: dict[int, Instances] = {}
    for run in state.runs.values():
        if run.launch is None:
            continue
        keeps = placed_by_type(run, state.runners, staying=True)
        if run.demand.elastic:
            keeps = _least(keeps, run.demand.instances_min)
            floors[run.run_id] = keeps
        left.subtract(_slots(run, keeps))
        if run.owner in rooms:
            rooms[run.owner] -= sum(_slots(run, keeps).values())
    targets: dict[int, Instances] = {}
    wanted = tuple(wanted)
    for target in guaranteed_first(state.settings.queues, state.runs, wanted):
        run_or_none = state.runs.get(target.run_id)
        if run_or_none is None or run_or_none.over or target.run_id in targets:
            continue
        if run_or_none.launch is not None and not run_or_none.demand.elastic:
            continue  # it keeps what it has
        floor = floors.get(target.run_id, {})
        owner = run_or_none.owner
        kept = sum(_slots(run_or_none, floor).values())
        cut = _cut(run_or_none, target.instances, floor, left, rooms.get(owner, math.inf) + kept)
        if owner in rooms:
            rooms[owner] += kept - sum(_slots(run_or_none, cut).values())
        if cut:
            targets[target.run_id] = cut
    for run_id, keeps in floors.items():
        if keeps and run_id not in targets:
            targets[run_id] = keeps
    order = dict.fromkeys((*(target.run_id for target in wanted), *floors))
    return {run_id: targets[run_id] for run_id in order if run_id in targets}


def _slots(run: Run, instances: Instances) -> Instances:
    return {name: count * run.demand.slots_per_instance for name, count in instances.items()}


def _least(has: Instances, least: int) -> Instances:
    """Return `least` of the instances, taken from the types with the most first."""
    kept: Instances = {}
    for name in sorted(has, key=lambda name: (-has[name], name)):
        if least <= 0:
            break
        kept[name] = min(has[name], least)
        least -= kept[name]
    return kept


def _cut(run: Run, wanted: Instances, floor: Instances, left: Counter[str], slots_max: float) -> Instances:
    """Return the feasible part of a run's target, and subtract it from `left`; {}: nothing.

    floor: its guaranteed minimum. slots_max: slots that its owner's quota allows, including the floor.
    """
    demand = run.demand
    given_back = Counter(left)
    given_back.update(_slots(run, floor))
    room, cut = int(min(demand.instances, max(0, slots_max) // demand.slots_per_instance)), Instances()
    for name in sorted(wanted):
        count = max(0, min(wanted[name], given_back[name] // demand.slots_per_instance, room))
        if count:
            cut[name], room = count, room - count
    if sum(cut.values()) < demand.instances_min:
        if not floor:
            return {}
        cut = floor
    left.clear()
    left.update(given_back)
    left.subtract(_slots(run, cut))
    return cut


# ------------------------------------------------------------------ changes of running runs


def _damped(
    ctx: RunsContext, wanted: dict[int, Instances]
) -> tuple[dict[int, Instances], dict[int, tuple[Instances, str]]]:
    """Keep recently changed running runs as they are, unless their slots are gone or urgently needed.

    Urgent are starving runs, and queues that wait for their guaranteed slots.

    Returns the targets, and for each run kept as it is the intended target and the reason.
    """
    state, allocation = ctx.state, ctx.state.allocation
    settings = state.settings
    starving = next(ctx.index.waiting.starving(ctx.now, settings.starvation_seconds), None) is not None
    hurry = starving or guarantee_is_due(settings.queues, state.runs, state.runners, wanted)
    slots = capacity(state.runners)
    targets: dict[int, Instances] = {}
    declined: dict[int, tuple[Instances, str]] = {}
    for run_id, instances in wanted.items():
        run = state.runs[run_id]
        before = allocation.targets.get(run_id)
        wait = _wait_seconds(ctx, run)
        there = before is not None and all(
            slots[name] >= count for name, count in _slots(run, before).items()
        )
        if before is None or before == instances or wait <= 0 or hurry or not there:
            targets[run_id] = instances
        else:
            targets[run_id] = before
            declined[run_id] = (instances, f"its instances were changed a moment ago; again in {wait:.0f} s")
    return targets, declined


def _wait_seconds(ctx: RunsContext, run: Run) -> float:
    """Return the seconds until a running run may be changed again."""
    if run.launch is None:
        return 0.0
    allocation = ctx.state.allocation
    changed_at = max(run.launch.begun_at, allocation.reshaped_at.get(run.run_id, 0.0))
    return max(changed_at + ctx.state.settings.reshape_seconds, allocation.steady_until) - ctx.now


def _note_reshaped(ctx: RunsContext, targets: dict[int, Instances]) -> None:
    """Record which running runs are changed, and remove those that are over."""
    state, allocation = ctx.state, ctx.state.allocation
    reshaped = {
        run_id: at
        for run_id, at in allocation.reshaped_at.items()
        if (run := state.runs.get(run_id)) is not None and run.launch is not None
    }
    for run_id, instances in targets.items():
        if state.runs[run_id].launch is not None and allocation.targets.get(run_id) != instances:
            reshaped[run_id] = ctx.now
    allocation.reshaped_at = reshaped


# ------------------------------------------------------------------ why


def _about(
    ctx: RunsContext,
    event: AllocationDecided,
    targets: dict[int, Instances],
    declined: dict[int, tuple[Instances, str]],
    reasons: dict[int, str],
) -> list[RunDecision]:
    """Return the parts of the decision that are new."""
    state = ctx.state
    rejected = tuple(text[:TEXT_MAX] for text in event.rejected[:REJECTED_MAX])
    found: list[RunDecision] = []
    for run_id in dict.fromkeys((*targets, *reasons)):
        run = state.runs.get(run_id)
        if run is None or run.over or (run.launch is not None and not run.demand.elastic):
            continue
        slots = run.demand.slots_per_instance
        before = sum(state.allocation.targets.get(run_id, {}).values()) * slots
        after = sum(targets.get(run_id, {}).values()) * slots
        kind, reason = _kind(before, after, run), reasons.get(run_id, "")[:TEXT_MAX]
        if run_id in declined:
            should, why = declined[run_id]
            kind, reason = "declined", f"{sum(should.values()) * slots} slots: {why}; {reason}"[:TEXT_MAX]
        last = run.decided[-1] if run.decided else None
        said = last is not None and (last.kind, last.slots_after) == (kind, after)
        if said or (kind == "kept" and last is not None):
            continue
        found.append(
            RunDecision(
                ctx.now, event.policy, event.choice[:TEXT_MAX], rejected, run_id, kind, before, after, reason
            )
        )
    found.sort(key=lambda one: one.slots_before == one.slots_after)
    return found[:RUNS_OF_DECISION_MAX]


def _kind(before: int, after: int, run: Run) -> DecisionKind:
    if after > before:
        return "granted"
    if after < before:
        return "taken"
    return "kept" if after or run.launch is not None else "waits"


def _note(ctx: RunsContext, event: AllocationDecided, about: list[RunDecision]) -> None:
    """Record the decision for each run and for the service."""
    if not about:
        return
    for decision in about:
        run = ctx.state.runs[decision.run_id]
        run.note_decision(decision)
        ctx.changed_run(run)
    short = tuple(
        RunDecision(
            one.time_at,
            one.policy,
            "",
            (),
            one.run_id,
            one.kind,
            one.slots_before,
            one.slots_after,
            one.reason,
        )
        for one in about
    )
    ctx.state.allocation.note(Decided(ctx.now, event.policy, about[0].choice, about[0].rejected, short))
