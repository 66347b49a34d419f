"""Builds a worker's trainer at prepare: every part once, in the order in which they depend on each other."""

from __future__ import annotations

from functools import partial

import torch

from elastane.collective.output_watch import OutputWatch
from elastane.collective.reducer import Reducer
from elastane.data.source import BatchSource
from elastane.rng import Generators
from elastane.runtime.ahead_policy import BYTES_MAX, AheadPolicy
from elastane.runtime.boundary_actions import BoundaryActions, RingMember
from elastane.runtime.carried import CarriedValues
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.est_step import EpochsClosed
from elastane.runtime.est_step_watch import EstStepWatch
from elastane.runtime.fingerprints import Fingerprints
from elastane.runtime.frozen import FrozenParameters
from elastane.runtime.interval import Interval
from elastane.runtime.options import TrainOptions
from elastane.runtime.prepared_objects import PreparedObjects, is_compiled
from elastane.runtime.rank0_buffers import Rank0Buffers
from elastane.runtime.repeat_check import RepeatCheck
from elastane.runtime.ring_follower import is_worthwhile
from elastane.runtime.saving import CheckpointSaver
from elastane.runtime.seeds import initial_contexts
from elastane.runtime.sentinel import Sentinel
from elastane.runtime.signature import script_signature
from elastane.runtime.state_feed import StateFeed
from elastane.runtime.step_boundary import StepBoundary
from elastane.runtime.step_parts import StepParts
from elastane.runtime.step_runner import StepRunner
from elastane.runtime.step_trace import open_trace
from elastane.runtime.trainer import Trainer, TrainerParts
from elastane.runtime.worker_session import WorkerSession
from elastane.state.train_state import TrainState
from elastane.state.undo_copy import UndoCopy
from elastane_common.observe.figures import WorkerFigures
from elastane_proto.v1 import ring_pb2


def build_trainer(
    environment: WorkerEnvironment,
    prepared: PreparedObjects,
    options: TrainOptions,
    source: BatchSource,
    carried: CarriedValues,
    *,
    seed: int | None,
) -> Trainer:
    """Build the trainer of a prepared script; the script's generators get EST 0's state.

    Raises StateError for state that cannot be carried.
    """
    model = prepared.model
    device = next(iter(model.parameters())).device
    generators, closed_epochs = Generators(device), EpochsClosed()
    # The trace's hooks see each EST's own gradients, so they come before the reducer's.
    watch = EstStepWatch(prepared, source.registry.objects, environment.ests)
    buffers = Rank0Buffers(model)
    trace = open_trace(f"elastic-{environment.worker_id}", prepared, source.registry)
    reducer = _reducer(model, environment.ests, buffers, options)
    state = _state(prepared, closed_epochs, reducer)
    worker_session = WorkerSession(environment, device=device)
    steps = StepParts(
        worker_session=worker_session,
        source=source,
        generators=generators,
        reducer=reducer,
        buffers=buffers,
        frozen=FrozenParameters(model),
        fingerprints=Fingerprints(state, buffers.at_start, environment.fingerprint_steps),
        watch=watch,
        sentinel=Sentinel(worker_session, source),
        repeats=RepeatCheck(source, generators, source.registry, enabled=environment.repeat_check),
        figures=WorkerFigures(),
        feed=StateFeed(worker_session, state),
        trace=trace,
        undo=UndoCopy(state, buffers.at_start, reducer.gradients),
        ahead=AheadPolicy(BYTES_MAX if environment.apply_ahead else 0),
    )
    runner = StepRunner(steps, device)
    _watch_model(model, reducer, runner, environment.ests)
    saver = CheckpointSaver(worker_session.saved)
    initial = initial_contexts(generators, source.registry, environment.ests, seed)
    interval = Interval(generators, source.registry)
    interval.begin(0, initial, leads=True)

    def boundary(member: RingMember) -> StepBoundary:
        transfers = device if device.type == "cuda" else torch.device("cpu")
        actions = BoundaryActions(steps, runner, state, saver, interval, member, environment.ests, transfers)
        protocol = worker_session.protocol
        return StepBoundary(environment.worker_id, protocol, steps.contexts, initial, actions)

    def signature(epochs: int, max_steps: int) -> ring_pb2.ScriptSignature:
        return script_signature(
            prepared, options, source, epochs, max_steps=max_steps, carried=carried.values
        )

    parts = TrainerParts(
        steps,
        runner,
        boundary,
        state,
        saver,
        interval,
        closed_epochs,
        carried,
        signature,
        partial(is_worthwhile, state),
    )
    return Trainer(environment, parts)


def _reducer(model: torch.nn.Module, ests: int, buffers: Rank0Buffers, options: TrainOptions) -> Reducer:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return Reducer(
        [p for _, p in named],
        [name for name, _ in named],
        ests,
        buffers.tensors,
        **options.ddp_arguments(),
    )


def _state(prepared: PreparedObjects, closed_epochs: EpochsClosed, reducer: Reducer) -> TrainState:
    """Return what travels with the weights. Raises StateError for state that cannot be carried."""
    state = TrainState(
        prepared.model,
        prepared.optimizers,
        prepared.schedulers,
        {**prepared.extras, "elastane.epochs": closed_epochs, "elastane.gradients": reducer.gradients},
    )
    state.export()  # fail now, and not at the first hand-over
    return state


def _watch_model(model: torch.nn.Module, reducer: Reducer, runner: StepRunner, ests: int) -> None:
    """Set the hooks of the model's forward."""
    # a hook would split its graph, and compiled models have no reentrant checkpointing
    if is_compiled(model):
        return
    model.register_forward_hook(OutputWatch(reducer))
    if ests > 1 and list(model.buffers()):
        model.register_forward_pre_hook(runner.forwards)
