"""A trainer's actions within a step, as its body decides: session, generators, loader, model and figures.

Every action ends before it returns: coroutines block the script's thread and never suspend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import structlog
import torch

from elastane.rng import Parts
from elastane.runtime import probes
from elastane.runtime.est_step import EstStep
from elastane.runtime.protocol import Outcome
from elastane.runtime.step_parts import StepParts
from elastane.runtime.step_state import StepState
from elastane_proto.v1 import ring_pb2

_log = structlog.get_logger(__name__)


def _not_saved(message: ring_pb2.Checkpoint) -> None:
    raise AssertionError(f"checkpoint {message.checkpoint} cannot be saved before the boundary is built")


class StepActions:
    """Actions of one worker's step body, in the script's thread and, in backward, in autograd's."""

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        self._session, self._reducer = parts.worker_session, parts.reducer
        self._undo, self._policy = parts.undo, parts.ahead
        #: In this step, for Prepared of this one.
        self._waited_seconds = 0.0
        #: When the last step was applied ahead of its Prepared; None: the time to that has been noted.
        self._ahead_since: float | None = None
        #: Saves a checkpoint's shard of this worker.
        self.save: Callable[[ring_pb2.Checkpoint], None] = _not_saved

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
        seconds = perf_counter() - asked
        parts.figures.prepared_wait_seconds += seconds
        self._waited_seconds += seconds

    def begin_step(self) -> StepState:
        return self._session.begin_step()

    def lose_step(self) -> None:
        self._session.lose_step()

    def begin_apply(self, turn: EstStep) -> bool:
        self._policy.waited(self._waited_seconds)
        probes.reached("prepared", turn.step)
        claimed = self._session.begin_apply(turn.step)
        if claimed:
            self._show_buffers(turn)
        return claimed

    def _show_buffers(self, turn: EstStep) -> None:
        """Show rank 0's buffers: from here on the body acts on the model once a step."""
        if turn.rank != 0:
            self._parts.buffers.show(self._reducer.collectives.buffers)

    # ------------------------------------------------------------------ ahead of Prepared

    def means_to_go_ahead(self, turn: EstStep) -> bool:
        return self._policy.expects and self._may_go_ahead(turn)

    def _may_go_ahead(self, turn: EstStep) -> bool:
        """True unless something wants to see each step as it is applied for good."""
        parts = self._parts
        return (
            parts.trace is None
            and self._session.captures.is_idle
            and not parts.feed.is_feeding
            and not self.decides_layout(turn.step)
        )

    def begin_ahead(self, turn: EstStep) -> bool:
        parts, began = self._parts, perf_counter()
        if not self._policy.may_pay or not self._may_go_ahead(turn):
            return False
        is_wanted = not self._undo.why_not() and self._policy.wants(self._undo.size_bytes)
        self._policy.judged(is_wanted=is_wanted)
        if not is_wanted or not turn.state.may_go_ahead:
            return False
        parts.watch.before_step(turn)
        self._undo.take()
        self._policy.copied(perf_counter() - began)
        if not self._session.begin_ahead(turn.step):
            return False
        self._ahead_since = began
        parts.figures.steps_ahead += 1
        if parts.figures.steps_ahead == 1:
            _log.info("the master answers late: from now on steps are applied ahead of its answer")
        self._show_buffers(turn)
        probes.reached("ahead", turn.step)
        return True

    def ahead_settled(self) -> None:
        """Note how much of the wait for the last step that was applied ahead has been hidden."""
        since, self._ahead_since = self._ahead_since, None
        if since is not None:
            self._policy.waited(max(0.0, self._session.ahead_settled_at - since))

    def undo(self) -> bool:
        parts = self._parts
        if not self._session.take_back():
            return False
        parts.buffers.take_back(self._undo.restore())
        parts.watch.replaced()
        parts.watch.after_step()
        parts.figures.steps_undone += 1
        _log.info("undid a step that was applied ahead and is lost", step=self._session.protocol.applied_step)
        self._ahead_since = None
        probes.reached("undone", self._session.protocol.applied_step)
        return True

    def at_late_boundary(self, turn: EstStep) -> None:
        """Save a checkpoint, and begin to serve a newcomer, with the buffers that the step began with."""
        self._waited_seconds = 0.0
        self.ahead_settled()
        parts, protocol = self._parts, self._session.protocol
        checkpoint, feed = protocol.checkpoint, protocol.following.feed
        saves = checkpoint is not None and checkpoint.step == turn.step
        feeds = feed is not None and feed.step == turn.step and not parts.feed.serves(feed)
        if not (saves or feeds):
            return
        after = [buffer.detach().clone() for buffer in parts.buffers.tensors]
        parts.buffers.restore()
        if saves and (message := self._session.take_checkpoint_request()) is not None:
            self.save(message)
        if feeds:
            parts.feed.at_boundary(turn.step)
        parts.buffers.show(after)
        if turn.buffer_versions:
            turn.buffer_versions = parts.buffers.versions()

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
        probes.all_reducing(turn.step, lambda: not self._session.protocol.is_running)

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
        self._policy.stepped(is_asked=turn.confirmed)
        parts.buffers.check_est_step(turn)
        parts.buffers.end_step(self._reducer.collectives.buffers)
        if parts.trace is not None:
            parts.trace.step_applied(turn.step)
        self._reducer.end_step()

    def applied(self, step: int) -> None:
        if self.decides_layout(step):
            self._reducer.set_layout(self._session.protocol.ready_order)
        probes.reached("applied", step)
