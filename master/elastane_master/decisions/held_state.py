"""Validation of workers' claims to hold the job's weights.

A worker claims "I hold the state after s steps". The claim counts only if it refers to the current history.
History begins, or is rewound, when a leader has Loaded; `history_generation` is the generation of the last
such event. A Hello of an earlier generation refers to an abandoned history, and so does one that names
another history: an older one, whose later rings the store may have lost and numbered again, or one whose
beginning it has lost. A worker whose session continued through a rewind still has the old weights until the
ring sends it the new ones, and its next Ready may name them: that one claim is recorded in `fenced_claims`
and rejected until the worker proves, by a step, that it has the state. A leader whose Load was given up may
have loaded all the same, at an unknown step: all its claims are rejected until then, or until its Ready says
that it holds nothing: what it claims later it received later. A leader of a pipeline that has loaded holds no
units; one that says it holds some has not loaded.

An accepted claim is usable if the contexts of its step are stored.
"""

from __future__ import annotations

from elastane_master.decisions import unit_holders
from elastane_master.decisions.events import UnitRange, WorkerJoined
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import JobState, WorkerRecord

FENCED_MAX = 1000
ANY_STEP = -1
"""Rejects every claim of a worker."""
WITHOUT_UNITS = -2
"""Rejects every claim in which a worker of a pipeline says that it holds no units: it may have loaded."""


def believe_hello(state: JobState, event: WorkerJoined) -> bool:
    """True if a joining worker holds the job's state; a rejected claim is recorded."""
    if not event.holds_state:
        return False
    if event.history_generation not in (0, state.history_generation):
        _fence(state, event.worker, ANY_STEP)
        return False
    if event.generation < state.history_generation:
        _fence(state, event.worker, event.applied_step)
        return False
    return not is_fenced(state, event.worker, event.applied_step)


def is_claim_valid(state: JobState, event: WorkerJoined) -> bool:
    """True if a Hello claims weights of the job's history."""
    return (
        event.holds_state
        and event.history_generation in (0, state.history_generation)
        and event.generation >= state.history_generation
        and not is_fenced(state, event.worker, event.applied_step)
    )


def is_foreign(state: JobState, event: WorkerJoined) -> bool:
    """True if a worker's weights belong to a history that the store has lost."""
    return event.holds_state and event.history_generation > state.history_generation


def is_fenced(state: JobState, worker: str, applied_step: int, *, has_units: bool = False) -> bool:
    """True if a worker's claim to hold the state after `applied_step` steps is recorded as invalid."""
    fence = state.fenced_claims.get(worker)
    return fence in (applied_step, ANY_STEP) or (fence == WITHOUT_UNITS and not has_units)


def believe_ready(
    state: JobState,
    record: WorkerRecord,
    applied_step: int,
    holds_state: bool,
    units: tuple[UnitRange, ...] = (),
) -> None:
    """Update a worker's record with what its Ready says about its weights. units: of a pipeline."""
    fenced = holds_state and is_fenced(state, record.worker, applied_step, has_units=bool(units))
    record.applied_step = applied_step
    record.holds_state = holds_state and not fenced
    record.units = units if record.holds_state else ()
    record.finishes = False
    state.pipeline.absent.pop(record.worker, None)  # it says itself what it holds
    if not fenced:
        state.fenced_claims.pop(record.worker, None)


def proven(state: JobState, record: WorkerRecord, applied_step: int) -> None:
    """Record proof of a worker's state: it took part in a step, or loaded, after `applied_step` steps."""
    record.applied_step = applied_step
    record.holds_state = True
    record.units = unit_holders.proven(state, record.worker)
    record.finishes = False
    state.fenced_claims.pop(record.worker, None)


def rewind(state: JobState, leader: str) -> None:
    """Restart history from what `leader` loaded: all other workers' weights belong to another history."""
    state.history_generation = state.ring.generation
    for record in state.workers.values():
        if record.worker != leader and record.holds_state:
            _disown(state, record)


def go_back(state: JobState) -> None:
    """Continue history after its last complete step; holders of later steps hold another history."""
    state.history_generation = state.ring.generation
    for record in state.workers.values():
        if record.holds_state and record.applied_step > state.steps.whole_until:
            _disown(state, record)


def void(state: JobState) -> None:
    """Invalidate all weights; processes that have trained must be restarted."""
    rewind(state, "")
    state.sentinel.anew_generation = state.ring.generation


def load_given_up(state: JobState) -> None:
    """Invalidate what the leader may have loaded: the ring changes while it loads."""
    if state.ring.stage is Stage.LOADING:
        leader = state.ring.members[0].worker
        _fence(state, leader, WITHOUT_UNITS if state.unit_count else ANY_STEP)
        if leader in state.workers:
            state.workers[leader].holds_state = False


def void_from(state: JobState, step: int) -> None:
    """Invalidate the weights of those that have applied `step` steps or more: history goes back before it."""
    for record in state.workers.values():
        if record.holds_state and record.applied_step >= step:
            _fence(state, record.worker, ANY_STEP)
            record.holds_state = False


def usable_step(state: JobState, record: WorkerRecord) -> int:
    """Return the step at which the job can resume with this worker's weights, -1 if it cannot."""
    if record.holds_state and state.contexts.has(record.applied_step):
        return record.applied_step
    return -1


def _disown(state: JobState, record: WorkerRecord) -> None:
    """Invalidate a worker's weights, whatever its next Ready says if it still applies a step."""
    _fence(state, record.worker, ANY_STEP if record.finishes else record.applied_step)
    record.holds_state = False


def _fence(state: JobState, worker: str, applied_step: int) -> None:
    state.fenced_claims.pop(worker, None)
    state.fenced_claims[worker] = applied_step
    while len(state.fenced_claims) > FENCED_MAX:
        del state.fenced_claims[next(iter(state.fenced_claims))]
