"""A worker's decisions within a step of a pipeline: as `StepBody`, of which it changes the order.

    begin ─▶ all mini-batches of all ESTs, through all stages; then the sums of this worker's units
          ─▶ computed: the script may log values ─▶ begin_apply: report, wait until all contexts are durable
          ─▶ end

A step is reported once its sums are complete. So if all have reported, every worker can apply the step
without the others' help, and does, even if one of them dies (see `protocol`).
"""

from __future__ import annotations

from collections.abc import Sequence

from elastane.runtime.hosted_contexts import HostedContexts
from elastane.runtime.protocol import WorkerProtocol
from elastane.runtime.step_body import Actions, StepBody, T
from elastane.runtime.step_state import StepState
from elastane_common.errors import StepError


class PipelineBody(StepBody[T]):
    """A worker's side of a pipeline's step. Its turns are those of the ESTs whose home the worker is."""

    hint = "each turn of the loop is pipe(batch), then optimizer.step()"

    def __init__(
        self,
        protocol: WorkerProtocol,
        contexts: HostedContexts,
        steps_per_epoch: int,
        actions: Actions[T],
    ) -> None:
        super().__init__(protocol, contexts, steps_per_epoch, actions, reports_late=True)
        self._turns: Sequence[T] = ()

    def begin(self) -> StepState:
        self._turns = ()
        return super().begin()

    @property
    def is_computed(self) -> bool:
        """True once the sums are complete: the step can be reported."""
        return bool(self._turns)

    def computed(self, turns: Sequence[T]) -> None:
        """Note that the sums are complete. turns: all of the worker's, with `states` after the step."""
        self._turns, self._turn = turns, turns[-1]

    async def begin_apply(self, turn: T) -> bool:
        """True if the global step is applied now; reports it and waits until all contexts are durable.

        False after a ring change. Raises StepError before `computed`.
        """
        state = turn.state
        if not state.in_flight or state.may_step or self._actions.failure is not None:
            return state.may_step
        if not self.is_computed:
            raise StepError(
                f"optimizer.step() came before pipe(batch) in step {state.step}",
                hint=self.hint,
            )
        if not state.is_reported:
            if self._protocol.changing:
                self._actions.lose_step()
                return False
            self._actions.check_backward(turn)
            for one in self._turns:
                self._note(one, one.states)
            self._report(turn)
            self._actions.begin_exchange(turn)
        return await super().begin_apply(turn)
