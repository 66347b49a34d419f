"""One global step of a pipeline as this worker runs it: one turn of the loop body.

    begin ─▶ body: pipe(batch) ─▶ each wave: load the home ESTs' mini-batches, run the wave; then the sums
                                       └─ the ring ends: take part in the change, and run the step again
             body: optimizer.step() ─▶ report, wait for Prepared, apply
             ─▶ complete, or drop

`PipelineBody` decides what is reported, applied and dropped. A lost step has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from elastane.collective.ring_errors import RingAborted, RingError
from elastane.data.source import BatchInfo
from elastane.pipeline.executor import MicroBatch
from elastane.pipeline.link_meter import LinkMeter
from elastane.rng import Parts
from elastane.runtime import probes
from elastane.runtime.blocking import finish
from elastane.runtime.epoch_progress import LastValues, last_values
from elastane.runtime.est_step import EstStep
from elastane.runtime.pipeline_body import PipelineBody
from elastane.runtime.pipelines.actions import PipelineActions
from elastane.runtime.pipelines.batch import PipelineBatch
from elastane.runtime.pipelines.errors import PipelineBodyError
from elastane.runtime.pipelines.parts import PipelineParts
from elastane.runtime.pipelines.pipe import mean_of
from elastane.runtime.pipelines.speed import PipelineSpeed, StepBlocks
from elastane.runtime.repeat_check import compare_batches
from elastane.runtime.step_state import StepState
from elastane.runtime.turn import Turn
from elastane_common.errors import StepError

LOSS = "loss"
"""Name under which each EST's loss is logged."""


class PipelineRunner:
    """Runs the steps of one worker. Used by the script's thread.

    device: of the units. Two callbacks are set when the job is assembled: settle takes part in a change of
    the ring; rest takes part in other members' evaluations until none is left, and returns False if the ring
    has changed.
    """

    def __init__(self, parts: PipelineParts, device: torch.device) -> None:
        self._parts = parts
        self._worker_session, self._executor = parts.worker_session, parts.executor
        self._protocol = parts.worker_session.protocol
        self._actions = PipelineActions(parts)
        self._body: PipelineBody[Turn] = PipelineBody(
            self._protocol, parts.contexts, parts.source.steps_per_epoch, self._actions
        )
        self.speed = PipelineSpeed(device, parts.figures, parts.prepared.options.memory_bytes)
        self.links = LinkMeter()
        self.settle: Callable[[], None] = lambda: None
        self.rest: Callable[[], bool] = lambda: True
        self.watch = parts.watch
        self._state = StepState()
        self._batch: PipelineBatch | None = None
        self._turns: list[Turn] = []
        #: Values logged before `pipe(batch)`.
        self._logged: dict[str, Any] = {}
        self._mean: Tensor | None = None
        #: True in a step that runs one forward twice and loads one mini-batch twice, to compare them.
        self._twice = False
        #: The turn of the loop body; None outside of the loader loop. Its rank is that of the first home EST.
        self.est_step: EstStep | None = None
        #: The step at which the current ring began.
        self.resume_step = 0

    # ------------------------------------------------------------------ the step

    def run(self) -> Iterator[PipelineBatch]:
        """Run the next global step, yielding its batch to the loop body once.

        Returns with the step applied, or lost and to be run again.
        """
        began = perf_counter()
        self._begin()
        self._batch = batch = PipelineBatch(self._state.step)
        self._mean, self._logged = None, {}
        self.watch.begin_step()
        try:
            yield batch
        finally:
            self._parts.prepared.optimizer.show_held()
        batch.check_used()
        if self.est_step is not None:
            self.watch.end_step(self.est_step)
        applied = finish(self._body.end())
        state, self.est_step, self._batch = self._state, None, None
        if applied:
            self._count(state, perf_counter() - began)

    def _begin(self) -> None:
        """Begin an attempt at the next step."""
        parts = self._parts
        parts.absent.hide()
        self._state = self._body.begin()
        self._turns = []
        self._twice = parts.repeats.begin_step()
        step = self._state.step
        begins = step == self.resume_step or step % parts.source.steps_per_epoch == 0
        parts.fingerprints.begin(step, whole=begins, alone=parts.worker_session.is_alone)
        ranks, batches = sorted(parts.contexts.now), parts.source.batches_in_step(self._state.step)
        self.est_step = EstStep(self._state, ranks[0], 0, ends=True, batches=batches, micro=batches - 1)
        # The body, between the loader and pipe(batch), runs with the first EST's states.
        parts.put(parts.contexts.now[ranks[0]].parts)
        self._before = parts.states()

    def compute(self, batch: PipelineBatch) -> Tensor:
        """Run all mini-batches of the step through the units, up to the sums; returns the mean of the losses.

        If the ring changes meanwhile, the new one is joined here and the step repeated, so that the script
        sees its step once. Returns NaN only if the job continues from another step, which the loop then runs.
        """
        if batch is not self._batch:
            raise PipelineBodyError(
                "pipe was called outside the loop, or with a batch of another turn",
                hint="call it once in each turn of the loop over the loader, with what the loader yields",
            )
        batch.use()
        self._parts.scaler.begin_step()
        self._check_draws("between the loader and pipe(batch)")
        while True:
            try:
                if self._protocol.changing:
                    raise RingAborted("the ring changes")
                return self._attempt()
            except RingError as error:
                if not self._begin_again(error):
                    return torch.tensor(math.nan)

    def _begin_again(self, error: RingError) -> bool:
        """Take part in the ring change that ended the attempt, and begin another attempt.

        Returns False, with the step lost, if the job continues from another step.
        """
        step, self._actions.failure, lost = self._state.step, error, self.est_step
        finish(self._body.give_up())
        self.settle()
        if self._protocol.applied_step != step:
            self.est_step = lost
            return False
        self._begin()
        return True

    def _attempt(self) -> Tensor:
        parts, executor, step = self._parts, self._executor, self._state.step
        turns = Turn.of_step(self._state, parts.contexts.now, parts.source.batches_in_step(step))
        states = {turn.rank: dict(parts.contexts.now[turn.rank].parts) for turn in turns}
        executor.begin_step(step, twice=self._twice)
        for micro in range(turns[0].batches):
            loaded: dict[int, MicroBatch] = {}
            for turn in turns:
                turn.micro = micro
                loaded[turn.rank], states[turn.rank] = self._load(turn, states[turn.rank])
            if micro == 0:
                probes.reached("forward", step)
            last = micro == turns[0].batches - 1
            items = parts.source.registry.capture()
            ends = executor.run_wave(micro, loaded, last=last)
            self._check_items(items)
            for turn in turns:
                states[turn.rank] |= ends[turn.rank].parts
                if parts.trace is not None and not last:
                    parts.trace.mini_batch_ended(step, turn.rank, micro, states[turn.rank], {})
        executor.sum_gradients()
        parts.scaler.join(executor)
        self._mean = mean_of(executor.losses)
        for turn in turns:
            turn.states = states[turn.rank]
            turn.metrics = {LOSS: executor.losses[turn.rank]}
        parts.put(turns[-1].states)
        self._turns = turns
        if self._twice:
            parts.repeats.done()
        self._body.computed(turns)
        self._note(self._logged)
        parts.absent.show()
        return self._mean

    def _load(self, turn: Turn, states: Parts) -> tuple[MicroBatch, Parts]:
        """Return the EST's next mini-batch, and its states after loading. states: those before."""
        parts = self._parts
        parts.put(states)
        asked = perf_counter()
        batch, info = parts.source.begin(turn.rank)
        if self._twice and turn.slot == 0 and turn.micro == 0 and parts.source.remakes(turn.rank):
            self._remake(turn, states, batch, info)
        parts.figures.data_wait_seconds += perf_counter() - asked
        turn.taken.append(info)
        if parts.trace is not None:
            parts.trace.mini_batch_began(turn.step, turn.rank, turn.micro, batch, parts.states())
        given, target = parts.prepared.options.split(batch)
        turn.loader_parts |= parts.source.finish(turn.rank)
        generators = parts.generators.capture()
        return MicroBatch(given, target, generators), generators | parts.source.registry.capture()

    def _remake(self, turn: Turn, before: Parts, batch: Any, info: BatchInfo) -> None:
        """Load a mini-batch again from the states before it. Raises RepeatDiffersError if it differs."""
        parts = self._parts
        after = parts.states()
        parts.put(before)
        again = parts.source.remake(turn.rank, info)
        drawn = parts.states()
        parts.put(after)
        compare_batches(turn, batch, again, drew_the_same=drawn == after)

    def _count(self, state: StepState, seconds: float) -> None:
        """Count an applied step."""
        figures = self._parts.figures
        figures.step = state.step + 1
        figures.step_done(seconds, replayed=state.is_replay)
        self.speed.applied(
            seconds,
            lambda: self._executor.unit_seconds,
            lambda: self._executor.overhead_seconds,
            lambda: self.links.bytes_per_second,
            StepBlocks(state.step, self._executor.began_at, tuple(self._executor.block_seconds)),
            workers=len(self._worker_session.members),
            generation=figures.generation,
            is_replay=state.is_replay,
        )
        self._worker_session.spans.applied(state.step, seconds, replayed=state.is_replay)

    def drop(self) -> None:
        """Discard the step in flight."""
        self._parts.absent.hide()
        self._actions.lose_step()
        self._actions.drop()
        self.est_step = None

    # ------------------------------------------------------------------ what the loop body calls

    def begin_training(self, total_steps: int) -> None:
        """No step of a pipeline depends on how many follow."""

    def stepped(self, est_step: EstStep) -> bool:
        """True if the turn has applied its step, for good."""
        return est_step.applied

    def decided_step(self, est_step: EstStep) -> int:
        """Return the turn's step, for the script."""
        return est_step.step

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Context manager for the optimizer's step, in which its groups have only local parameters."""
        with self._parts.absent.groups_hidden():
            yield

    def begin_apply(self) -> bool:
        """Report the step and wait until all contexts are durable; return True if it is applied in this turn.

        Returns False after a ring change; once True, it stays True for the turn. Raises StepError outside of
        the loop and before pipe(batch).
        """
        if self.est_step is None:
            raise StepError("optimizer.step() was called outside the loader loop")
        turn, trace = self._turns[-1] if self._turns else self.est_step, self._parts.trace
        is_first = not self._state.may_step
        may_step = finish(self._body.begin_apply(turn))
        if trace is not None and may_step and is_first:
            for one in self._turns:
                trace.mini_batch_ended(one.step, one.rank, one.micro, one.states, one.metrics)
        return may_step

    def clip(self, *arguments: Any) -> Tensor:
        """Clip the averages; return the norm, or NaN if the ring has ended and the step is lost."""
        if not self.has_averages("pipe.clip_grad_norm_"):
            return torch.tensor(math.nan)
        try:
            return self._executor.clip_grad_norm_(*arguments)
        except RingError as error:
            self._actions.failure = error
            return torch.tensor(math.nan)

    def has_averages(self, what: str, *, applying: bool = False) -> bool:
        """True if the averages of the step are in p.grad; False if the step is lost.

        what: the intended use, for the error. applying: also allowed while the optimizer steps. Raises
        PipelineBodyError in any other place.
        """
        state = self._state
        early = state.in_flight and not self._turns
        late = state.is_reported and not (applying and state.may_step)
        if self.est_step is None or early or late:
            raise PipelineBodyError(
                f"{what} was called outside of a step, or not between pipe(batch) and optimizer.step()",
                hint="each turn of the loop is pipe(batch), pipe.clip_grad_norm_(...), optimizer.step()",
            )
        return state.in_flight and self._actions.failure is None

    def log(self, values: dict[str, Any]) -> None:
        """Record values of the step for each home EST, as part of the committed history.

        Raises StepError outside the loop and once the step is reported, in optimizer.step().
        """
        if self.est_step is None:
            raise StepError(
                "job.log was called outside the loader loop",
                hint="log inside the loop, before optimizer.step()",
            )
        if self._state.is_reported:
            raise StepError(
                f"job.log({', '.join(values)}) came after optimizer.step() of step {self._state.step}",
                hint="call job.log before optimizer.step(), so that the values are stored with the step",
            )
        if self._turns:
            self._note(values)
        else:
            self._logged |= values

    def _note(self, values: dict[str, Any]) -> None:
        losses = self._executor.losses
        for name, value in values.items():
            for turn in self._turns:
                own = losses[turn.rank] if value is self._mean else value
                turn.metrics[name] = own.detach() if isinstance(own, Tensor) else float(own)

    def before_optimizer(self, *_: object) -> None:
        """Do nothing: no newcomer follows a pipeline."""

    def after_optimizer(self) -> None:
        """Do nothing: a member has one turn in a step, and others do not compute the same."""

    def once_began(self) -> None:
        """Do nothing, as in `after_optimizer`."""

    def gradients_used(self) -> None:
        """Do nothing."""

    @property
    def losses(self) -> list[Tensor]:
        """Losses of all ESTs in the last mini-batch of the last step."""
        return self._executor.losses

    @property
    def failed(self) -> bool:
        """True if the current step's ring has ended."""
        return self._actions.failure is not None

    @property
    def backward_done(self) -> bool:
        """True if the step's sums are complete."""
        return bool(self._turns)

    def last_values(self) -> LastValues:
        """Return the means of the last step's logged values over this worker's home ESTs."""
        return last_values(self._protocol.attempts.newest.tasks, self._parts.source.num_ests)

    # ------------------------------------------------------------------ checks

    def _check_draws(self, where: str) -> None:
        if self._parts.states() != self._before:
            raise PipelineBodyError(
                f"random numbers were drawn {where}, in step {self._state.step}",
                hint="draw them in the dataset, in split= or in a unit, where each EST has its own; or inside"
                " `with job.isolated_rng():`",
            )

    def _check_items(self, before: Parts) -> None:
        """Raise PipelineBodyError if a unit has changed a registered item: the change would be lost."""
        now = self._parts.source.registry.capture()
        if changed := [name for name, state in now.items() if before.get(name) != state]:
            raise PipelineBodyError(
                f"a unit changed {', '.join(name.removeprefix('item/') for name in changed)}, which is"
                " registered: units run on other workers than an EST's data",
                hint="let units draw from torch's, NumPy's and Python's global generators",
            )
