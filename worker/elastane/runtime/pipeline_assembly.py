"""Builds a pipeline worker's trainer at prepare_pipeline: every part once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from elastane.data.source import BatchSource
from elastane.pipeline.executor import StepExecutor
from elastane.rng import Generators
from elastane.runtime.blocking import finish
from elastane.runtime.boundary_actions import RingMember
from elastane.runtime.carried import CarriedValues
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.est_step import EpochsClosed
from elastane.runtime.frozen import FrozenParameters
from elastane.runtime.interval import Interval
from elastane.runtime.pipelines.absent_gradients import AbsentGradients
from elastane.runtime.pipelines.boundary import PipelineBoundaryActions
from elastane.runtime.pipelines.elastic_pipe import ElasticPipe
from elastane.runtime.pipelines.evaluation import Evaluation
from elastane.runtime.pipelines.fingerprints import CommonFingerprints
from elastane.runtime.pipelines.parts import PipelineParts, PipelineState
from elastane.runtime.pipelines.prepared import PreparedPipeline
from elastane.runtime.pipelines.runner import PipelineRunner
from elastane.runtime.pipelines.scaling import JoinedScaler, scale_of
from elastane.runtime.pipelines.stock_pipe import ENDED
from elastane.runtime.pipelines.trace import open_unit_trace
from elastane.runtime.pipelines.watch import PipelineWatch
from elastane.runtime.repeat_check import RepeatTimes
from elastane.runtime.saving import CheckpointSaver
from elastane.runtime.seeds import initial_contexts
from elastane.runtime.signature import script_signature
from elastane.runtime.step_boundary import StepBoundary
from elastane.runtime.trainer import Trainer, TrainerParts
from elastane.runtime.worker_session import WorkerSession
from elastane.state.unit_state import UnitState
from elastane_common.observe.figures import WorkerFigures
from elastane_proto.v1 import pipeline_pb2, ring_pb2

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class PipelineTrainer:
    """A trainer and the pipe that its script gets."""

    trainer: Trainer
    runner: PipelineRunner
    pipe: ElasticPipe


def build_pipeline_trainer(
    environment: WorkerEnvironment,
    prepared: PreparedPipeline,
    source: BatchSource,
    carried: CarriedValues,
    *,
    seed: int | None,
) -> PipelineTrainer:
    """Build the trainer of a prepared pipeline; the script's generators get EST 0's state.

    Raises StateError for state that cannot be carried.
    """
    objects, options, ests = prepared.objects, prepared.options, environment.ests
    device = next(iter(objects.model.parameters())).device
    generators, closed_epochs = Generators(device), EpochsClosed()
    state = UnitState(
        prepared.units,
        prepared.optimizer,
        objects.schedulers,
        {**objects.extras, "elastane.epochs": closed_epochs},
    )
    state.export_common()  # fail now, and not at the first hand-over
    # Messages are on the CPU, whatever the device: their waits must end with the ring.
    worker_session = WorkerSession(environment, device=_CPU)
    trace = open_unit_trace(environment.worker_id, prepared, state, source.registry)
    parts = PipelineParts(
        worker_session=worker_session,
        source=source,
        generators=generators,
        prepared=prepared,
        executor=StepExecutor(
            prepared.units,
            options.loss_fn,
            ests,
            generators,
            bucket_cap_mb=options.train.bucket_cap_mb,
            device=device,
            scale=scale_of(objects.scalers),
            observe=None if trace is None else trace.backward,
        ),
        state=state,
        scaler=JoinedScaler(objects.scalers, device),
        frozen=FrozenParameters(objects.model, pipeline=True),
        repeats=RepeatTimes(enabled=environment.repeat_check),
        fingerprints=CommonFingerprints(state, environment.fingerprint_steps),
        watch=PipelineWatch(objects, source.registry.objects, options.loss_fn),
        figures=WorkerFigures(),
        trace=trace,
        absent=AbsentGradients(prepared.units, prepared.optimizer, lambda: state.active),
    )
    runner = PipelineRunner(parts, device)
    saver = CheckpointSaver(worker_session.saved)
    initial = initial_contexts(generators, source.registry, ests, seed)
    interval = Interval(generators, source.registry)
    interval.begin(0, initial, leads=True)
    boundaries: list[StepBoundary] = []

    def refusal() -> str:
        if not worker_session.started:
            return "before job.epochs"
        if worker_session.exits.finished:
            return ENDED
        if runner.est_step is not None:
            return f"in the loader loop, in step {runner.est_step.step}"
        return "in a loop over job.each_rank()" if interval.est_step is not None else ""

    evaluation = Evaluation(
        parts,
        ests,
        lambda: finish(boundaries[0].settle(in_loop=False)),
        refusal,
        lambda: not closed_epochs.ended,
    )
    runner.settle = lambda: finish(boundaries[0].settle())
    runner.rest = partial(evaluation.serve, ended=True)

    def boundary(member: RingMember) -> StepBoundary:
        actions = PipelineBoundaryActions(parts, runner, saver, interval, member, evaluation, ests, device)
        protocol = worker_session.protocol
        boundaries.append(StepBoundary(environment.worker_id, protocol, parts.contexts, initial, actions))
        return boundaries[0]

    def signature(epochs: int, max_steps: int) -> ring_pb2.ScriptSignature:
        found = script_signature(
            objects, options.train, source, epochs, max_steps=max_steps, carried=carried.values
        )
        found.pipeline.CopyFrom(pipeline_model(prepared))
        return found

    trainer_parts = TrainerParts(
        parts, runner, boundary, PipelineState(state), saver, interval, closed_epochs, carried, signature
    )
    trainer = Trainer(environment, trainer_parts)
    return PipelineTrainer(trainer, runner, ElasticPipe(prepared.units, runner, evaluation, options.loss_fn))


def pipeline_model(prepared: PreparedPipeline) -> pipeline_pb2.PipelineModel:
    """Return the units as the master plans with them; what a step takes only if it was profiled."""
    units, profile = prepared.units, prepared.options.profile
    model = pipeline_pb2.PipelineModel(waves=prepared.options.train.accumulation_steps)
    if profile is not None:
        model.forward_overhead_seconds = profile.forward_overhead_seconds
        model.backward_overhead_seconds = profile.backward_overhead_seconds
    for unit in range(units.count):
        message = model.units.add(
            name=units.names[unit],
            parameter_bytes=units.parameter_bytes(unit),
            buffer_bytes=units.buffer_bytes(unit),
            tie=units.ties[unit],
        )
        if profile is not None:
            found = profile.units[unit]
            message.forward_seconds, message.backward_seconds = found.forward_seconds, found.backward_seconds
            message.boundary_bytes, message.activation_bytes = found.boundary_bytes, found.activation_bytes
            message.optimizer_bytes = found.optimizer_bytes
            message.workspace_bytes = found.workspace_bytes
    return model
