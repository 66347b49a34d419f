"""Work between two steps: ring changes with their hand-over, loading, checkpoints.

The trainer calls it in the script's thread before each step.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Protocol

import structlog
import torch

from elastane.collective.ring_thread import finish_in_thread
from elastane.collective.transport import HANDOVER_TAG, RingAborted, RingBroken, RingTransport
from elastane.context import EstContext
from elastane.runtime import probes
from elastane.runtime.interval import Interval, IntervalError, closed, is_open, reported_against
from elastane.runtime.saving import CheckpointSaver, load_state
from elastane.runtime.step_parts import StepParts
from elastane.runtime.step_runner import StepRunner
from elastane.state.codec import Exported
from elastane.state.handover import receive_state, send_state
from elastane.state.stream import StreamLayout
from elastane.state.train_state import TrainState
from elastane_proto.v1 import ring_pb2

_log = structlog.get_logger(__name__)


class RingMember(Protocol):
    """The trainer, as it sees changes of its ring."""

    def begins_epoch(self, step: int) -> bool:
        """True if the script's code between epochs runs before `step`."""

    def replaced(self, loaded_step: int | None) -> None:
        """Note that weights and buffers were replaced.

        loaded_step: the checkpoint's; None: they came from other members.
        """

    def entered(self, step: int, received: Exported | None) -> None:
        """Start this worker's ESTs at `step`, from contexts that are in place.

        received: the state, if it came from other members since the last call.
        """


class StepBoundary:
    """A worker's side of everything that happens at a step boundary.

    interval: the script's code between epochs, as it ran here. initial: contexts of all ESTs at step 0.
    device: holds the tensors of messages.
    """

    def __init__(
        self,
        worker_id: str,
        parts: StepParts,
        runner: StepRunner,
        state: TrainState,
        saver: CheckpointSaver,
        interval: Interval,
        initial: dict[int, EstContext],
        device: torch.device,
    ) -> None:
        self._worker_id = worker_id
        self._worker_session, self._reducer = parts.worker_session, parts.reducer
        self._protocol = parts.worker_session.protocol
        self._contexts, self._figures = parts.contexts, parts.figures
        self._runner = runner
        self._state = state
        self._saver = saver
        self._interval = interval
        self._initial = initial
        self._device = device
        #: The weights are still those that the script built.
        self.pristine = True
        self._received: Exported | None = None

    def settle(self, member: RingMember, *, in_loop: bool = True) -> None:
        """Return when this worker runs in a ring and the master requests nothing before the next step.

        in_loop: the script's code before the step has ended. Raises IntervalError.
        """
        while True:
            if not self._interval_is_open(member):
                self._take_checkpoint()
            request = self._worker_session.next_request()
            if request is None:
                if not in_loop or not self._interval_is_open(member):
                    return
                self._close_interval(member)
                continue
            if in_loop:
                self._worker_session.set_between(False)
            if isinstance(request, ring_pb2.Load):
                self._load(request, member)
            else:
                self._enter(request, member)

    def _interval_is_open(self, member: RingMember) -> bool:
        """True if the random draws of the code before the next step are not in the contexts yet."""
        step = self._protocol.applied_step
        return member.begins_epoch(step) and is_open(self._contexts.now, step)

    def _start_ests(
        self, known: dict[int, EstContext], now: dict[int, EstContext], step: int, member: RingMember
    ) -> None:
        """Start this worker's ESTs at `step`.

        known: their contexts as the master has them; now: those after the code before the step.
        """
        self._contexts.now, self._contexts.known = now, reported_against(known, step)
        received, self._received = self._received, None
        member.entered(step, received)

    def _close_interval(self, member: RingMember) -> None:
        """Report the draws of the code before the step, and adopt the master's decision.

        Also returns when the ring changes first. Raises IntervalError if the master refuses the draws.
        """
        protocol, step = self._protocol, self._protocol.applied_step
        report = self._interval.report(protocol.generation, step)
        self._worker_session.tell(lambda: protocol.report_interval(report))
        self._worker_session.wait_for(
            lambda: protocol.changing or not protocol.generation or protocol.interval is not None
        )
        decided = protocol.interval
        if decided is None:
            return
        if decided.refusal:
            raise IntervalError(decided.refusal, step=step)
        known = self._contexts.now | {
            message.virtual_rank: EstContext.from_proto(message) for message in decided.contexts
        }
        self._start_ests(known, closed(known, decided), step, member)

    def _load(self, message: ring_pb2.Load, member: RingMember) -> None:
        """Load the newest checkpoint or keep the initial state, as leader, if nobody holds state."""
        if not self._worker_session.begin_replace(message.generation):
            return
        began = perf_counter()
        loaded = load_state(
            message, self._state, self._initial, num_ests=len(self._initial), pristine=self.pristine
        )
        member.replaced(loaded.step)
        self.pristine = self.pristine and loaded.step == 0
        self._worker_session.spans.loaded(
            message.generation, perf_counter() - began, step=loaded.step, checkpoint=loaded.checkpoint
        )
        self._worker_session.tell(lambda: self._protocol.loaded(loaded))

    def _enter(self, go: ring_pb2.Go, member: RingMember) -> None:
        """Form the generation's process group, hand state over, and start this worker's ESTs.

        A failure to form the group is reported to the master, which decides on the next generation.
        """
        began = perf_counter()
        names = [member.worker_id for member in go.members]
        me = names.index(self._worker_id)
        # Before forming: the collective of the old ring must have ended, and its gradients must not survive.
        self._runner.drop()
        try:
            transport = self._worker_session.form(go, me)
            self._worker_session.spans.formed(go.generation, perf_counter() - began, workers=len(names))
            if go.receivers:
                self._hand_over(go, me, transport, member)
        except (RingAborted, RingBroken) as error:
            _log.debug("group was not formed", generation=go.generation, error=str(error))
            failure = str(error)
            self._worker_session.tell(lambda: self._protocol.forming_failed(go.generation, failure))
            return
        contexts = {message.virtual_rank: EstContext.from_proto(message) for message in go.contexts}
        self._reducer.set_ring(transport, [(m.ests.start, m.ests.end) for m in go.members], me)
        # The step that the bucket order was taken from may be replayed: the order is then known but not yet
        # in use.
        order_step = self._reducer.order_step
        in_use = order_step is not None and go.resume_step > order_step
        self._reducer.set_layout(list(go.extra.ready_order) if in_use else None)
        if not self._worker_session.entered(go):
            return
        now = closed(contexts, go.interval) if go.HasField("interval") else contexts
        self._worker_session.spans.entered(go.generation)
        self._start_ests(contexts, now, go.resume_step, member)
        figures = self._figures
        figures.generation, figures.step, figures.ests = go.generation, go.resume_step, len(contexts)
        figures.rings_formed += 1
        figures.ring_change_seconds += perf_counter() - began
        probes.reached("formed", go.resume_step)

    def _hand_over(self, go: ring_pb2.Go, me: int, transport: RingTransport, member: RingMember) -> None:
        """Send the state at the resume step as a donor, or receive it; other members do nothing."""
        donors, receivers = list(go.donors), list(go.receivers)
        began = perf_counter()
        if me in donors:
            probes.reached("hand_over", go.resume_step)
            exported = self._state.export()
            send = partial(
                send_state,
                transport,
                exported,
                donor_index=donors.index(me),
                donors=donors,
                receivers=receivers,
                tag_base=HANDOVER_TAG,
                device=self._device,
            )
            finish_in_thread("elastane-send", transport, send)
            start, end = StreamLayout(exported.specs).stripe(donors.index(me), len(donors))
            sent = (end - start) * len(receivers)
            self._figures.handover_bytes_sent += sent
            self._tell_handover("send", go, perf_counter() - began, sent)
        elif me in receivers:
            probes.reached("hand_over", go.resume_step)
            receive = partial(
                receive_state, transport, donors=donors, tag_base=HANDOVER_TAG, device=self._device
            )
            received = finish_in_thread("elastane-receive", transport, receive)
            if not self._worker_session.begin_replace(go.generation):
                raise RingAborted(f"generation {go.generation} is over")
            size = StreamLayout(received.specs).total_bytes
            self._figures.handover_bytes_received += size
            self._tell_handover("receive", go, perf_counter() - began, size)
            # Only now, and outside the receiving thread: an abandoned thread must never touch live weights.
            self._state.load(received)
            self._received = received
            member.replaced(None)
            self.pristine = False
            self._worker_session.tell(lambda: self._protocol.end_replace(go.generation, go.resume_step))
        self._figures.handover_seconds += perf_counter() - began

    def _tell_handover(self, direction: str, go: ring_pb2.Go, seconds: float, size_bytes: int) -> None:
        self._worker_session.spans.handed_over(
            direction,
            go.generation,
            seconds,
            size_bytes=size_bytes,
            donors=len(go.donors),
            receivers=len(go.receivers),
        )

    def _take_checkpoint(self) -> None:
        """Copy this worker's shard if the master requested a checkpoint here.

        It is written in the background.
        """
        message = self._worker_session.take_checkpoint_request()
        if message is None:
            return
        if message.step != self._protocol.applied_step:
            _log.warning("checkpoint missed", checkpoint=message.checkpoint, step=self._protocol.applied_step)
            return
        self._saver.write_shard(
            message,
            self._state.export(),
            contexts={rank: dict(context.parts) for rank, context in self._contexts.now.items()},
            ready_order=self._protocol.ready_order,
        )
