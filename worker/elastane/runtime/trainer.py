"""One worker's part in elastic training: takes part in rings, runs its ESTs, replays steps.

The script's loop body is the stock one. All that is elastic happens where the body asks the loader
for the next batch: EST contexts are swapped, a change of the ring is carried out, a lost step is
started again from its contexts. The body only sees further mini-batches.

    turns():  settle (ring change, hand-over, checkpoint) ─▶ for each of my ESTs: context in, batch
                    ▲                                              │ body: forward, backward
                    │                                              ▼
              complete or drop ◀── optimizer.step (waits for Prepared) ◀── report, all-reduce

Everything here runs in the script's thread; what comes from the master waits in `Attendance`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog
import torch

from elastane.collective.reducer import Reducer
from elastane.collective.transport import HANDOVER_TAG, RingAborted, RingBroken, RingTransport
from elastane.context import EstContext
from elastane.data.source import BatchInfo, BatchSource
from elastane.errors import StepError
from elastane.rng import Generators
from elastane.runtime import probes
from elastane.runtime.attendance import Attendance
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.saving import CheckpointSaver, initial_contexts, load_state
from elastane.runtime.signature import script_signature
from elastane.state.handover import receive_state, send_state
from elastane.state.train_state import TrainState
from elastane_proto.v1 import ring_pb2

_log = structlog.get_logger(__name__)


@dataclass
class Turn:
    """One EST's mini-batch in a step, as this worker runs it."""

    step: int
    rank: int
    slot: int
    last: bool
    batch: BatchInfo | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    #: Of each buffer, when EST 0's were taken down: tells who has written to it since.
    buffer_versions: list[int] = field(default_factory=list)
    #: The contexts of the step are on their way; nothing of the turn can be added any more.
    reported: bool = False
    #: The optimizer has stepped.
    applied: bool = False
    #: The ring changed: the step will be replayed.
    lost: bool = False


class EpochsClosed:
    """How many epochs' closing code (after the loader loop) is in the state; travels with it."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Trainer:
    """Built by `Job.prepare`; `join`, `turns` and `finish` are driven by the job and the loader."""

    def __init__(
        self,
        environment: WorkerEnvironment,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        schedulers: list[Any],
        source: BatchSource,
        *,
        seed: int | None,
    ) -> None:
        self._worker_id = environment.worker_id
        self._model = model
        self._source = source
        self._num_ests = environment.ests
        self._closed_epochs = EpochsClosed()
        device = next(iter(model.parameters())).device
        self._transport_device = device if device.type == "cuda" else torch.device("cpu")
        self._generators = Generators(device)
        self._state = TrainState(model, optimizers, schedulers, {"elastane.epochs": self._closed_epochs})
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._module_buffers = list(model.buffers())
        #: EST 0's buffers at the start of the current step: what every EST's forward starts from.
        self._rank0_buffers = [buffer.detach().clone() for buffer in self._module_buffers]
        self._rank0_captured: list[torch.Tensor] | None = None
        self._reducer = Reducer(
            [p for _, p in named],
            [name for name, _ in named],
            self._num_ests,
            self._module_buffers,
            on_last_backward=self._last_backward,
        )
        self._initial = initial_contexts(self._generators, self._num_ests, seed)
        self._pristine = True
        self._saver = CheckpointSaver(
            lambda message: self._attendance.tell(lambda: self._protocol.saved(message))
        )
        self._attendance = Attendance(
            environment,
            backend="nccl" if device.type == "cuda" else "gloo",
            signature=lambda: script_signature(model, optimizers, source, self.epochs),
            write_manifest=lambda message: self._saver.write_manifest(message, num_ests=self._num_ests),
            close=self.close,
        )
        self._protocol = self._attendance.protocol
        self._contexts: dict[int, EstContext] = {}
        self._after: dict[int, EstContext] = {}
        self._tasks: list[ring_pb2.StepTask] = []
        self.turn: Turn | None = None
        self.epoch = 0
        self.epochs = 0

    # ------------------------------------------------------------------ what the job asks

    @property
    def applied_step(self) -> int:
        return self._protocol.applied_step

    @property
    def total_steps(self) -> int:
        return self.epochs * self._source.steps_per_epoch

    @property
    def current_epoch(self) -> int:
        return self.applied_step // self._source.steps_per_epoch

    @property
    def is_leader(self) -> bool:
        return self._attendance.is_leader

    @property
    def state(self) -> TrainState:
        return self._state

    def join(self, epochs: int) -> None:
        """Attend at the master and wait until this worker has its place and the job's state."""
        if self._attendance.started:
            raise StepError("job.epochs was called twice", hint="train all epochs in one loop")
        self.epochs = epochs
        self._attendance.start()
        self._settle()

    def turns(self) -> Iterator[Any]:
        """The epoch's mini-batches of whatever ESTs this worker hosts, replays included."""
        if not self._attendance.started:
            raise StepError(
                "the loader was used before job.epochs",
                hint="write `for epoch in job.epochs(n):` around the loader loop",
            )
        if not self._in_epoch():
            raise StepError(
                f"the loader was used again after the end of epoch {self.epoch}",
                hint="go through it once in every epoch, and evaluate with a DataLoader of its own",
            )
        script_rng = self._generators.capture()
        self._attendance.set_between(False)
        try:
            while self._in_epoch():
                self._settle()
                if self._in_epoch():
                    yield from self._run_step(self._protocol.applied_step)
        finally:
            self.turn = None
            self._generators.restore(script_rng)
            self._attendance.set_between(True)

    def close_epoch(self, epoch: int) -> None:
        """The script's code after the loader loop of `epoch` has run."""
        if self._in_epoch():
            raise StepError(
                f"the loader loop of epoch {epoch} was left at step {self.applied_step}, before its end",
                hint="go through the whole loader in every epoch",
            )
        self._closed_epochs.count = max(self._closed_epochs.count, epoch + 1)

    def finish(self) -> None:
        """All epochs are done; takes part in a change that is under way, so that nobody is left behind."""
        if self._protocol.changing:
            self._settle()
        self._attendance.exits.finished = True

    def close(self, bye: ring_pb2.Bye | None) -> None:
        """End the session and everything this worker holds. Idempotent."""
        self._saver.close()
        self._reducer.close()
        self._attendance.close(bye)
        self._source.close()

    def log(self, values: dict[str, Any]) -> None:
        """Values of the EST and step now running; they become part of the committed history."""
        turn = self.turn
        if turn is None:
            raise StepError(
                "job.log was called outside the loader loop",
                hint="log inside the loop, before loss.backward()",
            )
        if turn.reported and not turn.lost:
            raise StepError(
                f"job.log({', '.join(values)}) came after backward() of step {turn.step}",
                hint="call job.log before loss.backward(), so that the values are stored with the step",
            )
        for name, value in values.items():
            # A tensor is kept as it is until the step is reported: asking for its number would wait for it.
            turn.metrics[name] = value.detach() if isinstance(value, torch.Tensor) else float(value)

    # ------------------------------------------------------------------ the step

    def _run_step(self, step: int) -> Iterator[Any]:
        """One global step; returns with the step applied, or lost and to be run again."""
        self._after, self._tasks, self._rank0_captured = {}, [], None
        ranks = sorted(self._contexts)
        for slot, rank in enumerate(ranks):
            if self._protocol.changing:
                self._drop_step()
                return
            turn = Turn(step, rank, slot, last=slot == len(ranks) - 1)
            batch = self._begin_turn(turn)
            yield batch
            if not turn.last:
                self._end_turn(turn)
        if turn.applied:
            self._complete_step(turn)
            return
        failure = self._reducer.failure
        self._drop_step()
        if failure is not None:
            self._attendance.tell(lambda: self._protocol.broken(step, str(failure)))
            self._attendance.wait_for(lambda: self._protocol.changing or not self._protocol.generation)
        elif not turn.lost:
            raise StepError(
                f"the loop body of step {step} ended without optimizer.step()",
                hint="call backward() and optimizer.step() once for every mini-batch",
            )

    def _begin_turn(self, turn: Turn) -> Any:
        self.turn = turn
        with torch.no_grad():
            for buffer, base in zip(self._module_buffers, self._rank0_buffers, strict=True):
                buffer.copy_(base)
        self._generators.exchange(self._contexts[turn.rank].parts)
        batch, turn.batch = self._source.begin(turn.rank)
        self._reducer.begin_turn(turn.slot, last=turn.last, record_order=turn.step == 0 and turn.rank == 0)
        probes.reached("forward", turn.step)
        return batch

    def _end_turn(self, turn: Turn) -> None:
        """The EST's mini-batch is done: keep its context, and EST 0's buffers."""
        assert turn.batch is not None
        before = self._contexts[turn.rank]
        self._after[turn.rank] = before.next(self._generators.capture(), self._source.finish(turn.rank))
        if turn.rank == 0:
            self._rank0_captured = [buffer.detach().clone() for buffer in self._module_buffers]
            turn.buffer_versions = [buffer._version for buffer in self._module_buffers]
        task = ring_pb2.StepTask(virtual_rank=turn.rank, samples=turn.batch.samples)
        task.range.start, task.range.end = turn.batch.start, turn.batch.end
        for name, value in turn.metrics.items():
            task.metrics[name] = value.item() if isinstance(value, torch.Tensor) else float(value)
        self._tasks.append(task)

    def _last_backward(self) -> None:
        """At the end of the last EST's backward: report the step while its gradients travel."""
        turn = self.turn
        assert turn is not None and turn.last
        self._end_turn(turn)
        turn.reported = True
        report = ring_pb2.StepReport(
            generation=self._protocol.generation, step=turn.step, epoch=self.epoch, tasks=self._tasks
        )
        for rank, context in self._after.items():
            report.contexts.append(context.to_proto(self._contexts[rank]))
        if turn.step == 0 and self.is_leader:
            report.extra.ready_order.extend(self._reducer.ready_order)
        self._attendance.tell(lambda: self._protocol.report(report))
        if self._module_buffers:
            self._reducer.broadcast_buffers(self._rank0_captured)
        probes.reached("all_reduce", turn.step)

    def optimizer_step(self, step: Any, *args: Any, **kwargs: Any) -> Any:
        """What the prepared optimizer's `step` does: once a global step, when all is durable."""
        turn = self.turn
        if turn is None:
            raise StepError("optimizer.step() was called outside the loader loop")
        if not turn.last:
            return None
        if self._reducer.failure is not None or turn.lost:
            return None
        if not turn.reported:
            raise StepError(
                f"optimizer.step() came before backward() in step {turn.step}",
                hint="each turn of the loop is forward, backward, optimizer.step()",
            )
        if not turn.applied:
            self._attendance.wait_for(lambda: self._protocol.changing or self._protocol.may_apply(turn.step))
            probes.reached("prepared", turn.step)
            if not self._attendance.begin_apply(turn.step):
                turn.lost = True
                return None
            turn.applied = True
        return step(*args, **kwargs)

    def scheduler_step(self, step: Any, *args: Any, **kwargs: Any) -> Any:
        """What a prepared scheduler's `step` does: once a global step, or once between epochs."""
        turn = self.turn
        if turn is None:
            # Between epochs. The state may have come from a worker that has passed here already.
            return None if self._closed_epochs.count > self.epoch else step(*args, **kwargs)
        if turn.applied:
            return step(*args, **kwargs)
        if turn.last and not turn.lost and self._reducer.failure is None:
            raise StepError(
                "scheduler.step() came before optimizer.step()",
                hint="step the optimizer first, as in stock PyTorch",
            )
        return None

    def _complete_step(self, turn: Turn) -> None:
        """The body is over and the step is in the weights."""
        reported = self._after[turn.rank].parts
        if any(reported.get(key) != value for key, value in self._generators.capture().items()):
            raise StepError(
                f"random numbers were drawn after backward() in step {turn.step}",
                hint="draw them before backward(), or inside `with job.isolated_rng():`",
                virtual_rank=turn.rank,
            )
        self._check_buffers(turn)
        self._contexts = self._after
        if self._module_buffers:
            self._rank0_buffers = self._reducer.next_buffers
            self._restore_buffers()
        self._pristine = False
        self.turn = None
        self._reducer.end_step()
        self._attendance.tell(lambda: self._protocol.end_apply(turn.step))
        if turn.step == 0:
            self._reducer.set_layout(self._protocol.ready_order)
        probes.reached("applied", turn.step)

    def _check_buffers(self, turn: Turn) -> None:
        """What the body did to the buffers must be in what was taken down of them."""
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

    def _drop_step(self) -> None:
        """Forget the step in flight: gradients, buffers, contexts after it."""
        self._reducer.drop()
        self._restore_buffers()
        self.turn = None

    def _restore_buffers(self) -> None:
        with torch.no_grad():
            for buffer, base in zip(self._module_buffers, self._rank0_buffers, strict=True):
                buffer.copy_(base)

    def _in_epoch(self) -> bool:
        return self.current_epoch == self.epoch

    # ------------------------------------------------------------------ the ring

    def _settle(self) -> None:
        """Return when this worker runs in a ring and nothing is asked of it before the next step."""
        while True:
            self._take_checkpoint()
            request = self._attendance.next_request()
            if request is None:
                return
            if isinstance(request, ring_pb2.Load):
                self._load(request)
            else:
                self._enter(request)

    def _load(self, message: ring_pb2.Load) -> None:
        """As the leader of a ring nobody holds state for: the newest checkpoint, or the initial state."""
        if not self._attendance.begin_replace(message.generation):
            return
        loaded = load_state(
            message, self._state, self._initial, num_ests=self._num_ests, pristine=self._pristine
        )
        self._rank0_buffers = [buffer.detach().clone() for buffer in self._module_buffers]
        self._pristine = self._pristine and loaded.step == 0
        self._attendance.tell(lambda: self._protocol.loaded(loaded))

    def _enter(self, go: ring_pb2.Go) -> None:
        """Form the group of the generation, hand state over, take up my ESTs."""
        names = [member.worker_id for member in go.members]
        me = names.index(self._worker_id)
        self._drop_step()
        try:
            transport = self._attendance.form(go, me)
            if go.receivers:
                self._hand_over(go, me, transport)
        except (RingAborted, RingBroken) as error:
            _log.debug("group was not formed", generation=go.generation, error=str(error))
            failure = str(error)
            self._attendance.tell(lambda: self._protocol.forming_failed(go.generation, failure))
            return
        contexts = {message.virtual_rank: EstContext.from_proto(message) for message in go.contexts}
        self._reducer.set_ring(transport, [(m.ests.start, m.ests.end) for m in go.members], me)
        self._reducer.set_layout(list(go.extra.ready_order) or None)
        if not self._attendance.entered(go):
            return
        self._contexts = contexts
        self._source.position(contexts, go.resume_step)
        probes.reached("formed", go.resume_step)

    def _hand_over(self, go: ring_pb2.Go, me: int, transport: RingTransport) -> None:
        """Donors send the state at the resume step, receivers take it, others go on."""
        donors, receivers = list(go.donors), list(go.receivers)
        if me in donors:
            probes.reached("hand_over", go.resume_step)
            send_state(
                transport,
                self._state.export(),
                donor_index=donors.index(me),
                donors=donors,
                receivers=receivers,
                tag_base=HANDOVER_TAG,
                device=self._transport_device,
            )
        elif me in receivers:
            probes.reached("hand_over", go.resume_step)
            received = receive_state(
                transport, donors=donors, tag_base=HANDOVER_TAG, device=self._transport_device
            )
            if not self._attendance.begin_replace(go.generation):
                raise RingAborted(f"generation {go.generation} is over")
            self._state.load(received)
            self._rank0_buffers = [buffer.detach().clone() for buffer in self._module_buffers]
            self._pristine = False
            self._attendance.tell(lambda: self._protocol.end_replace(go.generation, go.resume_step))

    # ------------------------------------------------------------------ checkpoints

    def _take_checkpoint(self) -> None:
        """Copy this worker's shard at the boundary that was asked for; writing goes on behind."""
        message = self._attendance.take_checkpoint_request()
        if message is None:
            return
        if message.step != self.applied_step:
            _log.warning("checkpoint missed", checkpoint=message.checkpoint, step=self.applied_step)
            return
        self._saver.write_shard(
            message,
            self._state.export(),
            contexts={rank: dict(context.parts) for rank, context in self._contexts.items()},
            ready_order=self._protocol.ready_order,
        )
