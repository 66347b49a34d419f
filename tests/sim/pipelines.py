"""Jobs whose model is cut into units, in some seeds: who holds which, and what must be true of it.

What a worker holds of a unit is a hash of the weights after its steps and the unit's number, so that a unit
that is a step behind, of another history, or from a worker that does not have it, is found at once.

plan        the stages of a Go have all units, each on members of the ring, the same for all of them
sources     each unit is taken from members that hold it at the resumed step, from a checkpoint of that step,
            or at step 0 from the initial state
one step    members of a ring have applied the same steps when they are ready, whoever died
nothing lost    history is not given up while connected workers hold all units of a newer step, or would with
                those whose streams have just broken

A planner that knows nothing proposes other stages again and again, and workers measure nonsense.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastane_master.decisions import unit_seconds
from elastane_master.decisions.events import PipelinePlanned, Rejection
from elastane_master.decisions.stages import StageOnWorkers, StagePlan
from elastane_master.errors import MachineBroken
from elastane_master.store.errors import StoreError
from elastane_proto.v1 import job_pb2, pipeline_pb2, ring_pb2
from sim.profiles import FollowUp
from sim.reference import digest

if TYPE_CHECKING:
    from sim.master_model import MasterModel
    from sim.world import StoredShard, World

JOB = "job"
STAGES = "stages of pipelines planned"
SECONDS = (0.01, 0.1, 0.1, 1.0, float("nan"), -1.0, 1e300)
LINKED = ("w0", "w1", "w2", "nobody")
BANDWIDTHS = (1e6, 1e9, 1e9, 0.0, float("nan"), -1.0, float("inf"))
NEVER_SECONDS = 1e6
FOLLOW_UPS = (FollowUp("prepared", "worker killed", 0.04, (0.0, 0.005, 0.02)),)
"""Deaths while some members have applied a step, and others have not."""


@dataclass(frozen=True)
class Pipeline:
    """A job's model. ties: by unit; equal numbers above 0 share a stage."""

    units: int
    ties: tuple[int, ...]
    stages_min: int = 1
    stages_max: int = 0
    shadows: int = 0

    def apply(self, settings: job_pb2.JobSettings) -> None:
        """Write what an operator may choose into a job's settings."""
        settings.pipeline_stages_min, settings.pipeline_stages_max = self.stages_min, self.stages_max
        settings.pipeline_shadows = self.shadows

    def model(self) -> pipeline_pb2.PipelineModel:
        """Return what a worker says of its model."""
        model = pipeline_pb2.PipelineModel(waves=1)
        for unit, tie in enumerate(self.ties):
            model.units.add(name=f"unit {unit}", parameter_bytes=8, tie=tie)
        return model


def draw(seed: int) -> Pipeline | None:
    """Return the pipeline of a run: in a sixth of the seeds, some of each profile, none that tests name."""
    chosen = seed % 20 == 14 or seed % 40 in (11, 33, 39) or seed % 80 in (57, 75)
    if not chosen:
        return None
    rng = random.Random(f"pipeline {seed}")
    units = rng.randint(1, 6)
    ties = tuple(rng.choice((0, 0, 0, 1)) for _ in range(units))
    least = rng.choice((1, 1, 2))
    most = rng.choice((0, 0, 1, 2, 3))
    return Pipeline(units, ties, least if not most or least <= most else 1, most, rng.choice((0, 0, 1, 2)))


def unit_weights(weights: bytes, unit: int) -> bytes:
    """Return what a holder of a unit has of it."""
    return digest(weights, b"unit %d" % unit)


def units_of(plan: pipeline_pb2.PipelinePlan, place: int) -> set[int]:
    """Return the units that the member at a place holds by its plan."""
    return {
        unit
        for stage in plan.stages
        if place in stage.replicas or place in stage.shadows
        for unit in range(stage.first_unit, stage.end_unit)
    }


def first_held(plan: pipeline_pb2.PipelinePlan, place: int) -> set[int]:
    """Return the units that the member at a place writes into a checkpoint."""
    return {
        unit
        for stage in plan.stages
        if stage.replicas[0] == place
        for unit in range(stage.first_unit, stage.end_unit)
    }


def source_of(plan: pipeline_pb2.PipelinePlan, unit: int) -> pipeline_pb2.UnitSource:
    """Return from where a unit is taken."""
    return next(source for source in plan.sources if source.first_unit <= unit < source.end_unit)


def ranges(units: Iterable[int]) -> Iterator[pipeline_pb2.UnitRange]:
    """Yield ranges of units, each of one unit: also a form of telling them."""
    for unit in sorted(units):
        yield pipeline_pb2.UnitRange(first_unit=unit, end_unit=unit + 1)


def plan_faults(pipeline: Pipeline, go: ring_pb2.Go, checkpoints: dict[str, int]) -> Iterator[str]:
    """Yield what is wrong with the plan of a Go. checkpoints: steps by name, of those that are stored."""
    plan, members = go.pipeline, range(len(go.members))
    expected, running = 0, []
    for stage in plan.stages:
        if stage.first_unit != expected or stage.end_unit <= stage.first_unit or not stage.replicas:
            yield f"a stage of units {stage.first_unit} to {stage.end_unit} on {list(stage.replicas)}"
        held = [*stage.replicas, *stage.shadows]
        if len(set(held)) != len(held) or not set(held) <= set(members):
            yield f"a stage is held by the members {held} of {len(members)}"
        running += stage.replicas
        expected = stage.end_unit
    if expected != pipeline.units or len(set(running)) != len(running):
        yield f"the stages have {expected} of {pipeline.units} units, on {running}"
    for unit in range(1, pipeline.units):
        tied = pipeline.ties[unit] and pipeline.ties[unit] in pipeline.ties[:unit]
        if tied and unit in {stage.first_unit for stage in plan.stages}:
            yield f"a stage begins with unit {unit}, between units that share parameters"
    for unit in range(pipeline.units):
        found = [one for one in plan.sources if one.first_unit <= unit < one.end_unit]
        if len(found) != 1:
            yield f"unit {unit} has {len(found)} sources"
        elif not found[0].donors and not found[0].checkpoint and go.resume_step:
            yield f"unit {unit} comes from nowhere at step {go.resume_step}"
        elif found[0].checkpoint and checkpoints.get(found[0].checkpoint) != go.resume_step:
            yield f"unit {unit} comes from {found[0].checkpoint}, which is not of step {go.resume_step}"


def checkpoint_faults(pipeline: Pipeline, shards: list[StoredShard]) -> Iterator[str]:
    """Yield what is wrong with the units of a checkpoint."""
    found: dict[int, bytes] = {}
    for shard in shards:
        found |= shard.units
    if set(found) != set(range(pipeline.units)):
        yield f"a checkpoint has the units {sorted(found)} of {pipeline.units}"
    for unit, held in found.items():
        if held != unit_weights(shards[0].weights, unit):
            yield f"a checkpoint has another unit {unit} than its weights"


def figures(rng: random.Random, units: Iterable[int]) -> ring_pb2.WorkerFigures:
    """Return what a worker measures of its units, and of links from others: little of it is true."""
    held = sorted(units)
    found = ring_pb2.WorkerFigures(memory_bytes=rng.choice((0, 0, 64, 2**40)))
    if held and rng.random() < 0.5:
        found.first_unit = held[0]
        found.unit_forward_seconds.extend(rng.choice(SECONDS) for _ in held)
        found.unit_backward_seconds.extend(rng.choice(SECONDS) for _ in held)
        found.forward_overhead_seconds = found.backward_overhead_seconds = rng.choice(SECONDS) / 10
    if rng.random() < 0.3:
        found.link_workers.extend(LINKED)
        found.link_bytes_per_second.extend(rng.choice(BANDWIDTHS) for _ in found.link_workers)
    return found


@dataclass
class Planner:
    """Proposes stages at random to whoever serves the job. proposed: how often."""

    world: World
    masters: Callable[[], list[MasterModel]]
    pipeline: Pipeline
    rng: random.Random
    proposed: int = 0

    def start(self, until: float) -> None:
        """Propose until that time."""
        self.world.after(self.rng.uniform(0.1, 1.5), lambda: self._propose(until))

    def _propose(self, until: float) -> None:
        if self.world.now < until:
            self.start(until)
        for master in self.masters():
            if master.process.alive and master.host is not None:
                master.process.spawn(self._submit(master))

    async def _submit(self, master: MasterModel) -> None:
        host = master.host
        state = host.machine.state if host is not None else None
        if host is None or state is None or state.pipeline.plan is None:
            return
        workers = state.pipeline.plan.workers
        count = self.rng.randint(1, min(len(workers), self.pipeline.units))
        cuts = sorted(self.rng.sample(range(1, self.pipeline.units), count - 1))
        order = self.rng.sample(workers, len(workers))
        bounds = zip([0, *cuts], [*cuts, self.pipeline.units], strict=True)
        stages = tuple(
            StageOnWorkers(first, end, tuple(order[index::count]))
            for index, (first, end) in enumerate(bounds)
        )
        event = PipelinePlanned(
            self.rng.choice((state.ring.generation, state.ring.generation, 1)),
            StagePlan(stages, workers, self.rng.choice((1.0, 1.0, NEVER_SECONDS)), reason="drawn"),
            NEVER_SECONDS,
        )
        self.proposed += 1
        try:
            await host.submit(event)
        except (Rejection, StoreError, MachineBroken):
            await asyncio.sleep(0)


@contextmanager
def hurried() -> Iterator[None]:
    """Let what is measured change as often as a run of half a minute needs."""
    before, unit_seconds.UPDATE_SECONDS = unit_seconds.UPDATE_SECONDS, 1.0
    try:
        yield
    finally:
        unit_seconds.UPDATE_SECONDS = before
