"""A trainer's actions within a step, as its body decides: session, generators, loader, model and figures.

Every action ends before it returns: coroutines block the script's thread and never suspend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import torch

from elastane.rng import Parts
from elastane.runtime import probes
from elastane.runtime.est_step import EstStep
from elastane.runtime.protocol import Outcome
from elastane.runtime.step_parts import StepParts
from elastane.runtime.step_state import StepState


class StepActions:
    """Actions of one worker's step body, in the script's thread and, in backward, in autograd's."""

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        self._session, self._reducer = parts.worker_session, parts.reducer

    # ------------------------------------------------------------------ the session

    def tell(self, change: Callable[[], Outcome]) -> None:
        self._session.tell(change)

    async def wait_for(self, condition: Callable[[], object]) -> None:
        self._session.wait_for(condition)

    async def wait_for_decision(self, turn: EstStep, is_decided: Callable[[], bool]) -> None:
        parts = self._parts
        parts.watch.before_step(turn)
        asked = perf_counter()
        self._session.wait_for(is_decided)
        parts.figures.prepared_wait_seconds += perf_counter() - asked
        probes.reached("prepared", turn.step)

    def begin_step(self) -> StepState:
        return self._session.begin_step()

    def lose_step(self) -> None:
        self._session.lose_step()

    def begin_apply(self, turn: EstStep) -> bool:
        claimed = self._session.begin_apply(turn.step)
        if claimed and turn.rank != 0:
            # From here on the body acts on the model once a step, so it must see rank 0's buffers.
            self._parts.buffers.show(self._reducer.collectives.buffers)
        return claimed

    # ------------------------------------------------------------------ the end of a mini-batch

    def states(self) -> Parts:
        return self._parts.states()

    def loader_parts(self, turn: EstStep) -> Parts:
        return self._parts.repeats.finish(turn)

    def logged(self, turn: EstStep) -> dict[str, float]:
        return {
            name: value.item() if isinstance(value, torch.Tensor) else float(value)
            for name, value in turn.metrics.items()
        }

    def batch_ended(self, turn: EstStep, states: Parts) -> None:
        """Trace the mini-batch; after an EST's last one report its digest, and keep EST 0's buffers."""
        parts, own = self._parts, turn.guest is None
        if parts.trace is not None and own:
            now = states or parts.states()
            parts.trace.mini_batch_ended(turn.step, turn.rank, turn.micro, now, turn.metrics)
        if not turn.sync:
            return
        parts.sentinel.ended(turn)
        if own and turn.rank == 0:
            self._reducer.collectives.keep_buffers(parts.buffers.tensors)
            turn.buffer_versions = parts.buffers.versions()

    # ------------------------------------------------------------------ the last backward

    def check_backward(self, turn: EstStep) -> None:
        self._parts.frozen.check()

    def begin_exchange(self, turn: EstStep) -> None:
        if self._parts.buffers.tensors:
            self._reducer.collectives.broadcast_buffers()
        probes.reached("all_reduce", turn.step)

    def decides_layout(self, step: int) -> bool:
        return step == self._reducer.order_step

    def ready_order(self) -> Sequence[int]:
        return self._reducer.ready_order

    def digests(self) -> tuple[int, int] | None:
        state, settings = self._parts.fingerprints.state_digest(), self._parts.fingerprints.settings_digest()
        return None if state is None or settings is None else (state, settings)

    # ------------------------------------------------------------------ the end of the step

    @property
    def failure(self) -> Exception | None:
        return self._reducer.failure

    def drop(self) -> None:
        self._reducer.drop()
        self._parts.buffers.restore()

    def complete(self, turn: EstStep) -> None:
        parts = self._parts
        parts.buffers.check_est_step(turn)
        parts.buffers.end_step(self._reducer.collectives.buffers)
        if parts.trace is not None:
            parts.trace.step_applied(turn.step)
        self._reducer.end_step()

    def applied(self, step: int) -> None:
        if self.decides_layout(step):
            self._reducer.set_layout(self._session.protocol.ready_order)
        probes.reached("applied", step)
