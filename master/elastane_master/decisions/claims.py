"""Whose weights are believed to be the job's.

A worker says "I hold the state after s steps". That is worth something only if it speaks of the
history that stands. History is begun or rewound when a leader has Loaded; `history_generation` is
the generation in which that happened last. A Hello of an earlier generation speaks of a history
that is over, and so does one that names another history: an older one, whose later rings the store may
have forgotten and numbered anew, or one whose beginning it has forgotten. A worker that attended
through the rewinding still has the old weights until the ring hands it the new ones, and its next Ready
may name them: that one claim is remembered in `fenced_claims` and not believed until the worker shows,
by a step, that it has the state. A leader whose Load was given up may have loaded all the same, and
nobody knows which step: no claim of its is believed until then.

A believed claim is usable when the contexts of that step are there.
"""

from __future__ import annotations

from elastane_master.decisions.events import WorkerJoined
from elastane_master.decisions.state import JobState, WorkerRecord

FENCED_MAX = 1000
ANY_STEP = -1
"""Fences every claim of a worker."""


def believe_hello(state: JobState, event: WorkerJoined) -> bool:
    """Whether a joining worker holds the job's state; a claim that is not believed is remembered."""
    if not event.holds_state:
        return False
    if event.history_generation not in (0, state.history_generation):
        _fence(state, event.worker, ANY_STEP)
        return False
    if event.generation < state.history_generation:
        _fence(state, event.worker, event.applied_step)
        return False
    return not is_fenced(state, event.worker, event.applied_step)


def is_foreign(state: JobState, event: WorkerJoined) -> bool:
    """Whether a worker's weights are of a history that the store has forgotten."""
    return event.holds_state and event.history_generation > state.history_generation


def is_fenced(state: JobState, worker: str, applied_step: int) -> bool:
    """Whether a worker's claim to hold the state after `applied_step` steps is known to be void."""
    return state.fenced_claims.get(worker) in (applied_step, ANY_STEP)


def believe_ready(state: JobState, record: WorkerRecord, applied_step: int, holds_state: bool) -> None:
    """Takes over what a Ready says of the worker's weights."""
    fenced = is_fenced(state, record.worker, applied_step)
    record.applied_step = applied_step
    record.holds_state = holds_state and not fenced
    if not fenced:
        state.fenced_claims.pop(record.worker, None)


def proven(state: JobState, record: WorkerRecord, applied_step: int) -> None:
    """The worker took part in a step, or loaded: it holds the state after `applied_step` steps."""
    record.applied_step = applied_step
    record.holds_state = True
    state.fenced_claims.pop(record.worker, None)


def rewind(state: JobState, leader: str) -> None:
    """History goes on from what `leader` loaded: what anybody else holds is of another history."""
    state.history_generation = state.ring.generation
    for record in state.workers.values():
        if record.worker != leader and record.holds_state:
            _fence(state, record.worker, record.applied_step)
            record.holds_state = False


def go_back(state: JobState) -> None:
    """History goes on from what is whole of it; who holds later steps holds another history."""
    state.history_generation = state.ring.generation
    for record in state.workers.values():
        if record.holds_state and record.applied_step > state.steps.whole_until:
            _fence(state, record.worker, record.applied_step)
            record.holds_state = False


def void(state: JobState) -> None:
    """Nobody's weights are the job's any more, and no process that has trained may go on."""
    rewind(state, "")
    state.sentinel.anew_generation = state.ring.generation


def load_given_up(state: JobState) -> None:
    """The ring changes while its leader loads: what it has loaded is not the job's."""
    if state.ring.stage == "loading":
        leader = state.ring.members[0].worker
        _fence(state, leader, ANY_STEP)
        if leader in state.workers:
            state.workers[leader].holds_state = False


def void_all(state: JobState) -> None:
    """What anybody holds cannot be gone on from: history will be rewound."""
    for record in state.workers.values():
        if record.holds_state:
            _fence(state, record.worker, ANY_STEP)
            record.holds_state = False


def usable_step(state: JobState, record: WorkerRecord) -> int:
    """The step the job can resume at with this worker's weights, -1 if it cannot."""
    if record.holds_state and state.contexts.has(record.applied_step):
        return record.applied_step
    return -1


def _fence(state: JobState, worker: str, applied_step: int) -> None:
    state.fenced_claims.pop(worker, None)
    state.fenced_claims[worker] = applied_step
    while len(state.fenced_claims) > FENCED_MAX:
        del state.fenced_claims[next(iter(state.fenced_claims))]
