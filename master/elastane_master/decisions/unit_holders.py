"""Holders of a pipeline's units, and the sources from which a ring's members get them.

A worker holds weights and optimizer state of its stages' units, after the steps that it has applied. Each
Ready lists them; between two Readys they follow from the plan of its ring, once a step there has proven that
it has its state. All members of a ring are at the same step (see `prepared_until` in ring.proto), so a
unit is lost only with its last holder: then all go back to a checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from elastane_master.decisions.effects import PipelinePlan, UnitSource
from elastane_master.decisions.events import Rejection, UnitRange
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import JobState, WorkerRecord


def units_in(ranges: Iterable[UnitRange]) -> Iterator[int]:
    """Yield the units of some ranges."""
    for units in ranges:
        yield from range(units.first_unit, units.end_unit)


def ranges_of(units: Iterable[int]) -> tuple[UnitRange, ...]:
    """Return units as ranges, in order."""
    found: list[UnitRange] = []
    for unit in sorted(set(units)):
        if found and found[-1].end_unit == unit:
            found[-1] = UnitRange(found[-1].first_unit, unit + 1)
        else:
            found.append(UnitRange(unit, unit + 1))
    return tuple(found)


def units_text(ranges: Sequence[UnitRange]) -> str:
    """Return ranges of units in words: "unit 3", "units 0 to 4 and 7"."""
    texts = [
        f"{units.first_unit} to {units.end_unit - 1}"
        if units.end_unit > units.first_unit + 1
        else str(units.first_unit)
        for units in ranges
    ]
    is_one = len(ranges) == 1 and ranges[0].end_unit == ranges[0].first_unit + 1
    return f"{'unit' if is_one else 'units'} {', '.join(texts[:-1])}{' and ' if texts[1:] else ''}{texts[-1]}"


def require_units(state: JobState, ranges: Sequence[UnitRange], worker: str) -> None:
    """Raise Rejection if a worker claims units that the model does not have."""
    for units in ranges:
        if not 0 <= units.first_unit < units.end_unit <= state.unit_count:
            raise Rejection(
                "invalid_argument",
                f"{worker} holds units {units.first_unit} to {units.end_unit - 1} of {state.unit_count}",
                worker=worker,
                units=state.unit_count,
            )


def planned(plan: PipelinePlan | None, place: int) -> tuple[UnitRange, ...]:
    """Return the units that the plan assigns to the member at a place of the ring."""
    if plan is None:
        return ()
    return ranges_of(
        unit
        for stage in plan.stages
        if place in stage.replicas or place in stage.shadows
        for unit in range(stage.first_unit, stage.end_unit)
    )


def proven(state: JobState, worker: str) -> tuple[UnitRange, ...]:
    """Return the units of a worker that has just proven that it has its state: those of its ring's plan."""
    ring = state.ring
    if ring.stage is not Stage.RUNNING or ring.plan is None or ring.member(worker) is None:
        return ()
    place = next(place for place, member in enumerate(ring.members) if member.worker == worker)
    return planned(ring.plan, place)


def held_soon(state: JobState) -> dict[str, tuple[UnitRange, ...]]:
    """Return by worker the units that it will hold at the step at which the next ring can resume.

    That is the highest step at which connected workers hold all units.
    """
    if not state.unit_count:
        return {}
    steps = {record.worker: step_soon(state, record) for record in state.ring_workers()}
    held: dict[int, set[int]] = {}
    for record in state.ring_workers():
        if steps[record.worker] >= 0:
            held.setdefault(steps[record.worker], set()).update(units_in(record.units))
    whole = [step for step, units in held.items() if len(units) == state.unit_count]
    best = max(whole or held, default=-1)
    return {
        record.worker: record.units if steps[record.worker] == best >= 0 else ()
        for record in state.ring_workers()
    }


def step_soon(state: JobState, record: WorkerRecord) -> int:
    """Return the step at which a worker will send Ready, -1 if it holds no usable state.

    Members of the last ring may be a step behind, which they apply before they send Ready; so may a
    worker that has returned.
    """
    ring, step = state.ring, state.steps.current
    if not record.holds_state:
        return -1
    is_running = ring.stage is Stage.RUNNING
    trained = ring.names() if is_running else ring.finishing
    has_answered = not is_running and record.ready_generation == ring.generation
    applies = record.worker in trained or record.finishes
    if applies and not has_answered and record.applied_step == step - 1:
        return step
    return record.applied_step if state.contexts.has(record.applied_step) else -1


def missing(state: JobState, step: int) -> tuple[UnitRange, ...]:
    """Return the units that no member of the ring holds after `step` steps."""
    return ranges_of(set(range(state.unit_count)) - _held(state.active_members(), step))


def lost_without(state: JobState, workers: Collection[str]) -> tuple[UnitRange, ...]:
    """Return the units that are held now, but by none of these workers."""
    held = held_soon(state)
    now = {unit for units in held.values() for unit in units_in(units)}
    kept = {unit for worker in workers for unit in units_in(held.get(worker, ()))}
    return ranges_of(now - kept)


def unasked(state: JobState) -> list[WorkerRecord]:
    """Return workers that claim to hold the state, but have not been asked for their units yet.

    Empty for a job without pipeline.
    """
    generation = state.ring.generation
    if not state.unit_count:
        return []
    return [
        record
        for record in state.ring_workers()
        if record.holds_state and record.asked_generation != generation and not record.drain_sent
    ]


def sources(state: JobState, step: int) -> tuple[UnitSource, ...]:
    """Return for each unit which members of the ring hold it after `step` steps, by their places."""
    donors: list[list[int]] = [[] for _ in range(state.unit_count)]
    for place, record in enumerate(state.active_members()):
        if record.holds_state and record.applied_step == step:
            for unit in units_in(record.units):
                donors[unit].append(place)
    found: list[UnitSource] = []
    for unit, places in enumerate(donors):
        if found and found[-1].donors == tuple(places):
            found[-1] = UnitSource(found[-1].first_unit, unit + 1, tuple(places))
        else:
            found.append(UnitSource(unit, unit + 1, tuple(places)))
    return tuple(found)


def stored(state: JobState, checkpoint: str) -> tuple[UnitSource, ...]:
    """Return the source of all units if no worker holds them. checkpoint: empty: the initial state."""
    return (UnitSource(0, state.unit_count, (), checkpoint),)


def result_is_whole(state: JobState) -> bool:
    """True if the workers whose scripts have ended held all units of the result."""
    ended = {unit for units in state.pipeline.finished_units.values() for unit in units_in(units)}
    return len(ended) == state.unit_count


def _held(records: Iterable[WorkerRecord], step: int) -> set[int]:
    return {
        unit
        for record in records
        if record.holds_state and record.applied_step == step
        for unit in units_in(record.units)
    }
