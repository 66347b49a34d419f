"""One global step as this worker runs it: a turn of the loop body for each of its ESTs.

    begin ─▶ for each EST: context in, mini-batch ─▶ body: forward, backward ─▶ context out
                                                              │ last EST: report, all-reduce
             complete or drop ◀── optimizer.step (waits for Prepared) ◀──┘

A step that is lost leaves no trace, and is run again from the same contexts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import perf_counter
from typing import Any, NoReturn

import torch

from elastane.runtime import probes
from elastane.runtime.forward_watch import ForwardWatch
from elastane.runtime.step_parts import StepParts
from elastane.runtime.step_reporter import StepReporter
from elastane.runtime.step_state import StepState
from elastane.runtime.turn import PartialGradientError, Turn
from elastane_common.errors import LoaderUseError, StepError


class StepRunner:
    """Runs the steps of one worker. Used by the script's thread.

    device: of the model.
    """

    def __init__(self, parts: StepParts, device: torch.device) -> None:
        self._parts = parts
        self._attendance, self._reducer = parts.attendance, parts.reducer
        self._protocol = parts.attendance.protocol
        self._reporter = StepReporter(parts, device)
        self.watch = parts.watch
        #: Forward pre-hook of the model.
        self.forwards = ForwardWatch(parts.buffers.tensors, self._before_backward)
        #: The turn that the loop body runs; None outside the loader loop.
        self.turn: Turn | None = None
        #: The step at which the current ring began.
        self.resume_step = 0

    # ------------------------------------------------------------------ the step

    def run(self) -> Iterator[Any]:
        """Run the next global step, yielding a mini-batch for each turn of the loop body.

        Returns with the step applied, or lost and to be run again.
        """
        began, state = perf_counter(), self._attendance.begin_step()
        self._begin(state)
        batches = self._parts.source.batches_in_step(state.step)
        for turn in (turns := self._turns(state, batches)):
            for turn.micro in range(batches):
                if self._protocol.changing:
                    self.drop()
                    return
                yield self._begin_batch(turn)
                if not self._reducer.backward_done:
                    self._refuse_next(turn)
                self._end_batch(turn)
        if state.is_claimed:
            self._complete(turns[-1])
            self._count(state, perf_counter() - began)
        else:
            self._give_up(state)

    def _begin(self, state: StepState) -> None:
        parts, step = self._parts, state.step
        self.watch.begin_step(step)
        begins = step == self.resume_step or step % parts.source.steps_per_epoch == 0
        parts.fingerprints.begin(step, whole=begins, alone=parts.attendance.is_alone)

    def _turns(self, state: StepState, batches: int) -> list[Turn]:
        """Return this worker's turns of the step, after those that are run for a comparison only.

        batches: mini-batches of an EST in the step.
        """
        parts = self._parts
        ranks = sorted(parts.contexts.now)
        own = [
            Turn(state, rank, slot, ends=slot == len(ranks) - 1, batches=batches)
            for slot, rank in enumerate(ranks)
        ]
        return parts.repeats.turns(parts.sentinel.turns(state.step, own), parts.contexts.now)

    def _begin_batch(self, turn: Turn) -> Any:
        """Put the EST's context in place before its first mini-batch, and return the next one."""
        parts = self._parts
        self.turn = turn
        self._reporter.begin(turn)
        first, guest = turn.micro == 0, turn.guest is not None
        if first:
            parts.buffers.begin_turn()
            # After another EST's turn the generators' states have just been captured, so `switch` need not
            # read them.
            switch = parts.generators.switch if turn.slot else parts.generators.exchange
            # A guest runs from the context that came with it, because its EST may be another worker's.
            states = (turn.guest or parts.contexts.now[turn.rank]).parts
            switch(states)
            parts.source.registry.exchange(states)
            self.forwards.begin()
        asked = perf_counter()
        batch, info = parts.repeats.begin(turn)
        parts.figures.data_wait_seconds += perf_counter() - asked
        turn.taken.append(info)
        # Only EST 0's order decides the bucket layout, as rank 0's does under DDP.
        record = turn.rank == 0 and turn.step == self._reducer.order_step and not guest
        self._reducer.begin_turn(
            turn.slot,
            turn.ends,
            record,
            first=first,
            sync=turn.sync,
            guest=guest,
            digest=turn.digest,
            report=self._reporter,
        )
        if parts.trace is not None and not guest:
            parts.trace.turn_began(turn.step, turn.rank, turn.micro, batch, parts.states())
        probes.reached("forward", turn.step)
        return batch

    def _end_batch(self, turn: Turn) -> None:
        """Check what the body did with the mini-batch; the last one of the step has been reported."""
        parts = self._parts
        self.watch.end_turn(turn)
        if turn.sync:
            parts.repeats.compare(turn)
        else:
            self._check_sums(turn)
        if not turn.last:
            self._reporter.end_batch(turn)

    def _complete(self, turn: Turn) -> None:
        """Complete an applied step after the loop body: adopt the new contexts and buffers.

        Raises StepError if random numbers were drawn after backward().
        """
        parts = self._parts
        reported = turn.state.contexts[turn.rank].parts
        if any(reported.get(key) != value for key, value in parts.states().items()):
            raise StepError(
                f"random numbers were drawn after backward() in step {turn.step}",
                hint="draw them before backward(), or inside `with job.isolated_rng():`",
                virtual_rank=turn.rank,
            )
        parts.buffers.check_turn(turn)
        parts.contexts.now = parts.contexts.known = turn.state.contexts
        parts.buffers.end_step(self._reducer.collectives.buffers)
        if parts.trace is not None:
            parts.trace.step_applied(turn.step)
        self.turn = None
        self._reducer.end_step()
        self._attendance.tell(lambda: self._protocol.end_apply(turn.step))
        if turn.step == self._reducer.order_step:
            self._reducer.set_layout(self._protocol.ready_order)
        probes.reached("applied", turn.step)

    def _count(self, state: StepState, seconds: float) -> None:
        """Count an applied step."""
        figures = self._parts.figures
        figures.step = state.step + 1
        figures.all_reduce_wait_seconds = self._reducer.collectives.waited_seconds
        figures.step_done(seconds, replayed=state.is_replay)
        self._attendance.spans.applied(state.step, seconds, replayed=state.is_replay)

    def _give_up(self, state: StepState) -> None:
        """Drop a step that was not applied: the ring changed, or the all-reduce failed.

        Raises StepError if neither did.
        """
        failure, lost = self._reducer.failure, not state.in_flight
        self.drop()
        if failure is not None:
            why = str(failure)
            self._attendance.tell(lambda: self._protocol.broken(state.step, why))
            # No further step can run in a broken ring: wait for the change, or for an eviction.
            self._attendance.wait_for(lambda: self._protocol.changing or not self._protocol.generation)
        elif not lost:
            raise StepError(
                f"the loop body of step {state.step} ended without optimizer.step()",
                hint="call backward() and optimizer.step() once for every mini-batch",
            )

    def drop(self) -> None:
        """Discard the step in flight: gradients, buffers, contexts after it."""
        self._attendance.lose_step()
        self._reducer.drop()
        self._parts.buffers.restore()
        self.turn = None

    # ------------------------------------------------------------------ what the loop body calls

    def claim(self) -> bool:
        """True if the global step is applied in this turn; waits until all contexts are durable.

        False on turns other than the worker's last and after a ring change; once True, it stays True for the
        turn. Raises StepError outside the loop and before backward().
        """
        turn = self.turn
        if turn is None:
            raise StepError("optimizer.step() was called outside the loader loop")
        state = turn.state
        if not turn.last or not state.in_flight or self.failed:
            return False
        if not state.is_reported:
            raise StepError(
                f"optimizer.step() came before backward() in step {turn.step}",
                hint="each turn of the loop is forward, backward, optimizer.step()",
            )
        if not state.is_claimed:
            self.watch.before_step(turn)
            asked = perf_counter()
            self._attendance.wait_for(lambda: self._protocol.changing or self._protocol.may_apply(turn.step))
            self._parts.figures.prepared_wait_seconds += perf_counter() - asked
            probes.reached("prepared", turn.step)
            if self._attendance.begin_apply(turn.step) and turn.rank != 0:
                # From here on the body acts on the model once a step, so it must see rank 0's buffers.
                self._parts.buffers.show(self._reducer.collectives.buffers)
        return state.is_claimed

    def log(self, values: dict[str, Any]) -> None:
        """Record values of the EST and step now running, as part of the committed history.

        Raises StepError outside the loop and once the step is reported, which may be at the first gradient of
        the worker's last backward: hooks that run in backward cannot log.
        """
        turn = self.turn
        if turn is None:
            raise StepError(
                "job.log was called outside the loader loop",
                hint="log inside the loop, before loss.backward()",
            )
        if turn.state.is_reported:
            raise StepError(
                f"job.log({', '.join(values)}) came after backward() of step {turn.step}",
                hint="call job.log before loss.backward(), so that the values are stored with the step",
            )
        for name, value in values.items():
            # Keep tensors until the step is reported: .item() would wait for the GPU.
            turn.metrics[name] = value.detach() if isinstance(value, torch.Tensor) else float(value)

    def gradients_used(self) -> None:
        """Note that an optimizer, or a GradScaler, has used the turn's gradients."""
        if self.turn is not None and self.turn.sync:
            self._reducer.gradients_used()

    @property
    def failed(self) -> bool:
        """True if the current step's all-reduce has failed."""
        return self._reducer.failure is not None

    @property
    def backward_done(self) -> bool:
        """True if backward() of the current mini-batch is done."""
        return self._reducer.backward_done

    def last_values(self) -> dict[str, float]:
        """Return the means of the last step's logged values over this worker's ESTs."""
        values: dict[str, list[float]] = {}
        for task in self._protocol.step.tasks:
            for name, value in task.metrics.items():
                values.setdefault(name, []).append(value)
        return {name: sum(found) / len(found) for name, found in values.items()}

    # ------------------------------------------------------------------ checks

    def _before_backward(self) -> Turn | None:
        """Return the running turn until its backward() is done, then None."""
        return None if self._reducer.backward_done else self.turn

    def _check_sums(self, turn: Turn) -> None:
        """Raise PartialGradientError if the script changed gradients that are still being accumulated."""
        name = self._reducer.written_between()
        if name is not None:
            raise PartialGradientError(
                f"the gradient of parameter {name} was changed after backward() in step {turn.step}, in "
                f"mini-batch {turn.micro + 1} of {turn.batches} that are summed for the step",
                hint=(
                    "change the averaged gradients, once per step, in a hook of the optimizer: "
                    "optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: ...)"
                ),
                virtual_rank=turn.rank,
                parameter=name,
            )

    def _refuse_next(self, turn: Turn) -> NoReturn:
        """Raise LoaderUseError for a mini-batch requested before backward(); names the caller's line."""
        asks = sys._getframe(3)
        raise LoaderUseError(
            f"{asks.f_code.co_filename}:{asks.f_lineno} requests the next mini-batch from the loader "
            f"before backward() of the current one, in step {turn.step}",
            hint=(
                "call backward() once for every mini-batch, and put nothing that reads ahead between "
                "loader and loop (a prefetcher, list(loader), tee): the DataLoader itself reads ahead, "
                "with num_workers, prefetch_factor and pin_memory"
            ),
        )
