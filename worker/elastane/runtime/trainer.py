"""One worker's part in elastic training: joins rings, runs its ESTs, replays steps.

The script's loop body is the stock one. Everything elastic happens where the body requests the next batch
from the loader: EST contexts are swapped, ring changes are carried out, a lost step is started again from its
contexts. The body only sees more mini-batches.

    turns():  settle (ring change, hand-over, checkpoint) ─▶ for each of my ESTs: context in, batch
                    ▲                                              │ body: forward, backward
                    │                                              ▼
              complete or drop ◀── optimizer.step (waits for Prepared) ◀── report, all-reduce

Everything here runs in the script's thread; the master's messages wait in `Attendance`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any, NoReturn

import structlog
import torch

from elastane.collective.output_watch import OutputWatch
from elastane.collective.reducer import Reducer
from elastane.context import EstContext
from elastane.data.source import BatchSource
from elastane.errors import LoaderUseError, StepError, UnsupportedError
from elastane.observe.figures import WorkerFigures
from elastane.observe.reporting import FigureReport
from elastane.rng import Generators, Parts
from elastane.runtime import probes
from elastane.runtime.attendance import Attendance
from elastane.runtime.boundary import StepBoundary
from elastane.runtime.carried import CarriedValues
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.epoch_progress import EpochProgress, ProgressLine
from elastane.runtime.fingerprints import Fingerprints
from elastane.runtime.forward_watch import ForwardWatch
from elastane.runtime.interval import BuffersChangedError, Interval, reported_against
from elastane.runtime.leaving import when_left
from elastane.runtime.options import TrainOptions
from elastane.runtime.prepared import Prepared, is_compiled
from elastane.runtime.repeat_check import RepeatCheck
from elastane.runtime.sampler_epoch import SamplerEpoch
from elastane.runtime.saving import CheckpointSaver, initial_contexts
from elastane.runtime.sentinel import Sentinel
from elastane.runtime.signature import script_signature
from elastane.runtime.tracing import open_trace
from elastane.runtime.turn import EpochsClosed, PartialGradientError, Turn
from elastane.runtime.turn_watch import TurnWatch
from elastane.state.codec import Exported
from elastane.state.digests import same_bits
from elastane.state.train_state import TrainState
from elastane_proto.v1 import ring_pb2

_log = structlog.get_logger(__name__)

_DRAWN_IN_BACKWARD = (
    "random numbers were drawn in backward(): from now on steps are reported at the end of backward()"
)
_LOOK = "to inspect a batch, use a separate DataLoader: next(iter(DataLoader(dataset, ...)))"
SENT_AWAY_SECONDS = 0.5
"""How long a drained worker waits for a file that is being written."""


class Trainer:
    """The training loop behind `Job.prepare`; the job and the loader call `join`, `turns` and `finish`."""

    def __init__(
        self,
        environment: WorkerEnvironment,
        prepared: Prepared,
        options: TrainOptions,
        source: BatchSource,
        carried: CarriedValues,
        *,
        seed: int | None,
    ) -> None:
        model = prepared.model
        self._steps_max = environment.steps_max
        self._model = model
        self._source = source
        self._registry = source.registry
        self._num_ests = environment.ests
        self._closed_epochs = EpochsClosed()
        self._carried = carried
        self._figures = WorkerFigures()
        self._figure_report = FigureReport(self._figures, environment.metrics_file)
        device = next(iter(model.parameters())).device
        self._generators = Generators(device)
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self.watch = TurnWatch(prepared, source.registry.objects, environment.ests)
        self._module_buffers = list(model.buffers())
        #: EST 0's buffers at the start of the current step, from which every EST's forward starts.
        self._rank0_buffers: list[torch.Tensor] = []
        #: The module holds these buffers, and no code of the script has run since they were copied there.
        self._buffers_shown = False
        self._take_buffers()
        self._trace = open_trace(f"elastic-{environment.worker_id}", prepared, source.registry)
        self._reducer = Reducer(
            [p for _, p in named],
            [name for name, _ in named],
            self._num_ests,
            self._module_buffers,
            **options.ddp_arguments(),
        )
        self._forwards = ForwardWatch(self._module_buffers, self._before_backward)
        # a hook would split its graph, and compiled models have no reentrant checkpointing
        if not is_compiled(model):
            model.register_forward_hook(OutputWatch(self._reducer))
            if self._num_ests > 1 and self._module_buffers:
                model.register_forward_pre_hook(self._forwards)
        self._state = TrainState(
            model,
            prepared.optimizers,
            prepared.schedulers,
            {
                **prepared.extras,
                "elastane.epochs": self._closed_epochs,
                "elastane.gradients": self._reducer.gradients,
            },
        )
        self._fingerprints = Fingerprints(
            self._state, lambda: self._rank0_buffers, environment.fingerprint_steps
        )
        self._state.export()  # fail now, and not at the first hand-over, for state that cannot be carried
        self._saver = CheckpointSaver(
            lambda message: self._attendance.tell(lambda: self._protocol.saved(message))
        )
        self._attendance = Attendance(
            environment,
            backend="nccl" if device.type == "cuda" else "gloo",
            signature=lambda: script_signature(
                prepared, options, source, self.epochs, max_steps=self._max_steps, carried=carried.values
            ),
            write_manifest=lambda message: self._saver.write_manifest(message, num_ests=self._num_ests),
            close=self.close,
            details=self._fingerprints.details,
        )
        self._protocol = self._attendance.protocol
        initial = initial_contexts(self._generators, self._registry, self._num_ests, seed)
        #: Tracks the script's code between two epochs, i.e. whenever no loader loop runs.
        self.interval = Interval(self._generators, self._registry)
        self._sentinel = Sentinel(self._attendance, source)
        self._repeats = RepeatCheck(
            source, self._generators, self._registry, enabled=environment.repeat_check
        )
        self._boundary = StepBoundary(
            environment.worker_id,
            self._attendance,
            self._state,
            self._reducer,
            self._saver,
            initial,
            device if device.type == "cuda" else torch.device("cpu"),
            drop_step=self._drop_step,
            replaced=self._replaced,
            entered=self._entered,
            interval=self.interval,
            begins_epoch=self._begins_epoch,
            figures=self._figures,
        )
        #: True if steps are reported at the end of their last backward. If backward draws no random numbers
        #: (None: not known yet, the next backward shows it), the contexts after the step are known when
        #: backward begins. On a GPU the host runs ahead of the device anyway.
        self._reports_late: bool | None = None if device.type == "cpu" else True
        self._contexts: dict[int, EstContext] = {}
        #: Bases of the deltas in reports of the current step, as the master has them.
        self._known: dict[int, EstContext] = {}
        self.turn: Turn | None = None
        self.epoch = 0
        self.epochs = 0
        #: The epoch that the script's variables belong to, as of its beginning.
        self.values_epoch = 0
        self._max_steps = 0
        #: The epoch whose loader loop this worker ran last.
        self._looped_epoch = -1
        #: The step at which the current ring began.
        self._resume_step = 0
        #: State received in the middle of an epoch's loader loop from workers that had already run its
        #: closing code.
        self._closed_elsewhere: Exported | None = None
        #: Called for each ring entered with whether this worker leads it.
        self.on_ring: Callable[[bool], None] = lambda leads: None
        self.on_close: Callable[[], None] = lambda: None
        self.shows_progress = False
        self._progress: ProgressLine | None = None
        #: The loader is being iterated, or its loop was left early.
        self._iterating = False
        #: Records the epochs that the script passes to its own sampler, if that has `set_epoch`.
        self.sampler_epoch: SamplerEpoch | None = None
        self.interval.begin(0, initial, leads=True)

    # ------------------------------------------------------------------ the job's interface

    @property
    def applied_step(self) -> int:
        return self._protocol.applied_step

    @property
    def total_steps(self) -> int:
        total = self.epochs * self._source.steps_per_epoch
        return min([total, *(limit for limit in (self._steps_max, self._max_steps) if limit)])

    @property
    def current_epoch(self) -> int:
        return self.applied_step // self._source.steps_per_epoch

    @property
    def joined(self) -> bool:
        """True once `join` has connected this worker."""
        return self._attendance.started

    @property
    def is_leader(self) -> bool:
        return self._attendance.is_leader

    @property
    def state(self) -> TrainState:
        return self._state

    @property
    def values_lost(self) -> bool:
        """True if no worker has the values that the script's variables had."""
        return self._closed_epochs.lost

    @property
    def ended_early(self) -> bool:
        """True if the script left its loop over epochs, here or in the worker that the state came from."""
        return self._closed_epochs.ended

    def join(self, epochs: int, max_steps: int) -> None:
        """Connect to the master and wait until this worker has a place in the ring and the job's state.

        max_steps: limit for the whole training; 0: all steps of its epochs.
        """
        if self._attendance.started:
            raise StepError("job.epochs was called twice", hint="train all epochs in one loop")
        self.epochs, self._max_steps = epochs, max_steps
        if self._carried.values:
            self._state.extras["elastane.carried"] = self._carried
        self._carried.writes = self._writes_carried
        if self.shows_progress:
            parts = EpochProgress(self._source.steps_per_epoch, self.total_steps, epochs)
            self._progress = ProgressLine(parts)
        self._attendance.start()
        self._figure_report.start()
        self._boundary.settle(self._contexts, in_loop=False)
        self.interval.entered(leads=self.is_leader)

    def turns(self) -> Iterator[Any]:
        """Yield the epoch's mini-batches of the ESTs this worker hosts, replays included."""
        if not self._attendance.started:
            raise StepError(
                "the loader was used before job.epochs",
                hint=f"write `for epoch in job.epochs(n):` around the loader loop; {_LOOK}",
            )
        if self._iterating:
            raise LoaderUseError(
                f"the loader was asked for a second iterator in epoch {self.epoch}, at step "
                f"{self.applied_step}, before the first was exhausted",
                hint=f"iterate over it once per epoch; {_LOOK}",
            )
        if not self._in_epoch():
            raise StepError(
                f"the loader was used again after the end of epoch {self.epoch}",
                hint="iterate over it once per epoch, and evaluate with a separate DataLoader",
            )
        self._check_frozen()
        self._check_buffers_between()
        if self.sampler_epoch is not None:
            self.sampler_epoch.check(self.epoch)
        self.watch.begin_loop(sys._getframe(1))
        self._repeats.begin_loop()
        self.interval.end()
        self._iterating = True
        self._looped_epoch = self.epoch
        self._closed_epochs.begun = max(self._closed_epochs.begun, self.epoch + 1)
        try:
            self._buffers_shown = False
            self._begin_progress()
            while self._in_epoch():
                self._boundary.settle(self._contexts)
                self._attendance.set_between(False)
                if self._in_epoch():
                    yield from self._run_step()
                    if self._progress is not None and self.is_leader:
                        self._progress.reach(self.applied_step, self._last_values)
            if self._progress is not None and self.is_leader:
                self._progress.end(self._last_values())
            self._iterating = False
            if self.applied_step >= self.total_steps and not self._alone:
                self._attendance.final_digest = self._fingerprints.whole()
        except GeneratorExit:
            when_left(self._refuse_to_leave)
            raise
        finally:
            self.turn = None
            # Also after an exception: the script may handle it and continue with code between epochs.
            through = self.applied_step == (self.epoch + 1) * self._source.steps_per_epoch
            # after a rewind nothing is known about the code between epochs
            step = self.applied_step if through else -1
            self.interval.begin(step, self._contexts, leads=self.is_leader)
            self._attendance.set_between(True)

    def close_epoch(self, epoch: int) -> None:
        """Note that the script's code after the loader loop of `epoch` has run."""
        if self._in_epoch():
            raise StepError(
                f"the loader loop of epoch {epoch} was left at step {self.applied_step}, before its end",
                hint="iterate over the whole loader in every epoch",
            )
        self._closed_epochs.count = max(self._closed_epochs.count, epoch + 1)
        if self._closed_elsewhere is not None:
            # The received state already contains the effect of that code; do not apply it twice.
            self._state.load(self._closed_elsewhere)
            self._closed_elsewhere = None

    def end_early(self, place: str) -> None:
        """Report that the script left its loop over epochs at `place`, and wait until all other workers' did
        so too.

        Takes part in ring changes meanwhile, so that no other worker waits for this one. Ends the script with
        the master's message if another worker continues.
        """
        if self.applied_step >= self.total_steps:
            self.finish()
            return
        self._closed_elsewhere = None
        self._closed_epochs.count = max(self._closed_epochs.count, self.epoch + 1)
        self._closed_epochs.ended = True
        while not self._protocol.all_ended:
            if self._protocol.changing:
                self._boundary.settle(self._contexts, in_loop=False)
            message = ring_pb2.EndEarly(
                generation=self._protocol.generation, step=self.applied_step, epoch=self.epoch, place=place
            )
            if not self._alone:
                # Without eval() modes: the leader's code between epochs may have set them.
                digest = self._attendance.final_digest = self._fingerprints.whole(modes=False)
                if digest is not None:
                    message.state_digest = digest
            self._attendance.tell(partial(self._protocol.end_early, message))
            self._attendance.wait_for(lambda: self._protocol.all_ended or self._protocol.changing)
        self._attendance.exits.finished = True

    def _refuse_to_leave(self, place: str) -> None:
        raise StepError(
            f"the loader of epoch {self.epoch} was left at {place} by a break, return or next(), in step "
            f"{self.applied_step}, before its end",
            hint=(
                "for fewer steps use `job.epochs(n, max_steps=...)`, for shorter epochs `job.prepare(..., "
                f"steps_per_epoch=...)`; a break out of the loop over job.epochs ends training; {_LOOK}"
            ),
        )

    def finish(self) -> bool:
        """End training after all epochs; first takes part in a pending ring change, so that nobody waits.

        Returns False if that change took the job back to an earlier step, as when the store has lost the last
        steps and no other worker holds them: training must go on from there.
        """
        if self._protocol.changing:
            self._boundary.settle(self._contexts, in_loop=False)
        self._attendance.exits.finished = self.ended_early or self.applied_step >= self.total_steps
        return self._attendance.exits.finished

    def close(self, bye: ring_pb2.Bye | None) -> None:
        """End the session and release everything this worker holds. Idempotent."""
        # A drained worker's unfinished shard belongs to a checkpoint that the master has given up; waiting
        # for it could outlast the notice of the node.
        sent_away = bye is not None and bye.reason == ring_pb2.BYE_REASON_DRAINED
        self._fingerprints.close()
        self._saver.close(SENT_AWAY_SECONDS if sent_away else None)
        self._reducer.close()
        if self._trace is not None:
            self._trace.close()
        self._attendance.close(bye)
        self._source.close()
        self._figure_report.close()
        self.on_close()

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

    def _begin_progress(self) -> None:
        if self._progress is not None:
            self._progress.begin(self.epoch, self.applied_step)

    def _last_values(self) -> dict[str, float]:
        """Return the means of the last step's logged values over this worker's ESTs."""
        values: dict[str, list[float]] = {}
        for task in self._protocol.step.tasks:
            for name, value in task.metrics.items():
                values.setdefault(name, []).append(value)
        return {name: sum(found) / len(found) for name, found in values.items()}

    # ------------------------------------------------------------------ the step

    def _run_step(self) -> Iterator[Any]:
        """Run one global step; returns with the step applied, or lost and to be run again."""
        began, state = perf_counter(), self._attendance.begin_step()
        step = state.step
        self.watch.begin_step(step)
        self._fingerprints.begin(
            step, whole=step in (self._resume_step, self._first_of_epoch), alone=self._alone
        )
        ranks, batches = sorted(self._contexts), self._source.batches_in_step(step)
        turns = [
            Turn(state, rank, slot, ends=slot == len(ranks) - 1, batches=batches)
            for slot, rank in enumerate(ranks)
        ]
        for turn in self._repeats.turns(self._sentinel.turns(step, turns), self._contexts):
            for turn.micro in range(batches):
                if self._protocol.changing:
                    self._drop_step()
                    return
                yield self._begin_batch(turn)
                if not self._reducer.backward_done:
                    self._refuse_next(turn)
                self.watch.end_turn(turn)
                if turn.sync:
                    self._repeats.compare(turn)
                else:
                    self._check_sums(turn)
                if not turn.last:
                    self._end_batch(turn)
        if state.is_claimed:
            self._complete_step(turn)
            self._figures.step = step + 1
            self._figures.all_reduce_wait_seconds = self._reducer.waited_seconds
            seconds = perf_counter() - began
            self._figures.step_done(seconds, replayed=state.is_replay)
            self._attendance.spans.applied(step, seconds, replayed=state.is_replay)
            return
        failure, lost = self._reducer.failure, not state.in_flight
        self._drop_step()
        if failure is not None:
            why = str(failure)
            self._attendance.tell(lambda: self._protocol.broken(step, why))
            # No further step can run in a broken ring: wait for the change, or for an eviction.
            self._attendance.wait_for(lambda: self._protocol.changing or not self._protocol.generation)
        elif not lost:
            raise StepError(
                f"the loop body of step {step} ended without optimizer.step()",
                hint="call backward() and optimizer.step() once for every mini-batch",
            )

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

    def _begin_batch(self, turn: Turn) -> Any:
        self.turn = turn
        first, guest = turn.micro == 0, turn.guest is not None
        if first:
            if not self._buffers_shown:
                self._restore_buffers()
            self._buffers_shown = False
            # After another EST's turn the generators' states have just been captured, so `switch` need not
            # read them.
            switch = self._generators.switch if turn.slot else self._generators.exchange
            # A guest runs from the context that came with it, because its EST may be another worker's.
            parts = (turn.guest or self._contexts[turn.rank]).parts
            switch(parts)
            self._registry.exchange(parts)
            self._forwards.begin()
        asked = perf_counter()
        batch, info = self._repeats.begin(turn)
        self._figures.data_wait_seconds += perf_counter() - asked
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
            report=self,
        )
        if self._trace is not None and not guest:
            self._trace.turn_began(turn.step, turn.rank, turn.micro, batch, self._states())
        probes.reached("forward", turn.step)
        return batch

    def _states(self) -> Parts:
        """Capture the current states of generators and registered items."""
        return self._generators.capture() | self._registry.capture()

    def _end_batch(self, turn: Turn) -> None:
        """End an EST's mini-batch; after its last one keep its context and EST 0's buffers."""
        turn.loader_parts |= self._repeats.finish(turn)
        if turn.guest is not None:
            if turn.sync:
                self._sentinel.ended(turn)
            return
        if self._trace is None and not turn.sync:
            return
        states = self._states()
        if self._trace is not None:
            self._trace.turn_ended(turn.step, turn.rank, turn.micro, states, turn.metrics)
        if turn.sync:
            self._note(turn, states)
            self._keep(turn)

    def _note(self, turn: Turn, states: Parts) -> None:
        """Record the EST's context after the step and its StepTask."""
        turn.state.contexts[turn.rank] = self._contexts[turn.rank].next(states, turn.loader_parts)
        task = ring_pb2.StepTask(virtual_rank=turn.rank)
        task.range.start, task.range.end = turn.taken[0].start, turn.taken[-1].end
        for info in turn.taken:
            task.samples.extend(info.samples)
        for name, value in turn.metrics.items():
            task.metrics[name] = value.item() if isinstance(value, torch.Tensor) else float(value)
        turn.state.tasks.append(task)

    def _keep(self, turn: Turn) -> None:
        """Snapshot EST 0's buffers after backward."""
        self._sentinel.ended(turn)
        if turn.rank == 0:
            self._reducer.keep_buffers(self._module_buffers)
            turn.buffer_versions = [buffer._version for buffer in self._module_buffers]

    def first_gradient(self) -> bool:
        """Report the step early in the last EST's backward, if its outcome is already known.

        Returns True if it was reported; the step may not be applied before `last_gradient` has confirmed it.
        """
        turn = self.turn
        assert turn is not None and turn.last
        if self._reports_late:
            return False
        turn.states = self._states()
        if self._reports_late is None or turn.step == self._reducer.order_step:
            return False
        turn.loader_parts |= self._repeats.finish(turn)
        self._note(turn, turn.states)
        self._report(turn, in_backward=True)
        return True

    def last_gradient(self) -> str:
        """Report the step at the end of the last EST's backward, or confirm the early report.

        Then the step's all-reduce can start. Returns why no worker may apply it, if the report was wrong.
        """
        turn = self.turn
        assert turn is not None and turn.last
        reported = turn.state.is_reported
        if reported:
            self._attendance.tell(self._protocol.end_backward)
        self._check_frozen()
        states = self._states() if turn.states else {}
        if states:
            self._reports_late = bool(self._reports_late) or states != turn.states
        if not reported:
            self._end_batch(turn)
            self._report(turn)
        else:
            if self._trace is not None:
                self._trace.turn_ended(turn.step, turn.rank, turn.micro, states, turn.metrics)
            self._keep(turn)
        if self._module_buffers:
            self._reducer.broadcast_buffers()
        probes.reached("all_reduce", turn.step)
        # An early report that turns out wrong may be durable. Nobody has applied the step: this worker still
        # withholds a bucket.
        return _DRAWN_IN_BACKWARD if reported and self._reports_late else ""

    def _report(self, turn: Turn, *, in_backward: bool = False) -> None:
        report = ring_pb2.StepReport(
            generation=self._protocol.generation, step=turn.step, epoch=self.epoch, tasks=turn.state.tasks
        )
        for rank, context in turn.state.contexts.items():
            report.contexts.append(context.to_proto(self._known[rank]))
        if turn.step == self._reducer.order_step and self.is_leader:
            report.extra.ready_order.extend(self._reducer.ready_order)
        state_digest, settings_digest = (
            self._fingerprints.state_digest(),
            self._fingerprints.settings_digest(),
        )
        if state_digest is not None and settings_digest is not None:
            report.state_digest, report.settings_digest = state_digest, settings_digest
        self._attendance.tell(lambda: self._protocol.report(report, in_backward=in_backward))

    def claim(self) -> bool:
        """True if the global step is applied in this turn; waits until all contexts are durable.

        False on turns other than the worker's last and after a ring change; once True, it stays True for the
        turn. Raises StepError outside the loop and before backward().
        """
        turn = self.turn
        if turn is None:
            raise StepError("optimizer.step() was called outside the loader loop")
        state = turn.state
        if not turn.last or not state.in_flight or self._reducer.failure is not None:
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
            self._figures.prepared_wait_seconds += perf_counter() - asked
            probes.reached("prepared", turn.step)
            if self._attendance.begin_apply(turn.step) and turn.rank != 0:
                # From here on the body acts on the model once a step, so it must see rank 0's buffers.
                self._show_buffers(self._reducer.next_buffers)
        return state.is_claimed

    @property
    def failed(self) -> bool:
        """True if the current step's all-reduce has failed."""
        return self._reducer.failure is not None

    def _before_backward(self) -> Turn | None:
        """Return the running turn until its backward() is done, then None."""
        return None if self._reducer.backward_done else self.turn

    def gradients_used(self) -> None:
        """Note that an optimizer, or a GradScaler, has used the turn's gradients."""
        if self.turn is not None and self.turn.sync:
            self._reducer.gradients_used()

    @property
    def backward_done(self) -> bool:
        """True if backward() of the current mini-batch is done."""
        return self._reducer.backward_done

    @property
    def epoch_is_closed(self) -> bool:
        """True between epochs if the code here has already run in the worker that the state came from."""
        closed = self._closed_epochs
        return (closed.count if self._looped_epoch == self.epoch else closed.begun) > self.epoch

    def _writes_carried(self, name: str) -> bool:
        """True if a carried value may be assigned; False if the received state already contains the
        assignment.

        Raises StepError in a turn that has not applied its step.
        """
        if self.turn is None:
            return not self.epoch_is_closed
        if not self.turn.applied:
            raise StepError(
                f"job.carry value {name} was set in step {self.turn.step} before the step was applied",
                hint=(
                    "set it after optimizer.step() under `if job.stepped:`, or between epochs: each "
                    "mini-batch is a turn of the loop, and a step may be replayed"
                ),
                virtual_rank=self.turn.rank,
            )
        return True

    @property
    def _alone(self) -> bool:
        return len(self._attendance.members) < 2

    @property
    def _first_of_epoch(self) -> int:
        return self.epoch * self._source.steps_per_epoch

    def _complete_step(self, turn: Turn) -> None:
        """Complete an applied step after the loop body: adopt the new contexts and buffers.

        Raises StepError if random numbers were drawn after backward().
        """
        reported = turn.state.contexts[turn.rank].parts
        if any(reported.get(key) != value for key, value in self._states().items()):
            raise StepError(
                f"random numbers were drawn after backward() in step {turn.step}",
                hint="draw them before backward(), or inside `with job.isolated_rng():`",
                virtual_rank=turn.rank,
            )
        self._check_buffers(turn)
        self._contexts = self._known = turn.state.contexts
        if self._module_buffers:
            self._rank0_buffers = self._reducer.next_buffers
            self._restore_buffers()
            self._buffers_shown = True
        # From here on a leader that finds no checkpoint cannot fall back to the initial state.
        self._boundary.pristine = False
        if self._trace is not None:
            self._trace.step_applied(turn.step)
        self.turn = None
        self._reducer.end_step()
        self._attendance.tell(lambda: self._protocol.end_apply(turn.step))
        if turn.step == self._reducer.order_step:
            self._reducer.set_layout(self._protocol.ready_order)
        probes.reached("applied", turn.step)

    def _check_buffers(self, turn: Turn) -> None:
        """Raise StepError if the body replaced a buffer, or wrote to one after its snapshot."""
        if turn.step == 0:
            for (name, buffer), known in zip(self._model.named_buffers(), self._module_buffers, strict=True):
                if buffer is not known:
                    raise StepError(
                        f"buffer {name} was replaced by another tensor in step {turn.step}",
                        hint="write to the buffer in place, as with self.count.add_(1)",
                    )
        for buffer, version in zip(self._module_buffers, turn.buffer_versions, strict=False):
            if buffer._version != version:
                name = next(name for name, one in self._model.named_buffers() if one is buffer)
                raise StepError(
                    f"buffer {name} was written to after backward() in step {turn.step}",
                    hint="write to it before backward(); evaluate after model.eval()",
                    virtual_rank=turn.rank,
                )

    def _check_buffers_between(self) -> None:
        """Raise BuffersChangedError if the module's buffers are not those the next step starts from."""
        for (name, _), buffer, kept in zip(
            self._model.named_buffers(), self._module_buffers, self._rank0_buffers, strict=False
        ):
            if not same_bits(buffer, kept):
                raise BuffersChangedError(
                    f"buffer {name} was written to between two epochs, before step {self.applied_step}",
                    hint="call model.eval() before evaluating, and model.train() before the loop",
                    buffer=name,
                )

    def _drop_step(self) -> None:
        """Discard the step in flight: gradients, buffers, contexts after it."""
        self._attendance.lose_step()
        self._reducer.drop()
        self._restore_buffers()
        self.turn = None

    def _begins_epoch(self, step: int) -> bool:
        return step % self._source.steps_per_epoch == 0 and step < self.total_steps

    def _replaced(self, loaded_step: int | None) -> None:
        """Adapt to weights, buffers and hyperparameters that were replaced.

        loaded_step: the checkpoint's; None: they came from other members.
        """
        # State from members brings `lost` along; after a checkpoint of another epoch nobody has the values.
        if loaded_step is not None and loaded_step // self._source.steps_per_epoch != self.values_epoch:
            self._closed_epochs.lost = True
        self._take_buffers()
        self.watch.replaced()

    def _entered(self, known: dict[int, EstContext], contexts: dict[int, EstContext], step: int) -> None:
        """Start these ESTs at `step` in a newly formed ring.

        known: contexts as the master has them; contexts: those after the code before the step.
        """
        self._known, self._contexts = reported_against(known, step), contexts
        self.watch.look_closely()
        self._source.position(contexts, step)
        self._resume_step = step
        received = self._boundary.take_received()
        behind = self._looped_epoch == self.epoch and self._closed_epochs.count > self.epoch
        if received is not None and behind:
            self._closed_elsewhere = received
        self.on_ring(self.is_leader)

    def _take_buffers(self) -> None:
        """Copy the module's buffers as EST 0's at the start of a step: as built, or as received."""
        self._rank0_buffers = [buffer.detach().clone() for buffer in self._module_buffers]

    def _restore_buffers(self) -> None:
        self._show_buffers(self._rank0_buffers)

    def _show_buffers(self, values: list[torch.Tensor]) -> None:
        if values:
            with torch.no_grad():
                torch._foreach_copy_(self._module_buffers, values)

    def _in_epoch(self) -> bool:
        return self.current_epoch == self.epoch and self.applied_step < self.total_steps

    def _check_frozen(self) -> None:
        """Raise UnsupportedError for a parameter unfrozen after prepare: it is in no bucket."""
        for name, param in self._frozen:
            if param.requires_grad:
                raise UnsupportedError(
                    f"parameter {name} did not require a gradient at prepare and does now",
                    hint=(
                        "let every parameter that will be trained require gradients at prepare, freeze it "
                        "after that, and pass find_unused_parameters=True"
                    ),
                    parameter=name,
                )
