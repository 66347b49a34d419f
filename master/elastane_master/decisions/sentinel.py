"""Detection of broken hardware: two workers that run the same step of the same EST must get the same bits.

  every K steps   two members report the digest of one EST's gradients: its host, which computes them
                  anyway, and another member, which runs that EST's turn in addition to its own
  both agree      both are clean as of this step
  they differ     the step is not applied; it is run again, and a third member runs the EST's turn too
      two of three    agree: the third is faulty. It is evicted permanently, and history goes back to a
                    checkpoint from before its first possible fault (verdicts.py)
  no third        the job is suspended, and both are named

The host role rotates: it goes to the member whose own turn has not been compared for longest, so with P
members a worker that computes wrongly from some step on is found within K * P steps. The other role goes to
the member of which nothing has been compared for longest. Wrong results in unchecked steps are not found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from elastane_master.decisions.effects import CheckOrder, Doubt, Member
from elastane_master.decisions.state import Check, JobState

VOTERS_MAX = 3
"""Three workers with three different results: no single worker can be blamed."""
KEPT_MAX = 10_000
"""Limit of remembered worker ids, exceeded only by current members."""


def is_due(step: int, every: int, epoch_steps: int) -> bool:
    """True if `step` is checked. every: K, 0: never. epoch_steps: steps of an epoch, 0 if unknown.

    The contexts of an epoch's first step are known only once the script's code between the epochs has run
    everywhere (intervals.py): a check due there is postponed to the next step.
    """
    if every <= 0 or step <= 0:
        return False
    if epoch_steps <= 0:
        return step % every == 0
    put_off = step > 1 and (step - 1) % every == 0 and (step - 1) % epoch_steps == 0
    return step % epoch_steps != 0 and (step % every == 0 or put_off)


def choose(
    members: Sequence[Member], step: int, every: int, hosted: Mapping[str, int], clean: Mapping[str, int]
) -> Check | None:
    """Choose the checked EST and its two workers for a due `step`; None if there are fewer than two members.

    A member's ESTs are taken in rotation.
    """
    count = len(members)
    if count < 2:
        return None
    host = min(range(count), key=lambda place: (hosted.get(members[place].worker, -1), place))
    others = [(host + distance) % count for distance in range(1, count)]
    other = min(others, key=lambda place: clean.get(members[place].worker, -1))
    ests = members[host].end - members[host].start
    rank = members[host].start + step // every // count % ests
    return Check(step, rank, (members[host].worker, members[other].worker))


def faulty(votes: Mapping[str, str]) -> tuple[str, ...] | None:
    """Workers that differ from the result shared by at least two; None if no single result prevails."""
    counts = Counter(votes.values()).most_common(2)
    (result, supporters), *others = counts
    if supporters < 2 or (others and others[0][1] == supporters):
        return None
    return tuple(worker for worker, vote in votes.items() if vote != result)


# ------------------------------------------------------------------ the check of the current step


def _forget_oldest(state: JobState) -> None:
    """Limit the memory: workers that are gone are dropped, oldest first."""
    book, members = state.sentinel, state.ring.names()
    for steps in (book.clean, book.hosted, book.faulty):
        for worker in [worker for worker in steps if worker not in members][: max(0, len(steps) - KEPT_MAX)]:
            del steps[worker]


def ring_goes(state: JobState) -> None:
    """Adapt to a ring's resume step: later results found clean are no longer part of the history."""
    book, ring = state.sentinel, state.ring
    if not state.settings.sentinel_steps:
        return
    before = ring.resume_step - 1
    for steps in (book.clean, book.hosted):
        steps.update({worker: min(step, before) for worker, step in steps.items()})
    for member in ring.members:
        book.clean.setdefault(member.worker, before)  # it cannot have affected steps in which it took no part
    _forget_oldest(state)
    if book.check is not None and not (book.check.disputed and book.check.step == ring.resume_step):
        book.check = None
    if book.check is None:
        step_begins(state, ring.resume_step)
    else:
        voter = next((name for name in ring.names() if name not in book.check.votes), None)
        book.check.workers = (voter,) if voter is not None else ()


def step_begins(state: JobState, step: int) -> None:
    """Choose the check of `step`, which the members begin."""
    book, every = state.sentinel, state.settings.sentinel_steps
    if not every:
        return
    epoch_steps = state.signature.steps_per_epoch if state.signature else 0
    is_one = not state.total_steps or step < state.total_steps
    members = [member for member in state.ring.members if member.worker not in state.ring.gone]
    due = is_one and is_due(step, every, epoch_steps)
    book.check = choose(members, step, every, book.hosted, book.clean) if due else None


def will_check(state: JobState, step: int) -> bool:
    """True if a check of `step` is due, and its members need the order when they begin it."""
    epoch_steps = state.signature.steps_per_epoch if state.signature else 0
    return is_due(step, state.settings.sentinel_steps, epoch_steps)


def order_for(state: JobState, member: Member | None, step: int) -> CheckOrder | None:
    """Return a member's order for the check in `step`, or None."""
    check = state.sentinel.check
    if check is None or member is None or check.step != step or member.worker not in check.workers:
        return None
    hosts = member.start <= check.rank < member.end
    parts = None if hosts else state.contexts.ranks(step, check.rank, check.rank + 1)[0][1]
    return CheckOrder(step, check.rank, parts)


def owes(state: JobState, worker: str) -> bool:
    """True if a worker's digest for the check in the current step is missing."""
    check = state.sentinel.check
    return (
        check is not None
        and check.step == state.steps.current
        and worker in check.workers
        and worker not in check.votes
    )


def holds(state: JobState) -> bool:
    """True if the current step must not be applied yet: its check is open, or in dispute."""
    check = state.sentinel.check
    return check is not None and check.step == state.steps.current and (check.open or check.disputed)


def undecidable(state: JobState) -> bool:
    """True if the dispute cannot be resolved: no worker is left that could decide it."""
    check = state.sentinel.check
    if check is None or not check.disputed:
        return False
    return len(check.votes) >= VOTERS_MAX or all(worker in check.votes for worker in state.ring.names())


# ------------------------------------------------------------------ what came of it


def agreed(state: JobState, check: Check) -> None:
    """All digests agree: mark their workers as clean as of this step."""
    book = state.sentinel
    book.clean.update(dict.fromkeys(check.votes, check.step))
    for worker in check.votes:
        member = state.ring.member(worker)
        if member is not None and member.start <= check.rank < member.end:
            book.hosted[worker] = check.step
    book.check = None


def clean_until(state: JobState, workers: Sequence[str]) -> int:
    """Return the first step that one of these workers may have corrupted."""
    return min((state.sentinel.clean.get(worker, -1) for worker in workers), default=-1) + 1


def doubt(state: JobState, workers: Sequence[str]) -> int:
    """Mark everything these workers computed since last clean as suspect; return the first such step."""
    step = clean_until(state, workers)
    older = tuple(kept for kept in state.sentinel.doubts if kept.step_max < step)
    state.sentinel.doubts = (*older, Doubt(step, state.ring.generation))
    book = state.checkpoints
    book.saved = tuple(saved for saved in book.saved if saved.step <= step)
    book.saved_step = book.saved[-1].step if book.saved else -1
    state.sentinel.check = None
    return step


def condemn(state: JobState, worker: str, step: int) -> None:
    """Record that a worker was found faulty in `step`."""
    state.sentinel.faulty[worker] = step


def checkpoints_kept(state: JobState) -> int:
    """Number of checkpoints to keep: those that history might go back to are never removed."""
    keep = state.settings.checkpoint_keep
    if not state.settings.sentinel_steps:
        return keep
    proven = clean_until(state, state.ring.names())
    in_doubt = sum(1 for saved in state.checkpoints.saved if saved.step > proven)
    return max(keep, in_doubt + 2)  # the one being written, those not yet proven good, and one that is
