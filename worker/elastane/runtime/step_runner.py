"""One global step as this worker runs it: a turn of the loop body for each of its ESTs.

    begin ─▶ for each EST: context in, mini-batch ─▶ body: forward, backward ─▶ context out
                                                              │ last EST: report, all-reduce
             complete or drop ◀── optimizer.step (waits for Prepared) ◀──┘

`StepBody` decides what is reported, applied and dropped. A step that is lost leaves no trace, and is run
again from the same contexts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NoReturn

import torch

from elastane.runtime import probes
from elastane.runtime.blocking import finish
from elastane.runtime.epoch_progress import LastValues, last_values
from elastane.runtime.est_memory import EstMemory
from elastane.runtime.est_step import EstStep, PartialGradientError
from elastane.runtime.forward_watch import ForwardWatch
from elastane.runtime.step_actions import StepActions
from elastane.runtime.step_body import StepBody
from elastane.runtime.step_parts import StepParts
from elastane.runtime.step_speed import StepSpeed
from elastane.runtime.step_state import StepState
from elastane_common.errors import LoaderUseError, StepError
from elastane_proto.v1 import ring_pb2


class StepRunner:
    """Runs the steps of one worker. Used by the script's thread.

    device: of the model.
    """

    def __init__(self, parts: StepParts, device: torch.device) -> None:
        self._parts = parts
        self._worker_session, self._reducer = parts.worker_session, parts.reducer
        self._protocol = parts.worker_session.protocol
        self._actions = StepActions(parts)
        self._body: StepBody[EstStep] = StepBody(
            self._protocol,
            parts.contexts,
            parts.source.steps_per_epoch,
            self._actions,
            reports_late=None if device.type == "cpu" else True,
        )
        self._speed = StepSpeed(device, parts.figures)
        self._memory = EstMemory(device, parts.reducer.params, parts.figures)
        self._reducer.backward_ended = self._speed.backward_ended
        #: The step has no turns but those of this worker's ESTs.
        self._is_ordinary = True
        #: The states of generators are those last captured: only code of ours has run since.
        self._is_captured = False
        self.watch = parts.watch
        #: Forward pre-hook of the model.
        self.forwards = ForwardWatch(parts.buffers.tensors, self._before_backward)
        #: The turn that the loop body runs; None outside the loader loop.
        self.est_step: EstStep | None = None
        #: The step at which the current ring began.
        self.resume_step = 0

    # ------------------------------------------------------------------ the step

    def run(self) -> Iterator[Any]:
        """Run the next global step, yielding a mini-batch for each turn of the loop body.

        Returns with the step applied, or lost and to be run again.
        """
        began, state = perf_counter(), self._body.begin()
        self._speed.begin()
        self._begin(state)
        for est_step in self._body.mini_batches(self._est_steps(state)):
            yield self._begin_batch(est_step)
            if not self._reducer.backward_done:
                self._refuse_next(est_step)
            self._end_batch(est_step)
        self._speed.turns_ended()
        applied = self._is_captured = finish(self._body.end())
        self.est_step = None
        if applied:
            self._count(state, perf_counter() - began)

    def _begin(self, state: StepState) -> None:
        parts, step = self._parts, state.step
        self.watch.begin_step(step)
        begins = step == self.resume_step or step % parts.source.steps_per_epoch == 0
        self._is_captured = self._is_captured and not begins
        parts.fingerprints.begin(step, whole=begins, alone=parts.worker_session.is_alone)

    def _est_steps(self, state: StepState) -> list[EstStep]:
        """Return this worker's turns of the step, after those that are run for a comparison only."""
        parts = self._parts
        own = EstStep.of_step(state, parts.contexts.now, parts.source.batches_in_step(state.step))
        turns = parts.repeats.turns(parts.sentinel.turns(state.step, own), parts.contexts.now)
        self._is_ordinary = len(turns) == len(own)
        return turns

    def _begin_batch(self, est_step: EstStep) -> Any:
        """Put the EST's context in place before its first mini-batch, and return the next one."""
        parts = self._parts
        self._speed.mini_batch_began()
        self.est_step = est_step
        first, guest = est_step.micro == 0, est_step.guest is not None
        if first:
            parts.buffers.begin_backward()
            # After another turn of this worker's ESTs the generators' states have just been captured, so
            # `switch` need not read them.
            captured, self._is_captured = est_step.slot or self._is_captured, False
            switch = parts.generators.switch if captured else parts.generators.exchange
            # A guest runs from the context that came with it, because its EST may be another worker's.
            states = (est_step.guest or parts.contexts.now[est_step.rank]).parts
            switch(states)
            parts.source.registry.exchange(states)
            self.forwards.begin()
        asked = perf_counter()
        batch, info = parts.repeats.begin(est_step)
        parts.figures.data_wait_seconds += perf_counter() - asked
        self._worker_session.captures.est_begins(est_step.rank)
        est_step.taken.append(info)
        record = est_step.rank == 0 and not guest and self._actions.decides_layout(est_step.step)
        self._reducer.begin_backward(
            est_step.slot,
            est_step.ends,
            record,
            first=first,
            sync=est_step.sync,
            guest=guest,
            digest=est_step.digest,
            report=self._body,
        )
        if parts.trace is not None and not guest:
            parts.trace.mini_batch_began(est_step.step, est_step.rank, est_step.micro, batch, parts.states())
        probes.reached("forward", est_step.step)
        return batch

    def _end_batch(self, est_step: EstStep) -> None:
        """Check what the body did with the mini-batch; the last one of the step has been reported."""
        parts = self._parts
        self._worker_session.captures.est_ends()
        self.watch.end_est_step(est_step)
        if est_step.sync:
            parts.repeats.compare(est_step)
        else:
            self._check_sums(est_step)
        if not est_step.last:
            self._body.end_batch(est_step)

    def _count(self, state: StepState, seconds: float) -> None:
        """Count an applied step."""
        figures = self._parts.figures
        figures.step = self._protocol.applied_step
        figures.all_reduce_wait_seconds = self._reducer.collectives.waited_seconds
        figures.step_done(seconds, replayed=state.is_replay)
        self._speed.applied(
            seconds,
            ests=len(self._parts.contexts.now),
            workers=len(self._worker_session.members),
            generation=figures.generation,
            counts=self._is_ordinary and not state.is_replay,
        )
        self._memory.applied(ests=len(self._parts.contexts.now), generation=figures.generation)
        self._worker_session.spans.applied(state.step, seconds, replayed=state.is_replay)

    def saves_with(self, save: Callable[[ring_pb2.Checkpoint], None]) -> None:
        """Set what saves this worker's shard of a checkpoint, between two steps."""
        self._actions.save = save

    def begin_training(self, total_steps: int) -> None:
        """Note how many steps the training has."""
        self._body.total_steps = total_steps

    def take_back(self) -> bool:
        """Undo the step that was applied ahead of its Prepared, if it is lost; False if there is none."""
        return self._body.take_back()

    def stepped(self, est_step: EstStep) -> bool:
        """True if the turn has applied its step, for good: waits for Prepared if it was applied ahead.

        Called where the script asks, or does something that cannot be undone.
        """
        est_step.confirmed = True
        return finish(self._body.is_applied(est_step))

    def decided_step(self, est_step: EstStep) -> int:
        """Return the turn's step, for the script; waits if the step before was applied ahead."""
        est_step.confirmed = True
        return finish(self._body.decided_step(est_step))

    def drop(self) -> None:
        """Discard the step in flight: gradients, buffers, contexts after it."""
        self._actions.lose_step()
        self._actions.drop()
        self.est_step = None

    # ------------------------------------------------------------------ what the loop body calls

    def begin_apply(self) -> bool:
        """True if the global step is applied in this turn; waits until all contexts are durable.

        False on turns other than the worker's last and after a ring change; once True, it stays True for the
        turn. Raises StepError outside the loop and before backward().
        """
        if self.est_step is None:
            raise StepError("optimizer.step() was called outside the loader loop")
        if not self.est_step.last:
            return False
        return finish(self._body.begin_apply(self.est_step))

    def before_optimizer(self, original: Callable[..., Any], *arguments: Any) -> None:
        """Note that `original`, a method of an optimizer or of a GradScaler, is called next."""
        owner = getattr(original, "__self__", None)
        if self.est_step is not None and isinstance(owner, torch.optim.Optimizer):
            given = tuple(argument for argument in arguments if argument is not None)
            self._parts.feed.before_step(self.est_step.step, owner, given)

    def after_optimizer(self) -> None:
        """Note that the method of an optimizer or of a GradScaler has returned."""
        self._parts.feed.after_step()
        self._speed.optimizer_stepped()

    def once_began(self) -> None:
        """Note that the script has asked `job.stepped`, and that it is true."""
        self._speed.once_began()

    def log(self, values: dict[str, Any]) -> None:
        """Record values of the EST and step now running, as part of the committed history.

        Raises StepError outside the loop and once the step is reported, which may be at the first gradient of
        the worker's last backward: hooks that run in backward cannot log.
        """
        est_step = self.est_step
        if est_step is None:
            raise StepError(
                "job.log was called outside the loader loop",
                hint="log inside the loop, before loss.backward()",
            )
        if est_step.state.is_reported:
            raise StepError(
                f"job.log({', '.join(values)}) came after backward() of step {est_step.step}",
                hint="call job.log before loss.backward(), so that the values are stored with the step",
            )
        for name, value in values.items():
            # Keep tensors until the step is reported: .item() would wait for the GPU.
            est_step.metrics[name] = value.detach() if isinstance(value, torch.Tensor) else float(value)

    def gradients_used(self) -> None:
        """Note that an optimizer, or a GradScaler, has used the turn's gradients."""
        if self.est_step is not None and self.est_step.sync:
            self._reducer.gradients_used()

    @property
    def failed(self) -> bool:
        """True if the current step's all-reduce has failed."""
        return self._reducer.failure is not None

    @property
    def backward_done(self) -> bool:
        """True if backward() of the current mini-batch is done."""
        return self._reducer.backward_done

    def rest(self) -> bool:
        """There is nothing that members do together after the last epoch."""
        return True

    def last_values(self) -> LastValues:
        """Return the means of the last step's logged values over this worker's ESTs."""
        return last_values(self._protocol.attempts.newest.tasks, self._parts.source.num_ests)

    # ------------------------------------------------------------------ checks

    def _before_backward(self) -> EstStep | None:
        """Return the running turn until its backward() is done, then None."""
        return None if self._reducer.backward_done else self.est_step

    def _check_sums(self, est_step: EstStep) -> None:
        """Raise PartialGradientError if the script changed gradients that are still being accumulated."""
        name = self._reducer.written_between()
        if name is not None:
            raise PartialGradientError(
                f"the gradient of parameter {name} was changed after backward() in step {est_step.step}, in "
                f"mini-batch {est_step.micro + 1} of {est_step.batches} that are summed for the step",
                hint=(
                    "change the averaged gradients, once per step, in a hook of the optimizer: "
                    "optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: ...)"
                ),
                virtual_rank=est_step.rank,
                parameter=name,
            )

    def _refuse_next(self, est_step: EstStep) -> NoReturn:
        """Raise LoaderUseError for a mini-batch requested before backward(); names the caller's line."""
        asks = sys._getframe(3)
        raise LoaderUseError(
            f"{asks.f_code.co_filename}:{asks.f_lineno} requests the next mini-batch from the loader "
            f"before backward() of the current one, in step {est_step.step}",
            hint=(
                "call backward() once for every mini-batch, and put nothing that reads ahead between "
                "loader and loop (a prefetcher, list(loader), tee): the DataLoader itself reads ahead, "
                "with num_workers, prefetch_factor and pin_memory"
            ),
        )
