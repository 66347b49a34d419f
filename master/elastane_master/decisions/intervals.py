"""Attribution of random draws by the script's code between two epochs, from all members' reports.

Between two epochs a stock rank runs the script's code with its own generators. A worker runs it once, with
those of its first EST; its other ESTs draw the same number of values, or, if that number cannot be
determined, the job ends with the reason. Before the first step of an epoch every member reports the state of
its generators, and nobody begins the step before this is decided:

  workers that ran the code must agree on what became of ESTs other than EST 0
  EST 0's context is as its host reports; if that host is gone, EST 0 changed as the others did,
  unless the script asked who leads: then EST 0's part is lost with it
  contexts known in full (the code ran once for each EST) stay as they are

A part that is lost with its worker, such as EST 0's when the leader dies in its evaluation, is run again by
going back: to a worker that has not applied the last step before that code yet, or to the newest checkpoint.

The decision is stored with the step's contexts: a repetition of the step starts from the same states. Reports
of workers that are gone remain valid, since the code they describe has run.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from elastane_master.decisions import endings, held_state, life, ring
from elastane_master.decisions.contexts import require_whole
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import IntervalDecided, Member
from elastane_master.decisions.events import Change, IntervalReported, Parts, Rejection
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import JobState
from elastane_master.decisions.steps import IntervalReport
from elastane_proto.history import events as history
from elastane_proto.history.describe import describe

CURE = (
    "`for rank in job.each_rank():` runs the code once for every rank and has stock DDP's bits, whatever is"
    " drawn; `with job.isolated_rng():` keeps what is drawn inside away from the training"
)


class Unattributable(Exception):  # noqa: N818 - an outcome
    """The draws of stock ranks cannot be determined with certainty."""


class PartLost(Exception):  # noqa: N818 - an outcome
    """An EST's draws were lost with the worker that ran it."""


class Attribution(msgspec.Struct, frozen=True):
    """Attributed draws.

    changes: of every EST except those in `contexts`, which are known in full (by rank).
    """

    changes: dict[str, Change]
    contexts: dict[int, Parts]


def attribute(reports: Mapping[str, IntervalReport], ests: int) -> Attribution:
    """Determine how each EST changed, from workers that ran the code. Raises Unattributable, PartLost."""
    if not reports:
        raise PartLost("every worker that ran it is gone")
    for worker, report in reports.items():
        if report.fault:
            raise Unattributable(f"{report.fault} (in {worker})")
    whole: dict[int, Parts] = {}
    for report in reports.values():
        whole |= report.contexts
    led = any(report.as_leader for report in reports.values())
    if not led and any(report.asked for report in reports.values()):
        raise PartLost("the worker that led is gone, and with it what EST 0 alone did")
    if any(report.each_rank for report in reports.values()):
        lost = sorted(set(range(ests)) - set(whole))
        if lost:
            raise PartLost(f"the worker that ran it for EST {lost[0]} is gone")
    return Attribution(_agreed(reports), whole)


def _agreed(reports: Mapping[str, IntervalReport]) -> dict[str, Change]:
    """Return how ESTs other than EST 0 changed; all workers that can tell must agree."""
    sure = {worker: report for worker, report in reports.items() if not report.uncertain}
    if not sure:
        worker, report = next(iter(reports.items()))
        raise Unattributable(f"{report.uncertain} (in {worker})")
    first, *others = sure
    for other in others:
        for name in sorted({*sure[first].changes, *sure[other].changes}):
            one, two = sure[first].changes.get(name, 0), sure[other].changes.get(name, 0)
            if one != two:
                raise Unattributable(
                    f"{name.removeprefix('rng/')}: {_in_words(one)} in {first}, {_in_words(two)} in {other}: "
                    "what is drawn depends on the rank, the data or the generator's state"
                )
    return dict(sure[first].changes)


def _in_words(change: Change) -> str:
    return f"{change} raw draws" if isinstance(change, int) else "another state"


# ------------------------------------------------------------------ the decision


def reported(ctx: DecisionContext, event: IntervalReported) -> None:
    """Handle a member's report before an epoch; after the last one the first step may begin."""
    state, ring_state, steps = ctx.state, ctx.state.ring, ctx.state.steps
    record = ctx.attending(event.worker, event.session)
    if record is None or state.phase != "running" or event.generation < ring_state.generation:
        return
    if steps.catching_up and event.generation == ring_state.generation:
        return  # the steps before it are brought first; then the ring is formed anew, and it reports again
    if event.generation > ring_state.generation or event.step > steps.current:
        raise Rejection(
            "stale",
            f"{event.worker} is before step {event.step} of generation {event.generation},"
            f" the ring at step {steps.current} of {ring_state.generation}",
            hint="this master has not formed that ring; join again",
            generation=ring_state.generation,
        )
    member = ring_state.member(event.worker)
    if member is None or event.step < steps.current:
        return
    if ring_state.stage is not Stage.RUNNING:
        if not ring_state.put_off:
            ring.reform(ctx, f"{event.worker} trains in a ring whose Go the store has forgotten")
        return
    _check_ranks(event, state.settings.ests)
    if endings.goes_on(ctx, event.worker):
        return
    interval = steps.interval(event.step)
    known = interval.here.get(event.worker) == event.generation
    if interval.changes is not None:
        if not known:
            ctx.touch()
            interval.here[event.worker] = event.generation
        ctx.send(event.worker, decided_message(state, member))
        return
    if known:
        return
    ctx.touch()
    interval.here[event.worker] = event.generation
    held_state.proven(state, record, event.step)
    if event.passed:
        contexts = {delta.virtual_rank: delta.parts for delta in event.contexts}
        interval.reports[event.worker] = IntervalReport(
            event.changes,
            contexts,
            event.as_leader,
            event.asked,
            event.uncertain,
            event.fault,
            event.each_rank,
        )
    decide_if_complete(ctx)


def decide_if_complete(ctx: DecisionContext) -> None:
    """Attribute the draws once every member has reported, or end the job."""
    state, ring_state, steps = ctx.state, ctx.state.ring, ctx.state.steps
    interval = steps.intervals.get(steps.current)
    if interval is None or interval.changes is not None or ring_state.stage is not Stage.RUNNING:
        return
    here, generation = interval.here, ring_state.generation
    if state.lagging(lambda record: here.get(record.worker) != generation):
        return
    names = ring_state.names()
    ctx.touch()
    step = steps.current
    try:
        attribution = attribute(interval.reports, state.settings.ests)
    except PartLost as why:
        lost = history.IntervalLost(step, str(why))
        ctx.note(lost)
        del steps.intervals[step]  # everybody runs it again
        held_state.void_from(state, step)
        ring.reform(ctx, describe(lost))
        return
    except Unattributable as why:
        refusal = f"the code between epochs, before step {step}: {why}. {CURE}"
        for worker in names:
            ctx.send(worker, IntervalDecided(ring_state.generation, step, {}, (), refusal))
        life.end(ctx, "failed", refusal)
        return
    interval.changes = attribution.changes
    interval.reports = {}
    interval.whole = set(attribution.contexts)
    contexts = state.contexts.steps[step]
    state.contexts.put(
        step, [{**parts, **attribution.contexts.get(rank, {})} for rank, parts in enumerate(contexts)]
    )
    for worker in names:
        member = ring_state.member(worker)
        assert member is not None
        ctx.send(worker, decided_message(state, member))


def waits(state: JobState, worker: str) -> bool:
    """True if a member has reported while others are still running the code between the epochs."""
    interval = state.steps.intervals.get(state.steps.current)
    return (
        interval is not None
        and interval.changes is None
        and interval.here.get(worker) == state.ring.generation
    )


def decided_message(state: JobState, member: Member) -> IntervalDecided:
    """Build the decision for the ESTs of one member."""
    step = state.steps.current
    interval = state.steps.intervals[step]
    contexts = state.contexts.steps[step]
    hosted = range(member.start, member.end)
    whole = tuple((rank, contexts[rank]) for rank in hosted if rank in interval.whole)
    return IntervalDecided(state.ring.generation, step, interval.changes or {}, whole)


def _check_ranks(event: IntervalReported, ests: int) -> None:
    ranks = [delta.virtual_rank for delta in event.contexts]
    if (
        ranks != sorted(set(ranks))
        or any(rank >= ests for rank in ranks)
        or not all(delta.delta for delta in event.contexts)
    ):
        raise Rejection(
            "invalid_argument",
            f"contexts of virtual ranks {ranks} in a report of the code between epochs",
            hint="report deltas of the hosted ESTs once, in ascending order",
            worker=event.worker,
        )
    require_whole(event.contexts)
