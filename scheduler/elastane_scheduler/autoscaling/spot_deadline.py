"""A job with a deadline on machines that may be taken away (spot), and on others that may not. Pure.

The number of logical workers is fixed, so a wider ring costs no accuracy: it banks progress while spot is
there. `WideSpot` therefore takes spot at the widest rung whenever it is there, and on-demand machines only
when the deadline can be met no other way:

    time left <= steps left x T(widest rung on demand) + 2 cold starts + one poll

One cold start is what on-demand machines need; the second is what a loss of spot costs while they fill up
beside it; the poll is how late a decision may be. On demand it stays to the end: leaving makes jobs late.

`UniformProgress` is the baseline (Wu et al., Can't be late, NSDI 2024, section 5): a fixed number of workers,
which goes on demand whenever progress is behind the straight line from start to deadline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from elastane_scheduler.amounts import check_amount
from elastane_scheduler.errors import InvalidSettings

COLD_STARTS: Final = 2
"""Cold starts that the last moment to go on demand leaves time for."""


class SpotRung(msgspec.Struct, frozen=True):
    """A worthwhile number of workers, and the seconds of a step with it."""

    workers: int
    step_seconds: float


class SpotMemory(msgspec.Struct, frozen=True):
    """State of a policy between decisions; stored with the job.

    now_seconds: the latest time that was seen; a clock that steps back does not move it.
    began_seconds: of the first decision; None: there was none. steps_at_start: left at the first decision.
    for_good: on demand to the end. on_demand: target of the last decision. full: no spot counts any more.
    """

    now_seconds: float = 0.0
    began_seconds: float | None = None
    steps_at_start: int = 0
    for_good: bool = False
    full: bool = False
    on_demand: int = 0


class SpotView(msgspec.Struct, frozen=True):
    """Inputs of a decision.

    now_seconds, deadline_seconds: of one clock. steps_left: of the whole job. rungs: numbers of workers that
    pay, within the job's bounds; none: no step was measured yet. spot_workers, on_demand_workers: that there
    are, starting ones included; on_demand_ready: those that have joined. spot_offered: workers on spot that
    could be had, with those that there are; None: unknown, it shows only when they are asked for.
    on_demand_max: workers that may be on demand. cold_start_seconds: from asking for a machine until its
    worker trains. poll_seconds: between two decisions, at most.
    """

    now_seconds: float
    deadline_seconds: float
    steps_left: int
    rungs: tuple[SpotRung, ...]
    spot_workers: int
    on_demand_workers: int
    on_demand_ready: int
    on_demand_max: int
    cold_start_seconds: float
    poll_seconds: float
    spot_offered: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidSettings for amounts and counts out of range."""
        for name, value in (
            ("the present time", self.now_seconds),
            ("the deadline", self.deadline_seconds),
            ("a cold start", self.cold_start_seconds),
            ("the time between decisions", self.poll_seconds),
        ):
            check_amount(name, value)
        counts = (self.steps_left, self.spot_workers, self.on_demand_workers, self.on_demand_ready)
        if min(*counts, self.on_demand_max, self.spot_offered or 0) < 0:
            raise InvalidSettings("a count of steps or workers is negative", hint="Give 0 or more.")
        for rung in self.rungs:
            check_amount("the time of a step", rung.step_seconds, positive=True)
            if rung.workers < 1:
                raise InvalidSettings(f"a rung of {rung.workers} workers", hint="Give 1 or more.")


class SpotDecision(msgspec.Struct, frozen=True):
    """How many workers the job should have on spot and on demand.

    Surplus workers are released when the targets are met by workers that have joined. memory: for the next
    decision. finish_seconds: the earliest end, at the widest rung on demand; None: unknown. late: that is
    after the deadline.
    """

    spot_target: int
    on_demand_target: int
    reason: str
    memory: SpotMemory
    finish_seconds: float | None = None
    late: bool = False


class SpotPolicy(Protocol):
    """Decides at least every `poll_seconds`. Never raises: an invalid SpotView cannot be created."""

    @property
    def name(self) -> str:
        """Name of the policy, as users write it."""

    def decide(self, view: SpotView, memory: SpotMemory) -> SpotDecision:
        """Return the targets, and the memory to pass to the next call."""


class WideSpot:
    """Spot at the widest rung while it is there; on demand at the last moment, to the end. See above."""

    name: Final = "wide-spot"

    def decide(self, view: SpotView, memory: SpotMemory) -> SpotDecision:
        """See SpotPolicy."""
        memory = _seen(view, memory)
        best = _fastest(view.rungs, math.inf)
        sure = _fastest(view.rungs, view.on_demand_max)
        if best is None:
            return _unmeasured(view, memory)
        if view.steps_left == 0:
            return _keep(view, memory, "no steps are left")
        left = view.deadline_seconds - memory.now_seconds
        if sure is None:
            late = left < view.steps_left * best.step_seconds
            workers = _widest(view.rungs, _offered(view, best))
            fewest = min(rung.workers for rung in view.rungs)
            few = f"only {view.on_demand_max} may be on demand, and {fewest} are the fewest that train"
            return SpotDecision(
                workers,
                0,
                f"{few if view.on_demand_max else 'no worker may be on demand'}: spot at the widest rung",
                memory,
                memory.now_seconds + view.steps_left * best.step_seconds,
                late,
            )
        needed = view.steps_left * sure.step_seconds
        slack = left - needed
        ready = view.on_demand_ready >= sure.workers
        finish = memory.now_seconds + needed + (0.0 if ready else view.cold_start_seconds)
        late = finish > view.deadline_seconds
        if not memory.for_good and slack > COLD_STARTS * view.cold_start_seconds + view.poll_seconds:
            workers = _widest(view.rungs, _offered(view, best))
            spare = slack - COLD_STARTS * view.cold_start_seconds - view.poll_seconds
            reason = f"spot at the widest rung; on demand in {spare:.0f} s unless it makes progress"
            return SpotDecision(workers, 0, reason, memory, finish, late)
        # Once another loss of spot could not be made good, spot counts no more.
        full = memory.full or slack < view.cold_start_seconds + view.poll_seconds
        there = view.spot_workers if view.spot_offered is None else view.spot_offered
        total = _widest(view.rungs, min(best.workers, there + view.on_demand_max))
        wanted = sure.workers if full else max(0, total - there)
        on_demand = min(max(memory.on_demand, wanted), view.on_demand_max)
        spot = _beside(view, on_demand, best.workers)
        memory = msgspec.structs.replace(memory, for_good=True, full=full, on_demand=on_demand)
        return SpotDecision(
            spot, on_demand, _last_moment(view, sure, left, late, finish), memory, finish, late
        )


class UniformProgress:
    """The baseline: `workers` workers, on demand while progress is behind the line. See the module."""

    name: Final = "uniform-progress"

    def __init__(self, workers: int) -> None:
        """workers: of which all are on spot, all on demand, or none there."""
        if workers < 1:
            raise InvalidSettings(f"uniform progress with {workers} workers", hint="Give 1 or more.")
        self.workers = workers

    def decide(self, view: SpotView, memory: SpotMemory) -> SpotDecision:
        """See SpotPolicy."""
        memory = _seen(view, memory)
        rung = _fastest(view.rungs, self.workers)
        if rung is None:
            return _unmeasured(view, memory)
        if view.steps_left == 0:
            return _keep(view, memory, "no steps are left")
        workers = self.workers
        on_demand = workers if view.on_demand_max >= workers else 0
        left = view.deadline_seconds - memory.now_seconds
        needed = view.steps_left * rung.step_seconds
        finish = memory.now_seconds + needed
        late = finish > view.deadline_seconds
        offered = view.spot_offered if view.spot_offered is not None else view.spot_workers
        there = offered >= workers
        asked = workers if there or view.spot_offered is None else 0

        def decided(spot: int, on_demand: int, reason: str, for_good: bool = False) -> SpotDecision:
            kept = msgspec.structs.replace(memory, on_demand=on_demand, for_good=for_good)
            return SpotDecision(spot, on_demand, reason, kept, finish, late)

        if memory.for_good or needed + COLD_STARTS * view.cold_start_seconds >= left:
            return decided(0, on_demand, "the last moment: on demand to the end", True)
        if there:
            return decided(workers, 0, "spot is there")
        if memory.on_demand:
            ahead = _behind(view, memory, COLD_STARTS * view.cold_start_seconds) <= 0
            if not ahead:
                return decided(asked, on_demand, "on demand until progress is two cold starts ahead")
        elif _behind(view, memory, 0.0) > 0:
            return decided(asked, on_demand, "behind the line: on demand")
        return decided(asked, 0, "no spot, and progress is on the line")


def _seen(view: SpotView, memory: SpotMemory) -> SpotMemory:
    """Return the memory with the time of the decision, which never goes back."""
    now = max(view.now_seconds, memory.now_seconds)
    began = now if memory.began_seconds is None else memory.began_seconds
    steps = memory.steps_at_start or view.steps_left  # unknown until a script has said them
    return msgspec.structs.replace(memory, now_seconds=now, began_seconds=began, steps_at_start=steps)


def _fastest(rungs: Sequence[SpotRung], workers_max: float) -> SpotRung | None:
    """Return the rung with the shortest step: of equally fast ones the narrowest."""
    found = [rung for rung in rungs if rung.workers <= workers_max]
    return min(found, key=lambda rung: (rung.step_seconds, rung.workers), default=None)


def _widest(rungs: Sequence[SpotRung], workers: int) -> int:
    """Return the workers of the fastest rung that this many workers reach; 0: they reach none."""
    rung = _fastest(rungs, workers)
    return rung.workers if rung else 0


def _offered(view: SpotView, best: SpotRung) -> int:
    return best.workers if view.spot_offered is None else view.spot_offered


def _beside(view: SpotView, on_demand: int, workers: int) -> int:
    """Return how many spot workers to have beside this many on demand: the missing ones, and until those on
    demand are ready, the present ones."""
    offered = workers if view.spot_offered is None else view.spot_offered
    reached = _widest(view.rungs, min(workers, on_demand + offered))
    missing = max(0, reached - on_demand)
    return min(offered, max(missing, min(view.spot_workers, workers - min(view.on_demand_ready, workers))))


def _behind(view: SpotView, memory: SpotMemory, ahead_seconds: float) -> float:
    """Return the steps by which the job is behind the line from start to deadline, as of a later time."""
    began = memory.now_seconds if memory.began_seconds is None else memory.began_seconds
    span = view.deadline_seconds - began
    if span <= 0:
        return math.inf
    due = memory.steps_at_start * (memory.now_seconds + ahead_seconds - began) / span
    return due - (memory.steps_at_start - view.steps_left)


def _unmeasured(view: SpotView, memory: SpotMemory) -> SpotDecision:
    """No speed is known, so no last moment either: one worker on demand finds it, unless spot comes."""
    offered = view.spot_workers if view.spot_offered is None else view.spot_offered
    began = memory.now_seconds if memory.began_seconds is None else memory.began_seconds
    waited = memory.now_seconds - began >= view.cold_start_seconds + view.poll_seconds
    lone = 1 if offered == 0 and waited and view.on_demand_max else 0
    spot = offered if view.spot_offered is not None else max(1, view.spot_workers)
    where = "one worker on demand measures it" if lone else "spot measures it"
    late = memory.now_seconds >= view.deadline_seconds
    past = "the deadline is past; " if late else ""
    return SpotDecision(spot, lone, f"{past}no step was measured yet: {where}", memory, late=late)


def _keep(view: SpotView, memory: SpotMemory, reason: str) -> SpotDecision:
    return SpotDecision(view.spot_workers, view.on_demand_workers, reason, memory, memory.now_seconds)


def _last_moment(view: SpotView, sure: SpotRung, left: float, late: bool, finish: float) -> str:
    if late:
        earliest = f"{finish - view.deadline_seconds:.0f} s after it at the earliest"
        return f"the deadline is out of reach ({earliest}): on demand to the end"
    return (
        f"the last moment ({left:.0f} s left for {view.steps_left} steps of {sure.step_seconds:.3g} s): "
        "on demand to the end"
    )
