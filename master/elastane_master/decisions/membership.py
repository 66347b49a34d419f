"""Membership: which workers the ring should have, and why each of them is in it or not.

`next_members` returns its decision with the reason, a `Choice`. All messages about it use the words of that
choice.
"""

from __future__ import annotations

from functools import partial
from itertools import islice

import msgspec

from elastane_master.decisions import (
    autoscaling,
    balance,
    deadline_on_spot,
    held_state,
    quarantine,
    replanning,
    stragglers,
    unit_holders,
)
from elastane_master.decisions.assignment import (
    Candidate,
    Choice,
    are_there,
    balanced_counts,
    balanced_ranges,
    choose_members,
    too_few,
)
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.state import JobState


def next_members(
    state: JobState,
    *,
    planned: bool = False,
    without_newcomers: bool = False,
    by_speed: bool = True,
    without: str = "",
) -> Choice:
    """Choose the ring that the job should have now.

    planned: at a step boundary. by_speed: False if only the set of workers matters, not their ranges.
    without: a worker to leave out.
    """
    # Called at every join: a function call for each worker here would be most of what 10,000 joins take.
    workers = [
        record
        for record in state.workers.values()
        if record.role == "ring"
        and not (record.awaited or record.drain_sent or record.held_until == quarantine.FOR_GOOD)
        and record.worker != without
    ]
    staying = len(workers) - len([record for record in workers if record.draining])
    if staying < state.workers_needed:
        return Choice((), _missing(state, staying))
    order = {worker: place for place, worker in enumerate(state.ring.order)}
    hosted = {
        member.worker: (member.start, member.end)
        for member in (state.ring.members if by_speed else ())
        if member.worker not in state.ring.gone
    }
    ranks = deadline_on_spot.ranks(state, workers)
    held = unit_holders.held_soon(state)
    candidates = [
        Candidate(
            record.worker,
            record.store_address,
            order.get(record.worker),
            record.joined_order,
            held_state.usable_step(state, record),
            record.draining,
            record.held_until is not None,
            hosted.get(record.worker),
            ranks.get(record.worker, 0),
            frozenset(unit_holders.units_in(held.get(record.worker, ()))),
        )
        for record in workers
        if not (without_newcomers and record.worker not in order)
    ]
    return choose_members(
        candidates,
        ests=state.settings.ests,
        workers_min=state.workers_needed,
        workers_max=most_members(state),
        planned=planned,
        saves=planned and bool(state.settings.checkpoint_url),
        # A member of a pipeline hosts its ESTs, but computes a stage for all of them: ranges are even.
        capacities=partial(balance.next_capacities, state) if by_speed and not state.unit_count else None,
    )


def planned_members(ctx: DecisionContext) -> Choice | None:
    """Choose the ring to change to at a step boundary; None for no change.

    Newcomers alone are a reason only once the join window is over, or if they fill the ring. Further reasons
    are the replacement of a straggler (stragglers.py), and other ranges for the same workers if they pay off
    (balance.py).
    """
    state = ctx.state
    if is_settled(state):
        choice = Choice(state.ring.members, are_there(len(state.ring.members)))
    else:
        choice = next_members(state, planned=True, by_speed=False)
    if state.unit_count and balance.same_workers(choice.members, state.ring.members):
        return _other_stages(state, choice)
    if balance.same_workers(choice.members, state.ring.members):
        replaced = stragglers.replacement(
            state, ctx.now, lambda worker: next_members(state, planned=True, without=worker)
        )
        return replaced or _other_ranges(state, choice, ctx.now)
    gathering = state.join_due is not None and ctx.now < state.join_due and not is_full(state, choice)
    if gathering:
        without = next_members(state, planned=True, without_newcomers=True, by_speed=False)
        if balance.same_workers(without.members, state.ring.members):
            return None
    choice = next_members(state, planned=True)
    return msgspec.structs.replace(choice, change=_change(state, choice))


def is_settled(state: JobState) -> bool:
    """True if the ring has all workers, and none of them leaves or is held back.

    `next_members` would choose the same workers again, for several times the cost, at nearly every boundary.
    """
    ring, members = state.ring, state.ring.members
    most = min(most_members(state) or state.settings.ests, state.settings.ests)
    if state.unit_count or ring.gone or len(state.workers) != len(members):
        return False
    if not state.workers_needed <= len(members) <= most or ring.names() != ring.order:
        return False
    for member in members:
        record = state.workers.get(member.worker)
        if (
            record is None
            or record.role != "ring"
            or record.awaited
            or record.draining
            or record.drain_sent
            or record.held_until is not None
            or record.store_address != member.store_address
        ):
            return False
    return True


def _other_stages(state: JobState, choice: Choice) -> Choice | None:
    """Choose the current ring with another plan of its pipeline; None for no change."""
    if set(choice.leaving) - set(state.ring.leaving):
        who = ", ".join(worker for worker in choice.leaving if worker not in state.ring.leaving)
        return msgspec.structs.replace(choice, change=f"{who} hands over its units before it leaves")
    if (plan := replanning.due(state)) is None:
        return None
    return msgspec.structs.replace(choice, change=plan.reason)


def _other_ranges(state: JobState, choice: Choice, now: float) -> Choice | None:
    """Choose other ranges for the workers of the current ring, if that pays off; None for no change."""
    before = state.ring.members
    if not before or not balance.may_change(state, now):
        return None
    if state.balance.reverts:
        why = "ESTs are spread as before: steps have become longer"
        return Choice(state.balance.tried, choice.reason, why)
    known = balance.speeds(state.active_members())
    if not known:
        return None
    carried = [balance.capacity(state, state.workers[member.worker], known) for member in before]
    counts = balanced_counts(state.settings.ests, carried)
    old = balance.step_time(before, known)
    new = max(count * one.est_seconds for count, one in zip(counts, carried, strict=True))
    if not balance.pays(state, old, new):
        return None
    places = balanced_ranges(state.settings.ests, carried, [(m.start, m.end) for m in before])
    members = tuple(
        msgspec.structs.replace(member, start=start, end=end)
        for member, (start, end) in zip(before, places, strict=True)
    )
    why = f"ESTs are spread by the speed of the devices: {old:.3g} s a step become {new:.3g} s"
    return Choice(members, choice.reason, why)


def most_members(state: JobState) -> int:
    """Return how many workers may train; further ones stand by. With autoscaling, the target."""
    settings = state.settings
    return autoscaling.workers_target(state) if settings.scaling else settings.workers_most


def is_full(state: JobState, choice: Choice) -> bool:
    """True if no worker could be added, so that there is no reason to wait for further newcomers."""
    return len(choice.members) >= most_members(state)


def may_grow(state: JobState) -> bool:
    """True if a ring could be formed now and a larger one later, as far as is known without choosing it."""
    fewest = state.workers_needed
    # Called at every join: while workers are missing, none of them is looked at.
    if not fewest <= len(state.workers) < most_members(state):
        return False
    free = (
        record
        for record in state.workers.values()
        if record.role == "ring" and not (record.awaited or record.draining or record.drain_sent)
        if record.held_until is None
    )
    return sum(1 for _ in islice(free, fewest)) == fewest


def standing_by(choice: Choice) -> str:
    """Return why a worker that could train is not in the ring."""
    return f"stands by: the ring has its {len(choice.members)} workers"


def explain_places(state: JobState, choice: Choice) -> None:
    """Record for each worker the reason for its place, after the ring was chosen."""
    for record in state.ring_workers():
        member = state.ring.member(record.worker)
        if member is not None:
            record.reason = stragglers.hosts(record, member)
        elif record.draining:
            record.reason = f"leaves: {record.drain_reason}"
        elif record.held_until is not None:
            continue  # its reason already says so
        elif not choice.members:
            record.reason = "waits for more workers"
        else:
            record.reason = standing_by(choice)


def _missing(state: JobState, staying: int) -> str:
    """Return why no ring can be formed."""
    if not staying and state.ring.generation:
        saved = state.checkpoints.saved_step
        source = f"the checkpoint of step {saved}" if saved >= 0 else "the initial state"
        return f"all workers are gone; the next one goes on from {source}"
    if state.settings.recovery != "fixed":
        least = state.pipeline.workers_least
        why = "; fewer do not have the memory for the model" if least > state.settings.workers_min else ""
        return too_few(staying, state.workers_needed) + why
    reason = too_few(staying, state.workers_needed, "all")
    if staying >= state.settings.workers_min:
        reason += "; with fixed recovery no fewer train"
    return reason


def _change(state: JobState, choice: Choice) -> str:
    """Describe how the chosen ring differs from the one that trains."""
    before, after = set(state.ring.names()), {member.worker for member in choice.members}
    reasons = [f"{member.worker} joins" for member in choice.members if member.worker not in before]
    for worker in state.ring.names():
        record = state.workers.get(worker)
        if worker in after or record is None:
            continue
        if record.draining:
            reasons.append(f"{worker} drains: {record.drain_reason}")
        elif choice.members:
            reasons.append(f"{worker} stands by: {len(choice.members)} workers are enough")
        else:
            reasons.append(f"fewer than {state.workers_needed} workers are left")
    return "; ".join(dict.fromkeys(reasons)) or "ESTs are spread anew"
