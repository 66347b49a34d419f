"""One worker's part in elastic training: the loop over the steps of an epoch, and what is between epochs.

The script's loop body is the stock one. Everything elastic happens where the body requests the next batch
from the loader: EST contexts are swapped, ring changes are carried out, a lost step is started again from its
contexts. The body only sees more mini-batches.

    turns():  settle (ring change, hand-over, checkpoint) ─▶ run a step (`StepRunner`)
                    ▲                                            │
                    └────────────── applied, or lost ◀───────────┘

`EpochLoop` decides which step follows.

Everything here runs in the script's thread; the master's messages wait in `WorkerSession`. `assembly` builds
a trainer with its parts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, NoReturn, Protocol

from elastane.context import EstContext
from elastane.data.source import BatchSource
from elastane.runtime.blocking import finish
from elastane.runtime.boundary_actions import RingMember
from elastane.runtime.carried import CarriedValues
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.epoch_loop import EpochLoop
from elastane.runtime.epoch_progress import EpochProgress, ProgressLine
from elastane.runtime.est_step import EpochsClosed
from elastane.runtime.interval import Interval
from elastane.runtime.job import not_stepped
from elastane.runtime.loop_exit import when_left
from elastane.runtime.pipelines.parts import PipelineParts
from elastane.runtime.pipelines.runner import PipelineRunner
from elastane.runtime.sampler_epoch import SamplerEpoch
from elastane.runtime.saving import CheckpointSaver
from elastane.runtime.step_boundary import StepBoundary
from elastane.runtime.step_parts import StepParts
from elastane.runtime.step_runner import StepRunner
from elastane.runtime.worker_session import Duties
from elastane.tracking.process import TrackerProcesses
from elastane_common.errors import LoaderUseError, StepError
from elastane_proto.v1 import ring_pb2

_LOOK = "to inspect a batch, use a separate DataLoader: next(iter(DataLoader(dataset, ...)))"
SENT_AWAY_SECONDS = 0.5
"""Time for which a drained worker waits for a file that is being written."""


class CarriedState(Protocol):
    """State that travels with the weights; `load` puts in place again what has come from other members."""

    @property
    def extras(self) -> dict[str, Any]: ...
    def load(self, received: Any, /) -> None: ...


@dataclass(frozen=True)
class TrainerParts:
    """The parts of a trainer, built by `assembly.build_trainer`.

    boundary: builds the step boundary of the trainer. signature: builds the script's signature from the
    number of epochs and max_steps. follows: whether rings of this state can be followed.
    """

    steps: StepParts | PipelineParts
    runner: StepRunner | PipelineRunner
    boundary: Callable[[RingMember], StepBoundary]
    state: CarriedState
    saver: CheckpointSaver
    interval: Interval
    closed_epochs: EpochsClosed
    carried: CarriedValues
    signature: Callable[[int, int], ring_pb2.ScriptSignature]
    follows: Callable[[], bool] = lambda: False


class Trainer:
    """The training loop behind `Job.prepare`; the job and the loader call `join`, `turns` and `finish`."""

    def __init__(self, environment: WorkerEnvironment, parts: TrainerParts) -> None:
        self._environment, self._parts = environment, parts
        self._worker_session, self._source = parts.steps.worker_session, parts.steps.source
        self._protocol = self._worker_session.protocol
        self._contexts = parts.steps.contexts
        self._boundary, self._state = parts.boundary(self), parts.state
        self._loop = EpochLoop(
            self._protocol,
            self._boundary,
            self._source.steps_per_epoch,
            self._worker_session.set_between,
        )
        self._closed_epochs = parts.closed_epochs
        self.steps = parts.runner
        #: Tracks the script's code between two epochs, i.e. whenever no loader loop runs.
        self.interval = parts.interval
        self.epoch = 0
        #: The epoch that the script's variables belong to, as of its beginning.
        self.values_epoch = 0
        #: The epoch whose loader loop this worker ran last.
        self._looped_epoch = -1
        #: State received in the middle of an epoch's loader loop from workers that had already run its
        #: closing code.
        self._closed_elsewhere: Any = None
        self._trackers: TrackerProcesses | None = None
        self._progress: ProgressLine | None = None
        #: The loader is being iterated, or its loop was left early.
        self._iterating = False
        #: Records the epochs that the script passes to its own sampler, if that has `set_epoch`.
        self.sampler_epoch: SamplerEpoch | None = None

    # ------------------------------------------------------------------ the job's interface

    @property
    def applied_step(self) -> int:
        return self._protocol.applied_step

    @property
    def total_steps(self) -> int:
        return self._loop.total_steps

    @property
    def current_epoch(self) -> int:
        return self._loop.epoch

    @property
    def source(self) -> BatchSource:
        """Where the mini-batches of all ESTs come from."""
        return self._source

    @property
    def joined(self) -> bool:
        """True once `join` has connected this worker."""
        return self._worker_session.started

    @property
    def is_leader(self) -> bool:
        return self._worker_session.is_leader

    @property
    def place(self) -> int | None:
        """Position of this worker in its ring, 0 for the leader; None for a standby."""
        return self._worker_session.place

    @property
    def ring_changes(self) -> bool:
        """True while the master waits for this worker to leave its generation."""
        return self._protocol.fenced > self._protocol.generation

    @property
    def state(self) -> CarriedState:
        return self._state

    @property
    def values_lost(self) -> bool:
        """True if no worker has the values that the script's variables had."""
        return self._closed_epochs.lost

    @property
    def ended_early(self) -> bool:
        """True if the script left its loop over epochs, here or in the worker that the state came from."""
        return self._closed_epochs.ended

    def join(
        self, epochs: int, max_steps: int, *, trackers: TrackerProcesses, shows_progress: bool = False
    ) -> None:
        """Connect to the master and wait until this worker has a place in the ring and the job's state.

        max_steps: limit for the whole training; 0: all steps of its epochs. trackers: are told of each ring
        entered whether this worker leads it.
        """
        if self._worker_session.started:
            raise StepError("job.epochs was called twice", hint="train all epochs in one loop")
        self._trackers = trackers
        limits = [limit for limit in (self._environment.steps_max, max_steps) if limit]
        self._loop.total_steps = min([epochs * self._source.steps_per_epoch, *limits])
        self.steps.begin_training(self._loop.total_steps)
        parts, carried = self._parts, self._parts.carried
        if carried.values:
            self._state.extras["elastane.carried"] = carried
        carried.writes = self._writes_carried
        if shows_progress:
            progress = EpochProgress(self._source.steps_per_epoch, self.total_steps, epochs)
            self._progress = ProgressLine(progress)
        duties = Duties(
            signature=partial(parts.signature, epochs, max_steps),
            write_manifest=partial(parts.saver.write_manifest, num_ests=self._environment.ests),
            details=parts.steps.fingerprints.details,
            close=self.close,
            figures=parts.steps.figures,
            # Within its loop a script has variables of its own, which are of another step.
            follows=lambda: self._looped_epoch < 0 and parts.follows(),
        )
        self._worker_session.start(duties)
        finish(self._boundary.settle(in_loop=False))
        self.interval.entered(leads=self.is_leader)

    def contexts_to_gather(self, asked: str) -> tuple[int, dict[int, EstContext]]:
        """Return the rank whose objects are in place, and this worker's contexts, of which the master has
        those of all ranks: after the step that this turn has applied, or between epochs.

        Raises StepError where there are none. asked: the method's name.
        """
        turn = self.steps.est_step
        if turn is not None:
            if not self.steps.stepped(turn):
                raise not_stepped(asked)
            return turn.rank, turn.state.contexts
        if self.interval.est_step is not None or self._worker_session.exits.finished or not self.applied_step:
            where = "in job.each_rank" if self.interval.est_step is not None else "outside of the training"
            raise StepError(
                f"job.{asked} was called {where}",
                hint="call it between epochs, in the loop over job.epochs after the loader loop",
            )
        return self.interval.rank, self._contexts.now

    def start_anew(self, why: str) -> NoReturn:
        """End the script, so that the agent starts another process."""
        self._worker_session.exits.start_anew(why)

    def turns(self) -> Iterator[Any]:
        """Yield the epoch's mini-batches of the ESTs this worker hosts, replays included."""
        self._check_loop()
        self._begin_loop(sys._getframe(1))
        try:
            self._begin_progress()
            while finish(self._loop.next_step(self.epoch)):
                self._worker_session.captures.step_begins(self._protocol.next_step)
                yield from self.steps.run()
                self._worker_session.captures.step_over(self.applied_step, sorted(self._contexts.now))
                self._note_step()
            self._end_loop()
        except GeneratorExit:
            when_left(self._refuse_to_leave)
            raise
        finally:
            self.steps.est_step = None
            # Also after an exception: the script may handle it and continue with code between epochs.
            step = self._loop.interval_after(self.epoch)
            self.interval.begin(step, self._contexts.now, leads=self.is_leader)
            self._worker_session.set_between(True)

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

    def end_after_epoch(self) -> None:
        """Let `ended_early` be true from now on: the script, between epochs, wants to train no further."""
        self._closed_epochs.ended = True

    def end_early(self, place: str) -> bool:
        """Report that the script left its loop over epochs at `place`, and wait until all other workers' did
        so too.

        Returns False if the job goes back to an earlier step instead, as `finish` does after the last step.
        Takes part in ring changes meanwhile, so that no other worker waits for this one. Ends the script with
        the master's message if another worker continues.
        """
        if self._loop.is_through:
            return self.finish()
        self._closed_elsewhere = None
        self._closed_epochs.count = max(self._closed_epochs.count, self.epoch + 1)
        self._closed_epochs.ended = True
        while not self._protocol.all_ended:
            if self._protocol.changing:
                finish(self._boundary.settle(in_loop=False))
            if not self.steps.rest():
                continue
            message = ring_pb2.EndEarly(
                generation=self._protocol.generation, step=self.applied_step, epoch=self.epoch, place=place
            )
            if not self._worker_session.is_alone:
                # Without eval() modes: the leader's code between epochs may have set them.
                digest = self._worker_session.final_digest = self._parts.steps.fingerprints.whole(modes=False)
                if digest is not None:
                    message.state_digest = digest
            self._worker_session.tell(partial(self._protocol.end_early, message))
            self._worker_session.wait_for(lambda: self._protocol.all_ended or self._protocol.changing)
        self._worker_session.exits.finished = True
        return True

    def finish(self) -> bool:
        """End training after all epochs; first takes part in a pending ring change, so that nobody waits.

        Returns False if that change took the job back to an earlier step, as when the store has lost the last
        steps and no other worker holds them: training must go on from there.
        """
        exits = self._worker_session.exits
        while (through := finish(self._loop.finish())) and not exits.finished and not self.steps.rest():
            pass
        exits.finished = self.ended_early or through
        return self._worker_session.exits.finished

    def close(self, bye: ring_pb2.Bye | None) -> None:
        """End the session and release everything this worker holds. Idempotent."""
        # A drained worker's unfinished shard belongs to a checkpoint that the master has given up; waiting
        # for it could outlast the notice of the node.
        sent_away = bye is not None and bye.reason == ring_pb2.BYE_REASON_DRAINED
        self._parts.saver.close(SENT_AWAY_SECONDS if sent_away else None)
        self._parts.steps.close()
        self._worker_session.close(bye)
        self._source.close()
        if self._trackers is not None:
            self._trackers.close()

    # ------------------------------------------------------------------ the loader loop

    def _check_loop(self) -> None:
        """Raise StepError or LoaderUseError if the script may not iterate over the loader now."""
        if not self._worker_session.started:
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
        self._parts.steps.frozen.check()
        self._parts.steps.buffers.check_between_epochs(self.applied_step)
        if self.sampler_epoch is not None:
            self.sampler_epoch.check(self.epoch)

    def _begin_loop(self, frame: FrameType) -> None:
        """Begin the loader loop of an epoch. frame: of the code that requests its first mini-batch."""
        self._parts.steps.watch.begin_loop(frame)
        self._parts.steps.repeats.begin_loop()
        self.interval.end()
        self._iterating = True
        self._looped_epoch = self.epoch
        self._closed_epochs.begun = max(self._closed_epochs.begun, self.epoch + 1)
        self._parts.steps.buffers.begin_loop()

    def _begin_progress(self) -> None:
        if self._progress is not None:
            self._progress.begin(self.epoch, self.applied_step)

    def _note_step(self) -> None:
        """Note that an attempt at a step is over, applied or lost."""
        self._loop.end_attempt()
        if self._progress is not None and self.is_leader:
            self._progress.reach(self.applied_step, self.steps.last_values)

    def _end_loop(self) -> None:
        """End the loader loop at the end of its epoch."""
        if self._progress is not None and self.is_leader:
            self._progress.end(self.steps.last_values())
        self._iterating = False
        if self._loop.is_through and not self._worker_session.is_alone:
            self._worker_session.final_digest = self._parts.steps.fingerprints.whole()

    def _refuse_to_leave(self, place: str) -> None:
        raise StepError(
            f"the loader of epoch {self.epoch} was left at {place} by a break, return or next(), in step "
            f"{self.applied_step}, before its end",
            hint=(
                "for fewer steps use `job.epochs(n, max_steps=...)`, for shorter epochs `job.prepare(..., "
                f"steps_per_epoch=...)`; a break out of the loop over job.epochs ends training; {_LOOK}"
            ),
        )

    def _in_epoch(self) -> bool:
        return self._loop.is_in(self.epoch)

    # ------------------------------------------------------------------ between two epochs

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
        est_step = self.steps.est_step
        if est_step is None:
            return not self.epoch_is_closed
        if not self.steps.stepped(est_step):
            raise StepError(
                f"job.carry value {name} was set in step {est_step.step} before the step was applied",
                hint=(
                    "set it after optimizer.step() under `if job.stepped:`, or between epochs: each "
                    "mini-batch is a turn of the loop, and a step may be replayed"
                ),
                virtual_rank=est_step.rank,
            )
        return True

    # ------------------------------------------------------------------ called by the step boundary

    def begins_epoch(self, step: int) -> bool:
        """True if the script's code between epochs runs before `step`."""
        return self._loop.begins_epoch(step)

    def replaced(self, loaded_step: int | None) -> None:
        """Adapt to weights, buffers and hyperparameters that were replaced.

        loaded_step: the checkpoint's; None: they came from other members.
        """
        # State from members brings `lost` along; after a checkpoint of another epoch nobody has the values.
        if loaded_step is not None and loaded_step // self._source.steps_per_epoch != self.values_epoch:
            self._closed_epochs.lost = True
        self._parts.steps.buffers.take()
        self._parts.steps.watch.replaced()

    def entered(self, step: int, received: Any) -> None:
        """Start this worker's ESTs from their new contexts at `step`.

        received: state that came from other members meanwhile.
        """
        self._parts.steps.watch.look_closely()
        self._source.position(self._contexts.now, step)
        self.steps.resume_step = step
        behind = self._looped_epoch == self.epoch and self._closed_epochs.count > self.epoch
        if received is not None and behind:
            self._closed_elsewhere = received
        if self._trackers is not None:
            self._trackers.lead(self.is_leader)
