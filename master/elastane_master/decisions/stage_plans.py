"""Plans of a pipeline: which worker of a ring runs which units.

    the ring goes   --> a plan was proposed for it (replanning.py): that plan
                    the same workers: their current plan
                    few units and workers, measured: the planner, with a bounded number of simulations
                    else: the previous plan reduced to the remaining workers, or an even cut

Every plan gives the same bits. So the planner's bounds, and whether it answers at all, only affect the step
time; a thread continues to look for a better plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec

from elastane_master.decisions import link_speeds, stage_memory, unit_holders
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
from elastane_planner.simulate import Timeline, timeline

UNITS_AT_ONCE_MAX, WORKERS_AT_ONCE_MAX, BATCHES_AT_ONCE_MAX = 12, 4, 32
"""Larger cases are not planned within a decision, for which the whole master waits: some 20 ms."""
SLOW_FRACTION = 0.1
"""A worker that is so much slower than the fastest of the pipeline is named as the reason."""
STEPS_LEFT_UNKNOWN = 1000
"""Assumed of a script that does not say how many steps it makes."""
SECONDS_ASSUMED = 1e-3
"""Assumed duration of a unit's forward, if a plan is needed before any time is measured."""
SIMULATIONS_AT_ONCE_MAX = 20
BLOCKS_AT_ONCE_MAX = 2048
"""Blocks of a step up to which a plan's step is simulated within a decision, to be shown: some 20 ms."""


class Question(msgspec.Struct, frozen=True):
    """Input of the planner. workers: by device of the cluster. keep: the current plan.

    held: units by worker. horizon_steps: steps until the next expected change, in which a move must pay off.
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


def profile_of(
    model: PipelineModel, measured: Sequence[UnitSeconds] = (), overhead: UnitSeconds | None = None
) -> Profile:
    """Return the model's profile for the planner, with times measured by workers where known.

    Raises InvalidProfile for impossible values.
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
    beside = overhead or UnitSeconds()
    return Profile(
        tuple(units),
        model.forward_overhead_seconds or beside.forward,
        model.backward_overhead_seconds or beside.backward,
    )


def steps_left(state: JobState) -> int:
    """Return the remaining steps of the job, as far as its script has announced them."""
    return state.total_steps - state.steps.current if state.total_steps else STEPS_LEFT_UNKNOWN


def question(state: JobState) -> Question:
    """Return the planner's input for the members of the ring."""
    model = state.signature.pipeline if state.signature else None
    assert model is not None
    settings, records = state.settings, _eligible(state)
    profile = profile_of(model, state.pipeline.measured, state.pipeline.overhead)
    workers = tuple(record.worker for record in records)
    most = min(settings.pipeline_stages_max or len(workers), len(workers), len(profile.cuts) + 1)
    plan = state.pipeline.plan
    return Question(
        profile=profile,
        cluster=_cluster(state, records),
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
    """Return the plan of the ring that starts now, with predictions. Called once for each Go."""
    asked = question(state)
    if proposed := _proposed(state, asked):
        return proposed  # with the predictions of the planner's thread
    found, problem = _kept(state, asked), ""
    if found is None:
        found, problem = _planned(asked)
    return with_figures(found or _cut(state, asked, problem), asked, blocks_max=BLOCKS_AT_ONCE_MAX)


def answer(asked: Question, **bounds: object) -> StagePlan:
    """Return the planner's plan. bounds: of its search, as for `make_plan`. Raises PlanError."""
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


def with_figures(plan: StagePlan, asked: Question, *, blocks_max: int | None = None) -> StagePlan:
    """Return a plan with predictions, if units are measured and a step does not have too many blocks."""
    blocks = 2 * len(plan.stages) * asked.micro_batches
    if not asked.profile.measured or (blocks_max is not None and blocks > blocks_max):
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


def on_devices(plan: StagePlan) -> Plan:
    """Return a plan in terms of its workers' places."""
    return _by_device(plan, {worker: index for index, worker in enumerate(plan.workers)})


def predicted(state: JobState, plan: StagePlan) -> Timeline | None:
    """Return the predicted step of a plan for display; None if units are unmeasured or a worker is gone.

    Raises PlanError.
    """
    model = state.signature.pipeline if state.signature else None
    if model is None or not set(plan.workers) <= state.workers.keys():
        return None
    profile = profile_of(model, state.pipeline.measured, state.pipeline.overhead)
    if not profile.measured:
        return None
    cluster = _cluster(state, [state.workers[worker] for worker in plan.workers])
    return timeline(profile, cluster, on_devices(plan), state.settings.ests)


def slow_text(state: JobState, workers: Sequence[str], among: Sequence[str] = ()) -> str:
    """Describe the slowest worker and its speed relative to the fastest; empty if all are equal.

    among: candidates for the slowest; default: all.
    """
    speeds = {one: state.workers[one].speed or 1.0 for one in workers if one in state.workers}
    asked = [one for one in among or workers if one in speeds]
    if not asked:
        return ""
    slowest = min(asked, key=lambda one: (speeds[one], one))
    ratio = speeds[slowest] / max(speeds.values())
    if ratio >= 1 - SLOW_FRACTION:
        return ""
    return f"{slowest} computes at {ratio:.2g} of the speed of the fastest worker"


def in_ring(plan: StagePlan, workers: Sequence[str]) -> PipelinePlan:
    """Return a plan by places in the ring, as sent with Go, without the units' sources."""
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
    """True if a plan assigns all units of the model to eligible members of the ring."""
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
    """Ask the planner, if that is quick. Returns None without a plan, and the reason if it was asked."""
    if not (_is_small(asked) and asked.profile.measured):
        return None, ""
    try:
        return answer(asked, simulations_max=SIMULATIONS_AT_ONCE_MAX), ""
    except PlanError as error:
        return None, "; ".join(filter(None, (str(error), error.hint)))
    except Exception as error:  # noqa: BLE001 - no job may wait for a bug in the planner: there is another plan
        return None, str(error) or type(error).__name__


def _is_small(asked: Question) -> bool:
    """True if the planner is quick enough for a decision to wait for it."""
    return (
        len(asked.profile.units) <= UNITS_AT_ONCE_MAX
        and len(asked.workers) <= WORKERS_AT_ONCE_MAX
        and asked.micro_batches <= BATCHES_AT_ONCE_MAX
    )


def _cut(state: JobState, asked: Question, problem: str) -> StagePlan:
    """Reduce the previous plan to the present workers, or else cut the model evenly.

    problem: why the planner has no plan; empty: it was not asked.
    """
    before = state.pipeline.plan
    stages = _cut_down(before, asked) if before is not None else None
    kept = [] if stages is None else [(stages, "the stages before, on the workers that are left")]
    reason = "an even cut" if asked.profile.measured else "an even cut: nothing is measured yet"
    plans = [*kept, (_even(asked), reason)]
    if any(device.memory_bytes is not None for device in asked.cluster.devices):
        by_size = _even(asked, by_size=True)
        return _within_memory(asked, [*plans, (by_size, "cut into stages of equal size")], problem)
    because = f"; the planner has none: {problem}" if problem else ""
    return StagePlan(plans[0][0], asked.workers, reason=plans[0][1] + because)


def _within_memory(
    asked: Question, plans: Sequence[tuple[tuple[StageOnWorkers, ...], str]], problem: str
) -> StagePlan:
    """Return the first plan that fits the workers' memory; if none does, the first, with the reason."""
    place = {worker: index for index, worker in enumerate(asked.workers)}
    costs = Costs(asked.profile, asked.cluster, asked.micro_batches)
    for stages, reason in plans:
        found = stage_memory.first_fit(costs, [_by_device(StagePlan(stages, asked.workers), place)])
        if isinstance(found, Plan):
            because = f"; the planner has none: {problem}" if problem else ""
            return StagePlan(_by_worker(found, asked.workers), asked.workers, reason=reason + because)
        problem = problem or found
    if squeezed := _squeezed(asked):
        return squeezed
    stages, reason = plans[0]
    return StagePlan(stages, asked.workers, reason=f"{reason}; no stages fit the workers' memory: {problem}")


def _squeezed(asked: Question) -> StagePlan | None:
    """Return a plan that fits the workers' memory before anything is measured; None if none is found."""
    if asked.profile.measured or not _is_small(asked):
        return None
    units = (
        msgspec.structs.replace(unit, forward_seconds=SECONDS_ASSUMED, backward_seconds=2 * SECONDS_ASSUMED)
        for unit in asked.profile.units
    )
    supposed = msgspec.structs.replace(asked, profile=Profile(tuple(units)), keep=None)
    try:
        found = answer(supposed, simulations_max=SIMULATIONS_AT_ONCE_MAX)
    except Exception:  # noqa: BLE001 - as in `_planned`
        return None
    reason = "stages that keep to the workers' memory: no times are measured yet"
    return msgspec.structs.replace(found, step_seconds=0.0, reason=reason)


def _cut_down(before: StagePlan, asked: Question) -> tuple[StageOnWorkers, ...] | None:
    """Return a plan's stages on the workers that still hold their units; None: a stage has none.

    A shadow replaces the last replica. Other workers join the stage with the most work per replica.
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


def _even(asked: Question, *, by_size: bool = False) -> tuple[StageOnWorkers, ...]:
    """Cut the model into as many stages as possible, of about equal time or equally many units.

    by_size: of about equally many bytes of weights.
    """
    count = asked.stages_max or len(asked.workers)
    bounds = _even_bounds(asked.profile, count, by_size=by_size)
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


def _even_bounds(profile: Profile, count: int, *, by_size: bool) -> list[tuple[int, int]]:
    """Return the bounds of `count` stages, never between units that share parameters."""
    sizes = [
        float(unit.parameter_bytes) if by_size else _seconds(profile, index, index + 1)
        for index, unit in enumerate(profile.units)
    ]
    sums = [0.0, *accumulate(sizes)]
    cuts, starts = list(profile.cuts), [0]
    for stage in range(1, count):
        still = count - stage
        free = [cut for cut in cuts if cut > starts[-1]]
        free = free[: len(free) - still + 1]
        wanted = sums[-1] * stage / count
        starts.append(min(free, key=lambda cut: abs(sums[cut] - wanted)))
    return list(zip(starts, [*starts[1:], len(profile.units)], strict=True))


def _with_shadows(stages: tuple[StageOnWorkers, ...], asked: Question) -> tuple[StageOnWorkers, ...]:
    """Assign shadows to stages with one replica: holders of the units, then the next stages' workers."""
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
    """Return a worker's sort key: the first unit that it holds, else last."""
    return (not units, min(units) if units else 0)


def _seconds(profile: Profile, first: int, end: int) -> float:
    """Return the time of some units, or their number if nothing is measured."""
    if not profile.measured:
        return float(end - first)
    return sum(unit.forward_seconds + unit.backward_seconds for unit in profile.units[first:end])


# ------------------------------------------------------------------ workers and devices


def _eligible(state: JobState) -> list[WorkerRecord]:
    """Return the members that may get a stage."""
    return [record for record in state.active_members() if record.worker not in state.ring.leaving]


def _cluster(state: JobState, records: Sequence[WorkerRecord]) -> Cluster:
    devices = [Device(record.worker, record.speed or 1.0, record.memory_bytes or None) for record in records]
    return Cluster(tuple(devices), link_speeds.matrix(state, records))


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
