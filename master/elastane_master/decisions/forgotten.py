"""Recovery of acknowledged writes that the store has lost, from the workers.

A store that fsyncs once per second loses its latest acknowledged writes when its host dies; if the master
dies with it, only the workers still have them: each keeps its latest reports, and resends those that the
master does not know (Welcome.reports_from). A Hello or a report that the stored state cannot explain shows
that something was lost:

  a ring, a step or a history newer than the store's --> catching up: the ring is formed anew, all reports
  are `brought` --> all are ready: each step with all N parts from one ring is prepared again -->
  Go from the highest step that the history leads up to

A worker whose part is missing is awaited as long as members are after a restart. If it does not come, the job
goes back to the last complete step, and later steps that any worker holds belong to another history. A gap is
never skipped: a checkpoint of a step that the history does not lead up to is not loaded either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from elastane_master.decisions import cost, held_state
from elastane_master.decisions.contexts import require_ranks
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import ContextDelta, Rejection, StepReported, WorkerJoined
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import JobState
from elastane_master.decisions.steps import Brought, PreparedStep
from elastane_proto.history import events as history

GENERATIONS_AHEAD_MAX = 1000
"""A worker that knows a ring this much newer than the store's does not belong to this job."""
STEPS_AHEAD_MAX = 100_000
"""Upper bound for lost steps; a larger difference cannot come from a store's data loss."""


def require_known(state: JobState, event: WorkerJoined) -> None:
    """Raise Rejection for a Hello from a generation too new for the store to have lost it."""
    known = state.ring.generation
    if event.generation > known + GENERATIONS_AHEAD_MAX:
        raise Rejection(
            "invalid_argument",
            f"{event.worker} reports generation {event.generation}, the ring is at {known}",
            hint="the worker may belong to another job of the same name",
            generation=known,
        )


def notice(ctx: DecisionContext, event: WorkerJoined) -> None:
    """Start catching up if a ring worker's Hello shows that the store has lost something.

    The number of a lost ring must not be reused, or messages of that ring would be taken for those of the new
    one.
    """
    state, ring = ctx.state, ctx.state.ring
    known, whole = ring.generation, state.steps.whole_until
    if event.generation > known:
        begin(
            ctx,
            f"{event.worker} knows of generation {event.generation}, the store only of {known}",
            event.worker,
        )
        if ring.stage is Stage.RUNNING:
            cost.dropped(state, ctx.now)  # the store says that it trains; its members know that it is over
        ring.generation = event.generation + 1
    elif held_state.is_foreign(state, event):
        began = event.history_generation
        begin(
            ctx,
            f"{event.worker} holds a history that began in generation {began}, the store knows none",
            event.worker,
        )
    elif (
        event.holds_state
        and event.history_generation == state.history_generation
        and event.applied_step > whole
    ):
        why = f"{event.worker} has applied {event.applied_step} steps, the store knows of {whole}"
        begin(ctx, why, event.worker)


def begin(ctx: DecisionContext, why: str, worker: str) -> None:
    """Start catching up: from now on reports are collected as brought, until the ring starts."""
    state, steps = ctx.state, ctx.state.steps
    ctx.touch()
    if not steps.catching_up:
        ctx.note(history.StoreBehind(worker, why))
        steps.catching_up = True
        for reporter, report in steps.reports.items():
            contexts = tuple(ContextDelta(rank, parts, False) for rank, parts in report.contexts.items())
            part = Brought(reporter, state.ring.generation, report.epoch, contexts, report.tasks)
            steps.brought.setdefault(steps.current, []).append(part)
    steps.catch_up_until = ctx.now + state.settings.return_grace_seconds
    if state.ring.stage is not Stage.NONE:
        state.ring.put_off = state.ring.put_off or why


def bring(ctx: DecisionContext, event: StepReported) -> None:
    """Handle a resent report of a step that the store does not know, after `require_bringable`."""
    steps = ctx.state.steps
    if not _is_unknown(ctx.state, event):
        return
    ctx.touch()
    part = Brought(event.worker, event.generation, event.epoch, event.contexts, event.tasks)
    same = (part.worker, part.generation)
    others = [one for one in steps.brought.get(event.step, ()) if (one.worker, one.generation) != same]
    steps.brought[event.step] = [*others, part]


def _is_unknown(state: JobState, event: StepReported) -> bool:
    return event.step >= state.steps.whole_until and event.generation >= state.history_generation


def require_bringable(state: JobState, event: StepReported) -> None:
    """Raise Rejection for a resent report that cannot be part of the history."""
    if not _is_unknown(state, event):
        return
    total, whole = state.total_steps, state.steps.whole_until
    if event.step >= (total or whole + STEPS_AHEAD_MAX) or event.generation > state.ring.generation:
        raise Rejection(
            "invalid_argument",
            f"{event.worker} brings step {event.step} of generation {event.generation}",
            step=event.step,
        )
    ranks = [task.virtual_rank for task in event.tasks]
    start = ranks[0] if ranks else 0
    require_ranks(event.contexts, start, start + max(1, len(ranks)), worker=event.worker)
    if ranks != list(range(start, start + len(ranks))) or start + len(ranks) > state.settings.ests:
        raise Rejection("invalid_argument", f"{event.worker} brings tasks of virtual ranks {ranks}")


def restore(ctx: DecisionContext) -> None:
    """Prepare again, in order, the steps for which all parts were brought."""
    state, steps = ctx.state, ctx.state.steps
    first = step = steps.whole_until
    least = state.history_generation
    if step - 1 in steps.prepared_steps:
        least = max(least, steps.prepared_steps[step - 1].generation)
    bringers: set[str] = set()
    while state.contexts.has(step):
        parts = _whole(steps.brought.get(step, ()), state.settings.ests, least)
        if not parts:
            break
        try:
            after = state.contexts.after(step, (delta for part in parts for delta in part.contexts))
        except Rejection:  # relative to another context than the stored one: the step is incomplete
            break
        least = parts[0].generation
        state.contexts.put(step + 1, [after[rank] for rank in sorted(after)])
        tasks = tuple((part.worker, task) for part in parts for task in part.tasks)
        steps.prepared_steps[step] = PreparedStep(parts[0].epoch, least, tasks)
        steps.brought.pop(step)
        bringers.update(part.worker for part in parts)
        step += 1
    if step > first:
        ctx.touch()
        ctx.note(history.HistoryRestored(first, step, tuple(sorted(bringers))))


def waits(ctx: DecisionContext) -> bool:
    """True if a worker is ahead of the history, and the missing parts may still be brought."""
    steps = ctx.state.steps
    return steps.catch_up_until is not None and ctx.now < steps.catch_up_until and any(_ahead(ctx.state))


def expire(ctx: DecisionContext) -> bool:
    """End the wait for missing parts; True if there was one."""
    steps = ctx.state.steps
    if steps.catch_up_until is None or ctx.now < steps.catch_up_until:
        return False
    ctx.touch()
    steps.catch_up_until = None
    return True


def give_up(ctx: DecisionContext) -> None:
    """Continue without the steps that the store lost and nobody brought."""
    state = ctx.state
    step, held = state.steps.whole_until, max(_ahead(state), default=0)
    if held:
        ctx.note(history.HistoryForgotten(held, step, _missing(state)))
        held_state.go_back(state)


def loadable_until(state: JobState) -> int | None:
    """Newest step that a loaded checkpoint may have; None if history begins with what is loaded."""
    begun = state.history_generation > 0 or state.steps.catching_up
    return state.steps.whole_until if begun else None


def _whole(brought: Iterable[Brought], ests: int, least: int) -> list[Brought]:
    """Return the parts of all N ranks from the newest ring that has all of them; empty if there is none."""
    rings: dict[int, list[Brought]] = {}
    for part in brought:
        if part.generation >= least:
            rings.setdefault(part.generation, []).append(part)
    for _, parts in sorted(rings.items(), reverse=True):
        parts.sort(key=lambda part: part.tasks[0].virtual_rank)
        if [task.virtual_rank for part in parts for task in part.tasks] == list(range(ests)):
            return parts
    return []


def _ahead(state: JobState) -> Iterator[int]:
    """Yield the steps of workers that are ahead of the known part of this history."""
    for record in state.ring_workers():
        if record.holds_state and record.applied_step > state.steps.whole_until:
            yield record.applied_step


def _missing(state: JobState) -> str:
    """Describe the missing parts of the first unknown step."""
    step = state.steps.whole_until
    there = {task.virtual_rank for part in state.steps.brought.get(step, ()) for task in part.tasks}
    missing = [rank for rank in range(state.settings.ests) if rank not in there]
    return (
        f"nobody brought step {step} of virtual ranks {missing}" if missing else f"step {step} is not whole"
    )
