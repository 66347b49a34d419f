"""The objects that a pipeline worker's steps use, with the interface of the trainer's parts in other jobs.

Parts that watch a worker's turns or the whole model do not apply to a pipeline, where the loop body runs once
per step and each worker holds different units. They are replaced by `Off`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastane.data.source import BatchSource
from elastane.pipeline.executor import StepExecutor
from elastane.rng import Generators, Parts
from elastane.runtime.frozen import FrozenParameters
from elastane.runtime.hosted_contexts import HostedContexts
from elastane.runtime.pipelines.absent_gradients import AbsentGradients
from elastane.runtime.pipelines.fingerprints import CommonFingerprints
from elastane.runtime.pipelines.prepared import PreparedPipeline
from elastane.runtime.pipelines.scaling import JoinedScaler
from elastane.runtime.pipelines.trace import UnitTrace
from elastane.runtime.pipelines.watch import PipelineWatch
from elastane.runtime.repeat_check import RepeatTimes
from elastane.runtime.worker_session import WorkerSession
from elastane.state.unit_state import Staged, UnitState
from elastane_common.observe.figures import WorkerFigures


class Off:
    """Null object for a part of the trainer that pipelines do not have: every call does nothing."""

    def begin_loop(self, *_: Any) -> None: ...
    def check_between_epochs(self, step: int) -> None: ...
    def take(self) -> None: ...


class PipelineState:
    """Adapter of `UnitState` to the interface that the trainer expects of a worker's state."""

    def __init__(self, units: UnitState) -> None:
        self.units = units

    @property
    def extras(self) -> dict[str, Any]:
        return self.units.extras

    def load(self, received: Staged) -> None:
        """Load the state received from other members again, for the units that are still held."""
        active = self.units.active
        kept = {unit: saved for unit, saved in received.units.items() if unit in active}
        self.units.adopt(active, Staged(kept, received.common, received.devices))


@dataclass(frozen=True)
class PipelineParts:
    """The parts of one pipeline worker that its steps use."""

    worker_session: WorkerSession
    source: BatchSource
    generators: Generators
    prepared: PreparedPipeline
    executor: StepExecutor
    state: UnitState
    scaler: JoinedScaler
    frozen: FrozenParameters
    watch: PipelineWatch
    fingerprints: CommonFingerprints
    repeats: RepeatTimes
    figures: WorkerFigures
    trace: UnitTrace | None
    absent: AbsentGradients
    buffers: Off = field(default_factory=Off)
    contexts: HostedContexts = field(default_factory=HostedContexts)

    def states(self) -> Parts:
        """Capture the current states of generators and registered items."""
        return self.generators.capture() | self.source.registry.capture()

    def put(self, states: Mapping[str, bytes]) -> None:
        """Restore an EST's states."""
        self.generators.exchange(states)
        self.source.registry.exchange(states)

    def close(self) -> None:
        """End threads, hooks and files."""
        self.executor.close()
        self.fingerprints.close()
        if self.trace is not None:
            self.trace.close()
