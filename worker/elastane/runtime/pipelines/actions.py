"""A pipeline trainer's actions within a step, as its body decides.

Every action ends before it returns: coroutines block the script's thread and never suspend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter

import torch

from elastane.rng import Parts
from elastane.runtime import probes
from elastane.runtime.pipelines.parts import PipelineParts
from elastane.runtime.protocol import Outcome
from elastane.runtime.step_state import StepState
from elastane.runtime.turn import Turn
from elastane_proto.v1 import pipeline_pb2

#: The step whose ready order decides the layout of buckets in all later ones.
ORDER_STEP = 0


class PipelineActions:
    """Actions of one worker's step body, in the script's thread."""

    def __init__(self, parts: PipelineParts) -> None:
        self._parts = parts
        self._session, self._executor = parts.worker_session, parts.executor
        #: Why the step's ring has ended; None while it has not.
        self.failure: Exception | None = None

    # ------------------------------------------------------------------ the session

    def tell(self, change: Callable[[], Outcome]) -> None:
        self._session.tell(change)

    async def wait_for(self, condition: Callable[[], object]) -> None:
        self._session.wait_for(condition)

    async def wait_for_decision(self, turn: Turn, is_decided: Callable[[], bool]) -> None:
        asked = perf_counter()
        self._session.wait_for(is_decided)
        self._parts.figures.prepared_wait_seconds += perf_counter() - asked
        probes.reached("prepared", turn.step)

    def begin_step(self) -> StepState:
        self.failure = None
        return self._session.begin_step()

    def lose_step(self) -> None:
        self._session.lose_step()

    def begin_apply(self, turn: Turn) -> bool:
        return self._session.begin_apply(turn.step)

    def means_to_go_ahead(self, turn: Turn) -> bool:
        return False

    def begin_ahead(self, turn: Turn) -> bool:
        """Never: no unit may be a step behind another."""
        return False

    def undo(self) -> bool:
        return False

    def at_late_boundary(self, turn: Turn) -> None:
        """There is none: every step waits for its Prepared."""

    # ------------------------------------------------------------------ the end of the mini-batches

    def states(self) -> Parts:
        return self._parts.states()

    def loader_parts(self, turn: Turn) -> Parts:
        return turn.loader_parts

    def logged(self, turn: Turn) -> dict[str, float]:
        return {
            name: value.item() if isinstance(value, torch.Tensor) else float(value)
            for name, value in turn.metrics.items()
        }

    def batch_ended(self, turn: Turn, states: Parts) -> None:
        """Do nothing: the executor keeps EST 0's buffers."""

    def check_backward(self, turn: Turn) -> None:
        self._parts.frozen.check()

    def begin_exchange(self, turn: Turn) -> None:
        probes.all_reducing(turn.step, lambda: not self._session.protocol.is_running)

    def decides_layout(self, step: int) -> bool:
        return step == ORDER_STEP

    def ready_order(self) -> Sequence[int]:
        return self._executor.ready_order or ()

    def digests(self) -> tuple[int, int] | None:
        """Return the digests of the state that all workers have in common."""
        state, settings = self._parts.fingerprints.state_digest(), self._parts.fingerprints.settings_digest()
        return None if state is None or settings is None else (state, settings)

    # ------------------------------------------------------------------ the end of the step

    def drop(self) -> None:
        self._executor.drop()
        self.failure = None

    def complete(self, turn: Turn) -> None:
        """Adopt EST 0's buffers, and release the units that only the previous plan assigned."""
        state, trace = self._parts.state, self._parts.trace
        self._executor.end_step(applied=True)
        if trace is not None:
            trace.step_applied(turn.step)
        self._parts.prepared.units.started()
        state.settle()
        self._session.protocol.units = tuple(ranges(state.active))

    def applied(self, step: int) -> None:
        if self.decides_layout(step):
            self._executor.set_layout(self._session.protocol.ready_order)
        probes.reached("applied", step)


def ranges(units: Iterable[int]) -> Iterator[pipeline_pb2.UnitRange]:
    """Yield units as ranges, in order."""
    first = end = -1
    for unit in sorted(units):
        if unit != end:
            if end > first:
                yield pipeline_pb2.UnitRange(first_unit=first, end_unit=end)
            first = unit
        end = unit + 1
    if end > first:
        yield pipeline_pb2.UnitRange(first_unit=first, end_unit=end)
