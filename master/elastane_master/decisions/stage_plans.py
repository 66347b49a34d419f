"""Plans of a pipeline: which worker of a ring runs which units.

    the ring goes   --> another plan was proposed for it (replanning.py): that one
                        the same workers: the plan that they had
                        few units and workers, measured: the planner, with a bounded number of simulations
                        else: the plan before, cut down to the workers that are left, or an even cut

Every plan gives the same bits. So the planner's bounds, and whether it answers at all, decide only how long
a step takes; it goes on to look for a better plan beside the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec

from elastane_master.decisions import unit_holders
from elastane_master.decisions.effects import PipelinePlan, PipelineStage
from elastane_master.decisions.events import PipelineModel
from elastane_master.decisions.stages import StageOnWorkers, StagePlan
from elastane_master.decisions.state import JobState, UnitSeconds, WorkerRecord
from elastane_planner.cluster import Cluster, Device
from elastane_planner.costs import Costs
from elastane_planner.errors import PlanError
from elastane_planner.plan import Plan, Stage
from elastane_planner.planner import make_plan
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.simulate import timeline

LINK_BYTES_PER_SECOND = 1.25e9
"""Assumed of every link: 10 Gbit/s."""
UNITS_AT_ONCE_MAX, WORKERS_AT_ONCE_MAX, BATCHES_AT_ONCE_MAX = 12, 4, 32
"""Larger cases are not planned within a decision, for which the whole master waits: some 20 ms."""
STEPS_LEFT_UNKNOWN = 1000
"""Assumed of a script that does not say how many steps it makes."""
SIMULATIONS_AT_ONCE_MAX = 20
BLOCKS_SIMULATED_MAX = 4096
"""Blocks of a step up to which a plan's step is simulated, to be shown."""


class Question(msgspec.Struct, frozen=True):
    """What a plan is to be made for. workers: by device of the cluster. keep: the plan that runs.

    held: units by worker. horizon_steps: until the next change of the plan, for which a move must pay.
    """

    profile: Profile
    cluster: Cluster
    workers: tuple[str, ...]
    micro_batches: int
    stages_min: int
    stages_max: int | None
    shadows: int
    keep: StagePlan | None
    held: dict[str, set[int]]
    horizon_steps: int


def profile_of(model: PipelineModel, measured: Sequence[UnitSeconds] = ()) -> Profile:
    """Return the model as the planner knows it, with the times that workers measured where they did.

    Raises InvalidProfile for figures that cannot be true.
    """
    units = []
    for index, unit in enumerate(model.units):
        seconds = measured[index] if measured else UnitSeconds()
        units.append(
            UnitProfile(
                name=unit.name,
                forward_seconds=seconds.forward or unit.forward_seconds,
                backward_seconds=seconds.backward or unit.backward_seconds,
                parameter_bytes=unit.parameter_bytes,
                optimizer_bytes=unit.optimizer_bytes,
                boundary_bytes=unit.boundary_bytes,
                activation_bytes=unit.activation_bytes,
                buffer_bytes=unit.buffer_bytes,
                tie=unit.tie,
                workspace_bytes=unit.workspace_bytes,
            )
        )
    return Profile(tuple(units))


def steps_left(state: JobState) -> int:
    """Return how many steps the job still makes, as far as its script says."""
    return state.total_steps - state.steps.current if state.total_steps else STEPS_LEFT_UNKNOWN


def question(state: JobState) -> Question:
    """Return what a plan for the members of the ring is to be made for."""
    model = state.signature.pipeline if state.signature else None
    assert model is not None
    settings, records = state.settings, _eligible(state)
    profile = profile_of(model, state.pipeline.measured)
    workers = tuple(record.worker for record in records)
    most = min(settings.pipeline_stages_max or len(workers), len(workers), len(profile.cuts) + 1)
    plan = state.pipeline.plan
    return Question(
        profile=profile,
        cluster=_cluster(records),
        workers=workers,
        micro_batches=settings.ests,
        stages_min=min(settings.pipeline_stages_min, most),
        stages_max=most,
        shadows=settings.pipeline_shadows,
        keep=plan if plan is not None and _named(plan) <= set(workers) else None,
        held={
            record.worker: set(unit_holders.units_in(record.units))
            for record in records
            if record.holds_state
        },
        horizon_steps=max(1, steps_left(state)),
    )


def decide(state: JobState) -> StagePlan:
    """Return the plan of the ring that goes now, with what is predicted of it. Called once for each Go."""
    asked = question(state)
    found, problem = _proposed(state, asked) or _kept(state, asked), ""
    if found is None:
        found, problem = _planned(asked)
    return with_figures(found or _cut(state, asked, problem), asked)


def answer(asked: Question, **bounds: object) -> StagePlan:
    """Return the planner's plan. bounds: of its search, as of `make_plan`. Raises PlanError."""
    place = {worker: index for index, worker in enumerate(asked.workers)}
    found = make_plan(
        asked.profile,
        asked.cluster,
        asked.micro_batches,
        stages=(asked.stages_min, asked.stages_max),
        shadows=asked.shadows,
        keep=None if asked.keep is None else _by_device(asked.keep, place),
        held={place[worker]: units for worker, units in asked.held.items()},
        horizon_steps=asked.horizon_steps,
        **bounds,  # type: ignore[arg-type]
    )
    reason = "; ".join(("planned by what was measured", *found.notes))
    return StagePlan(_by_worker(found.plan, asked.workers), asked.workers, found.step_seconds, reason=reason)


def with_figures(plan: StagePlan, asked: Question) -> StagePlan:
    """Return a plan with what is predicted of it, as far as units are measured and the case is small."""
    blocks = 2 * len(plan.stages) * asked.micro_batches
    if not asked.profile.measured or blocks > BLOCKS_SIMULATED_MAX:
        return plan
    place = {worker: index for index, worker in enumerate(asked.workers)}
    by_device = _by_device(plan, place)
    shown = timeline(asked.profile, asked.cluster, by_device, asked.micro_batches)
    costs = Costs(asked.profile, asked.cluster, asked.micro_batches)
    loads = tuple(
        costs.stage_load(stage.first_unit, stage.end_unit, stage.devices, stage.memory)
        for stage in by_device.stages
    )
    return msgspec.structs.replace(
        plan, step_seconds=shown.step_seconds, bubble=shown.bubble, stage_seconds=loads
    )


def in_ring(plan: StagePlan, workers: Sequence[str]) -> PipelinePlan:
    """Return a plan by places in the ring, as Go has it, without the units' sources."""
    place = {worker: index for index, worker in enumerate(workers)}
    stages = tuple(
        PipelineStage(
            stage.first_unit,
            stage.end_unit,
            tuple(place[worker] for worker in stage.replicas),
            tuple(place[worker] for worker in stage.shadows),
            stage.memory,
        )
        for stage in plan.stages
    )
    return PipelinePlan(stages, (), plan.step_seconds, plan.reason)


def fits(state: JobState, plan: StagePlan) -> bool:
    """True if a plan shares out all units of the model among the members of the ring that may get some."""
    return _fits(question(state), plan)


def _fits(asked: Question, plan: StagePlan) -> bool:
    if plan.workers != asked.workers or not _named(plan) <= set(plan.workers):
        return False
    place = {worker: index for index, worker in enumerate(plan.workers)}
    try:
        _by_device(plan, place).check(len(asked.profile.units), len(plan.workers), asked.profile.cuts)
    except PlanError:
        return False
    return True


def same_stages(one: StagePlan | None, other: StagePlan | None) -> bool:
    """True if two plans run the same units on the same workers."""
    return (one.stages if one else None) == (other.stages if other else None)


# ------------------------------------------------------------------ where plans come from


def _proposed(state: JobState, asked: Question) -> StagePlan | None:
    plan = state.pipeline.proposed
    return plan if plan is not None and _fits(asked, plan) else None


def _kept(state: JobState, asked: Question) -> StagePlan | None:
    plan = state.pipeline.plan
    if plan is None or set(plan.workers) != set(asked.workers):
        return None
    return msgspec.structs.replace(plan, workers=asked.workers)


def _planned(asked: Question) -> tuple[StagePlan | None, str]:
    """Ask the planner, where that is done soon. Returns None if it has no plan, and why, if it was asked."""
    is_small = (
        len(asked.profile.units) <= UNITS_AT_ONCE_MAX
        and len(asked.workers) <= WORKERS_AT_ONCE_MAX
        and asked.micro_batches <= BATCHES_AT_ONCE_MAX
    )
    if not (is_small and asked.profile.measured):
        return None, ""
    try:
        return answer(asked, simulations_max=SIMULATIONS_AT_ONCE_MAX), ""
    except Exception as error:  # noqa: BLE001 - no job may wait for a bug in the planner: there is another plan
        return None, str(error) or type(error).__name__


def _cut(state: JobState, asked: Question, problem: str) -> StagePlan:
    """Cut the plan before down to the workers that are there, or else the model evenly.

    problem: why the planner has no plan; empty: it was not asked.
    """
    because = f"; the planner has none: {problem}" if problem else ""
    before = state.pipeline.plan
    stages = _cut_down(before, asked) if before is not None else None
    if stages is not None:
        reason = f"the stages before, on the workers that are left{because}"
        return StagePlan(stages, asked.workers, reason=reason)
    reason = "an even cut"
    if not asked.profile.measured:
        reason += ": nothing is measured yet"
    return StagePlan(_even(asked), asked.workers, reason=reason + because)


def _cut_down(before: StagePlan, asked: Question) -> tuple[StageOnWorkers, ...] | None:
    """Return the stages of a plan on the workers that still hold their units; None: not every stage has one.

    A shadow takes the place of the last replica. Others help where a replica has most to do.
    """
    there, stages = set(asked.workers), []
    used: set[str] = set()
    if not asked.stages_min <= len(before.stages) <= (asked.stages_max or len(before.stages)):
        return None
    for stage in before.stages:
        replicas = [worker for worker in stage.replicas if worker in there]
        stages.append((stage, replicas))
        used.update(replicas)
    for stage, replicas in stages:
        free = [worker for worker in stage.shadows if worker in there - used]
        if not replicas and not free:
            return None
        if not replicas:
            replicas.append(free[0])
            used.add(free[0])
    loads = [_seconds(asked.profile, stage.first_unit, stage.end_unit) for stage, _ in stages]
    for worker in asked.workers:
        if worker not in used:
            least = max(range(len(stages)), key=lambda index: (loads[index] / len(stages[index][1]), -index))
            stages[least][1].append(worker)
    found = tuple(
        StageOnWorkers(stage.first_unit, stage.end_unit, tuple(replicas), (), stage.memory)
        for stage, replicas in stages
    )
    return _with_shadows(found, asked)


def _even(asked: Question) -> tuple[StageOnWorkers, ...]:
    """Cut the model into as many stages as may be, of about equal time, or of equally many units."""
    count = asked.stages_max or len(asked.workers)
    bounds = _even_bounds(asked.profile, count)
    workers = sorted(asked.workers, key=lambda worker: _place_held(asked.held.get(worker)))
    replicas: list[list[str]] = [[worker] for worker in workers[:count]]
    loads = [_seconds(asked.profile, first, end) for first, end in bounds]
    for worker in workers[count:]:
        busiest = max(range(count), key=lambda index: (loads[index] / len(replicas[index]), -index))
        replicas[busiest].append(worker)
    stages = tuple(
        StageOnWorkers(first, end, tuple(on)) for (first, end), on in zip(bounds, replicas, strict=True)
    )
    return _with_shadows(stages, asked)


def _even_bounds(profile: Profile, count: int) -> list[tuple[int, int]]:
    """Return where `count` stages begin and end, nowhere between units that share parameters."""
    sums = [0.0, *accumulate(_seconds(profile, unit, unit + 1) for unit in range(len(profile.units)))]
    cuts, starts = list(profile.cuts), [0]
    for stage in range(1, count):
        still = count - stage
        free = [cut for cut in cuts if cut > starts[-1]]
        free = free[: len(free) - still + 1]
        wanted = sums[-1] * stage / count
        starts.append(min(free, key=lambda cut: abs(sums[cut] - wanted)))
    return list(zip(starts, [*starts[1:], len(profile.units)], strict=True))


def _with_shadows(stages: tuple[StageOnWorkers, ...], asked: Question) -> tuple[StageOnWorkers, ...]:
    """Give stages with one replica their shadows: who holds the units, then the next stages' workers."""
    if not asked.shadows:
        return stages
    found = []
    for index, stage in enumerate(stages):
        after = [*stages[index + 1 :], *stages[:index]]
        others = [worker for other in after for worker in other.replicas]
        units = set(range(stage.first_unit, stage.end_unit))
        others.sort(key=lambda worker: not units <= asked.held.get(worker, set()))
        shadows = tuple(others[: asked.shadows]) if len(stage.replicas) == 1 else ()
        found.append(msgspec.structs.replace(stage, shadows=shadows))
    return tuple(found)


def _place_held(units: set[int] | None) -> tuple[bool, int]:
    """Return where a worker stands among others: by the first unit it holds, else behind them."""
    return (not units, min(units) if units else 0)


def _seconds(profile: Profile, first: int, end: int) -> float:
    """Return the time of some units; where nothing is measured, their number."""
    if not profile.measured:
        return float(end - first)
    return sum(unit.forward_seconds + unit.backward_seconds for unit in profile.units[first:end])


# ------------------------------------------------------------------ workers and devices


def _eligible(state: JobState) -> list[WorkerRecord]:
    """Return the members that may get a stage."""
    return [record for record in state.active_members() if record.worker not in state.ring.leaving]


def _cluster(records: Sequence[WorkerRecord]) -> Cluster:
    devices = [Device(record.worker, record.speed or 1.0, record.memory_bytes or None) for record in records]
    return Cluster.uniform(devices, LINK_BYTES_PER_SECOND)


def _named(plan: StagePlan) -> set[str]:
    return {worker for stage in plan.stages for worker in (*stage.replicas, *stage.shadows)}


def _by_device(plan: StagePlan, place: Mapping[str, int]) -> Plan:
    stages = tuple(
        Stage(stage.first_unit, stage.end_unit, tuple(place[w] for w in stage.replicas), stage.memory)
        for stage in plan.stages
    )
    shadows = tuple(tuple(place[worker] for worker in stage.shadows) for stage in plan.stages)
    return Plan(stages, shadows if any(shadows) else ())


def _by_worker(plan: Plan, workers: Sequence[str]) -> tuple[StageOnWorkers, ...]:
    return tuple(
        StageOnWorkers(
            stage.first_unit,
            stage.end_unit,
            tuple(workers[device] for device in stage.devices),
            tuple(workers[device] for device in plan.shadows_of(index)),
            stage.memory,
        )
        for index, stage in enumerate(plan.stages)
    )
