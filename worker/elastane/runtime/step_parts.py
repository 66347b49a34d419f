"""The objects that a worker's steps use, built once at prepare and kept for the whole run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastane.collective.reducer import Reducer
from elastane.data.source import BatchSource
from elastane.rng import Generators, Parts
from elastane.runtime.ahead_policy import AheadPolicy
from elastane.runtime.est_step_watch import EstStepWatch
from elastane.runtime.fingerprints import Fingerprints
from elastane.runtime.frozen import FrozenParameters
from elastane.runtime.hosted_contexts import HostedContexts
from elastane.runtime.rank0_buffers import Rank0Buffers
from elastane.runtime.repeat_check import RepeatCheck
from elastane.runtime.sentinel import Sentinel
from elastane.runtime.state_feed import StateFeed
from elastane.runtime.worker_session import WorkerSession
from elastane.state.undo_copy import UndoCopy
from elastane_common.observe.figures import WorkerFigures

if TYPE_CHECKING:
    from elastane.runtime.step_trace import StepTrace


@dataclass(frozen=True)
class StepParts:
    """The parts of one worker that its steps use. trace: None unless the run is traced. undo, ahead: of steps
    that are applied ahead of their Prepared.
    """

    worker_session: WorkerSession
    source: BatchSource
    generators: Generators
    reducer: Reducer
    buffers: Rank0Buffers
    frozen: FrozenParameters
    fingerprints: Fingerprints
    watch: EstStepWatch
    sentinel: Sentinel
    repeats: RepeatCheck
    figures: WorkerFigures
    feed: StateFeed
    trace: StepTrace | None
    undo: UndoCopy
    ahead: AheadPolicy
    contexts: HostedContexts = field(default_factory=HostedContexts)

    def states(self) -> Parts:
        """Capture the current states of generators and registered items."""
        return self.generators.capture() | self.source.registry.capture()

    def close(self) -> None:
        """End threads, hooks and files."""
        self.feed.close()
        self.fingerprints.close()
        self.reducer.close()
        if self.trace is not None:
            self.trace.close()
