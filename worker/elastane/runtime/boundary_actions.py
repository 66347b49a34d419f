"""A trainer's actions at a step boundary: its session, process group, model and storage, with their figures.

Every action ends before it returns: coroutines block the script's thread and never suspend.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, NoReturn, Protocol

import torch

from elastane.collective.ring_thread import finish_in_thread
from elastane.collective.transport import HANDOVER_TAG, RingTransport
from elastane.runtime import probes
from elastane.runtime.feed_book import FollowError
from elastane.runtime.hosted_contexts import HostedContexts
from elastane.runtime.interval import Interval
from elastane.runtime.protocol import Outcome
from elastane.runtime.ring_follower import RingFollower
from elastane.runtime.saving import CheckpointSaver, restore_newest
from elastane.runtime.step_parts import StepParts
from elastane.runtime.step_runner import StepRunner
from elastane.runtime.worker_session import WorkerSession
from elastane.state.checkpoint import LoadedCheckpoint
from elastane.state.codec import Exported
from elastane.state.handover import receive_state, send_state
from elastane.state.stream import StreamLayout
from elastane.state.train_state import TrainState
from elastane_common.observe.figures import WorkerFigures
from elastane_proto.v1 import common_pb2, ring_pb2


class RingMember(Protocol):
    """The trainer, as it sees changes of its ring."""

    def begins_epoch(self, step: int) -> bool:
        """True if the script's code between epochs runs before `step`."""

    def replaced(self, loaded_step: int | None) -> None:
        """Note that weights and buffers were replaced.

        loaded_step: the checkpoint's; None: they came from other members.
        """

    def entered(self, step: int, received: Any) -> None:
        """Start this worker's ESTs at `step`, from contexts that are in place.

        received: the state, if it came from other members since the last call.
        """


class RingActions:
    """Actions of a step boundary that are the same for every kind of job. interval: the script's code between
    epochs, as it ran here. drop: gives up the step in flight.
    """

    def __init__(
        self,
        session: WorkerSession,
        contexts: HostedContexts,
        figures: WorkerFigures,
        interval: Interval,
        member: RingMember,
        drop: Callable[[], None],
    ) -> None:
        self._session, self._contexts, self._figures = session, contexts, figures
        self._interval, self._member, self._drop = interval, member, drop
        self._transport: RingTransport | None = None
        #: State from other members that is in place and not yet reported to the member.
        self._received: Any = None
        #: When the change of the ring, and the hand-over in it, began.
        self._change_began = self._handover_began = 0.0

    # ------------------------------------------------------------------ the session

    def tell(self, change: Callable[[], Outcome]) -> None:
        self._session.tell(change)

    async def wait_for(self, condition: Callable[[], object]) -> None:
        self._session.wait_for(condition)

    async def next_request(self) -> ring_pb2.Load | ring_pb2.Go | ring_pb2.Follow | None:
        return self._session.next_request()

    def take_back(self) -> bool:
        """No step of this kind of job is applied ahead."""
        return False

    def explain(self) -> None:
        self._session.explain()

    def set_between(self, between: bool) -> None:
        self._session.set_between(between)

    def start_anew(self, why: str) -> NoReturn:
        self._session.exits.start_anew(why)

    def begin_replace(self, generation: int) -> bool:
        return self._session.begin_replace(generation)

    # ------------------------------------------------------------------ newcomers that follow

    def begin_following(self) -> ring_pb2.Follow | None:
        return self._session.begin_following()

    async def follow(self, message: ring_pb2.Follow) -> int:
        """No ring of this kind of job can be followed."""
        raise FollowError(f"it does not follow {message.source}")

    def feed(self, step: int) -> None:
        """No newcomer follows this worker."""

    # ------------------------------------------------------------------ the script's code between epochs

    def begins_epoch(self, step: int) -> bool:
        return self._member.begins_epoch(step)

    def interval_report(self, generation: int, step: int) -> ring_pb2.IntervalReport:
        return self._interval.report(generation, step)

    # ------------------------------------------------------------------ checkpoints and rings

    def take_checkpoint_request(self) -> ring_pb2.Checkpoint | None:
        return self._session.take_checkpoint_request()

    def loaded(self, loaded: ring_pb2.Loaded) -> None:
        self._member.replaced(loaded.step)
        self._session.spans.loaded(
            loaded.generation,
            perf_counter() - self._change_began,
            step=loaded.step,
            checkpoint=loaded.checkpoint,
        )

    def drop_step(self) -> None:
        self._change_began = perf_counter()
        self._drop()

    async def form(self, go: ring_pb2.Go, me: int) -> None:
        self._transport = self._session.form(go, me)
        seconds = perf_counter() - self._change_began
        self._session.spans.formed(go.generation, seconds, workers=len(go.members))

    def start_ests(self, step: int, go: ring_pb2.Go | None) -> None:
        received, self._received = self._received, None
        self._member.entered(step, received)
        if go is None:
            return
        figures = self._figures
        figures.usual_steps, figures.ring_steps = 0, 0  # first: another thread reads them
        figures.ring_step_seconds = 0.0
        figures.generation, figures.step, figures.ests = go.generation, step, len(self._contexts.now)
        figures.rings_formed += 1
        figures.ring_change_seconds += perf_counter() - self._change_began
        probes.reached("formed", step)

    async def all_wait(self) -> bool:
        """There is nothing that members do together between epochs."""
        return True

    def _note_handover(self, direction: str, go: ring_pb2.Go, size_bytes: int) -> None:
        self._session.spans.handed_over(
            direction,
            go.generation,
            perf_counter() - self._handover_began,
            size_bytes=size_bytes,
            donors=len(go.donors),
            receivers=len(go.receivers),
        )


class BoundaryActions(RingActions):
    """Actions of one worker's step boundary.

    num_ests: of the job. device: holds the tensors of messages.
    """

    def __init__(
        self,
        parts: StepParts,
        runner: StepRunner,
        state: TrainState,
        saver: CheckpointSaver,
        interval: Interval,
        member: RingMember,
        num_ests: int,
        device: torch.device,
    ) -> None:
        super().__init__(parts.worker_session, parts.contexts, parts.figures, interval, member, runner.drop)
        self._reducer, self._source, self._runner = parts.reducer, parts.source, runner
        runner.saves_with(self.save)
        self._state = state
        self._saver = saver
        self._follower, self._feed = RingFollower(self._session, state), parts.feed
        self._num_ests = num_ests
        self._device = device
        #: Received state in staging memory.
        self._staged: Exported | None = None

    def take_back(self) -> bool:
        return self._runner.take_back()

    def save(self, message: ring_pb2.Checkpoint) -> None:
        """Copy this worker's shard now, and write it in the background."""
        self._saver.write_shard(
            message,
            self._state.export(),
            contexts={rank: dict(context.parts) for rank, context in self._contexts.now.items()},
            ready_order=self._session.protocol.ready_order,
        )

    async def restore(self, message: ring_pb2.Load) -> LoadedCheckpoint | None:
        self._change_began = perf_counter()
        return restore_newest(message, self._state, num_ests=self._num_ests)

    async def follow(self, message: ring_pb2.Follow) -> int:
        def meanwhile(transport: RingTransport) -> None:
            self._get_ready(message.step, message.extra, message.ests, transport)

        step = self._follower.follow(message, meanwhile)
        self._member.replaced(None)
        return step

    def feed(self, step: int) -> None:
        self._feed.at_boundary(step)

    async def form(self, go: ring_pb2.Go, me: int) -> None:
        self._staged = None
        await super().form(go, me)

    async def send_state(self, go: ring_pb2.Go, donor: int) -> None:
        """Send this donor's stripe of the state to each receiver."""
        transport, exported = self._begin_handover(go), self._state.export()
        send = partial(
            send_state,
            transport,
            exported,
            donor_index=donor,
            donors=list(go.donors),
            receivers=list(go.receivers),
            tag_base=HANDOVER_TAG,
            device=self._device,
        )
        finish_in_thread("elastane-send", transport, send)
        start, end = StreamLayout(exported.specs).stripe(donor, len(go.donors))
        sent = (end - start) * len(go.receivers)
        self._figures.handover_bytes_sent += sent
        self._note_handover("send", go, sent)
        self._figures.handover_seconds += perf_counter() - self._handover_began

    async def receive_state(self, go: ring_pb2.Go) -> None:
        """Receive all donors' stripes; the live state is not touched."""
        transport = self._begin_handover(go)
        receive = partial(
            receive_state, transport, donors=list(go.donors), tag_base=HANDOVER_TAG, device=self._device
        )
        mine = go.members[transport.rank].ests
        ests = mine.end - mine.start
        self._staged = finish_in_thread(
            "elastane-receive",
            transport,
            receive,
            lambda: self._get_ready(go.resume_step, go.extra, ests, transport),
        )

    def _get_ready(
        self, step: int, extra: common_pb2.ExtraState, ests: int, transport: RingTransport
    ) -> None:
        """Do beforehand what entering a ring, and its first step, take time for.

        transport: shares memory if that of the ring will.
        """
        self._source.expect(step)
        self._reducer.provide(self._ready_order(step, extra), ests, transport.members)

    async def adopt_state(self, go: ring_pb2.Go) -> None:
        received, self._staged = self._staged, None
        assert received is not None
        size = StreamLayout(received.specs).total_bytes
        self._figures.handover_bytes_received += size
        self._note_handover("receive", go, size)
        self._state.load(received)
        self._received = received
        self._member.replaced(None)
        self._figures.handover_seconds += perf_counter() - self._handover_began

    def enter(self, go: ring_pb2.Go, me: int) -> bool:
        """Let the reducer and the session use the group that has been formed."""
        assert self._transport is not None
        self._reducer.set_ring(self._transport, [(m.ests.start, m.ests.end) for m in go.members], me)
        self._reducer.set_layout(self._ready_order(go.resume_step, go.extra))
        is_entered = self._session.entered(go)
        if is_entered:
            self._session.spans.entered(go.generation)
        return is_entered

    def _ready_order(self, step: int, extra: common_pb2.ExtraState) -> list[int] | None:
        """Return the order that decides the bucket layout from `step` on; None: the first layout.

        The step that the order was taken from may be replayed: it is then known but not yet in use.
        """
        order_step = self._reducer.order_step
        in_use = order_step is not None and step > order_step
        return list(extra.ready_order) if in_use else None

    def _begin_handover(self, go: ring_pb2.Go) -> RingTransport:
        assert self._transport is not None
        self._handover_began = perf_counter()
        probes.reached("hand_over", go.resume_step)
        if self._device.type == "cuda":
            # The thread that hands over has a stream of its own.
            torch.cuda.current_stream(self._device).synchronize()
        return self._transport
