"""Collectives of a step over the ring: their order, start and completion.

    bucket 0, bucket 1, ...   all-reduced, each once its gradients are in (tag i + 1)
    EST 0's buffers           from the first member to the others (tag 0)
    maps of used parameters   exchanged, if parameters may be unused (the tag after the last bucket's)

All members must start them in this order to avoid a deadlock: one thread runs them while backward continues
in the script's thread. This module does not know autograd or the script; `reducer` collects the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter, sleep
from typing import Final

import torch
from torch import Tensor

from elastane.collective.allreduce import CanonicalAllreduce
from elastane.collective.nccl import ABORT_SECONDS
from elastane.collective.order import Ranges
from elastane.collective.packing import Message, Packing
from elastane.collective.ring_errors import RingAborted, RingError
from elastane.collective.ring_thread import RingThread
from elastane.collective.shared_members import SharedMembers
from elastane.collective.shared_spread import SharedSpread
from elastane.collective.slots import Slots
from elastane.collective.transport import RingTransport

#: Tag of the buffers' message; bucket i has tag i + 1, the map of used parameters the one after the last.
BUFFERS_TAG: Final = 0
#: Polling interval of an aborted ring's stream, because CUDA's own wait has no time limit.
_POLL_SECONDS: Final = 0.001


class StepCollectives:
    """Runs one worker's collectives, step after step. Called by the script's thread.

    device: of the gradients. buffers: the module's, of any dtype.
    """

    def __init__(self, device: torch.device, buffers: Sequence[Tensor]) -> None:
        self._packing = Packing(list(buffers))
        self._transport: RingTransport | None = None
        self.ranges: Ranges = []
        self.me = 0
        #: Messages with EST 0's buffers: in transit, free for the next step, and shown to the script.
        self._message: Message | None = None
        self._spare: Message | None = None
        self._shown: Message | None = None
        #: Sends the buffers if the members share memory.
        self._spreads: SharedSpread | None = None
        #: Runs the current ring's communication.
        self._thread: RingThread | None = None
        self._device = device
        #: On a GPU: the stream of the thread's work, separate from the script's.
        self._stream: torch.cuda.Stream | None = None
        #: Finished tasks of the thread may still be queued in that stream.
        self._queued = False
        self._given_up = ""
        #: Total time spent waiting for sums after backward.
        self.waited_seconds = 0.0

    # ------------------------------------------------------------------ the ring

    def set_ring(self, transport: RingTransport, ranges: Ranges, me: int) -> None:
        """Adopt a new generation: its transport, the virtual ranks of each member, this worker's index."""
        if self._thread is not None:
            self._thread.close()
        self._thread = RingThread("elastane-allreduce", transport)
        if self._device.type == "cuda":
            # A new stream for each ring: the old one may wait for ever for messages that will not come.
            self._stream = torch.cuda.Stream(self._device)
            self._queued = False
        self._transport, self.ranges, self.me = transport, list(ranges), me
        self._spreads = None
        if transport.members is not None and self._packing.total_bytes and self._packing.device.type == "cpu":
            self._spreads = SharedSpread(transport.members, self._packing.total_bytes, me)

    @property
    def members(self) -> SharedMembers | None:
        """The members' shared memory, if they share any."""
        assert self._transport is not None, "set_ring comes first"
        return self._transport.members

    def begin_step(self) -> None:
        """Begin a step; the previous one is completely finished."""
        assert self._thread is not None and not self._thread.busy, "set_ring comes first"
        self._given_up = ""
        self._message = None

    def give_up(self, why: str) -> None:
        """Abort the ring, because no worker may apply this step. why: reason, for `finish`."""
        assert self._transport is not None
        self._given_up = why
        self._transport.abort()

    def drop(self) -> bool:
        """Discard what is in flight without waiting for it; True if the thread may still write to its memory.

        A ring in which a step was dropped while its messages were in transit must not be used again, so it is
        aborted if it still works.
        """
        self._abort_if_busy()
        if self._thread is not None:
            with suppress(RingError):  # error of the aborted collective
                self._thread.finish()
        self._message = self._spare = None  # others may still write to them
        return self._thread is not None and (self._thread.left or not self._stream_ends())

    def close(self) -> None:
        """End the thread; a collective in flight is aborted. Idempotent."""
        self._abort_if_busy()
        if self._thread is not None:
            self._thread.close()

    def _abort_if_busy(self) -> None:
        if self._thread is not None and (self._thread.busy or self._queued):
            assert self._transport is not None
            self._transport.abort()

    def _stream_ends(self) -> bool:
        """Wait until the stream's kernels, including additions to the slots, have run; False if they hang."""
        deadline = perf_counter() + ABORT_SECONDS
        while self._stream is not None and not self._stream.query():
            if perf_counter() > deadline:
                return False
            sleep(_POLL_SECONDS)
        self._queued = False
        return True

    # ------------------------------------------------------------------ the step

    def start_buckets(
        self,
        plans: Sequence[CanonicalAllreduce],
        start: int,
        end: int,
        missing: Sequence[int],
        *,
        backward_done: bool,
    ) -> int:
        """Start the sums of the buckets from `start` to before `end` whose gradients are in, in order.

        missing: for each bucket the number of gradients that are not in: a bucket also waits for those before
        it. Returns the first bucket that has not been started.
        """
        while start < end and not missing[start]:
            self._submit(partial(self._all_reduce, plans[start], start + 1), backward_done=backward_done)
            start += 1
        return start

    def keep_buffers(self, buffers: Sequence[Tensor]) -> None:
        """Copy EST 0's buffers at the end of its turn, for `broadcast_buffers`; called by EST 0's host."""
        self._message = self._spare_message()
        self._message.hold(buffers)

    def broadcast_buffers(self) -> None:
        """Send or receive EST 0's buffers with this step, in `finish`."""
        if self.me == 0:
            assert self._message is not None, "the host of EST 0 has EST 0's buffers"
        else:
            self._message = self._spare_message()

    def finish(self, slots: Slots, used: Tensor | None) -> RingError | None:
        """Wait for the sums of all buckets, which have been started, and for the buffers.

        used: map of parameters that some EST of this worker used, replaced by the whole ring's; None: all
        are. Returns why the step's collectives failed, or None.
        """
        message = self._message
        if message is not None and self._packing.total_bytes:
            self._submit(partial(self._spread, message.flat), backward_done=True)
        if used is not None and len(self.ranges) > 1:
            peers = (peer for peer in range(len(self.ranges)) if peer != self.me)
            others = {peer: torch.empty_like(used, device=self._device) for peer in peers}
            tag = len(slots.plans) + 1
            self._submit(partial(self._join_used, used, others, tag), backward_done=True)
        self._submit(partial(self._settle, slots), backward_done=True)
        assert self._thread is not None
        failure: RingError | None = None
        began = perf_counter()
        try:
            self._thread.finish()
        except RingError as error:
            # Its traceback refers to messages of the old group, which must be released.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            failure = RingAborted(self._given_up) if self._given_up else error
        else:
            if self._stream is not None:
                torch.cuda.current_stream(self._device).wait_stream(self._stream)
                self._queued = False
            if message is not None:
                self._spare, self._shown = self._shown, message
        self.waited_seconds += perf_counter() - began
        return failure

    @property
    def buffers(self) -> list[Tensor]:
        """EST 0's buffers after the last step whose collectives succeeded."""
        return self._shown.tensors if self._shown is not None else []

    def _spare_message(self) -> Message:
        message, self._spare = self._spare, None
        return message or self._packing.message()

    def _submit(self, task: Callable[[], None], *, backward_done: bool) -> None:
        """Give the ring's thread a task on tensors for which the current stream has queued work."""
        assert self._thread is not None
        if self._stream is None:
            alone = len(self.ranges) == 1 and backward_done and not self._thread.busy
            (self._thread.run if alone else self._thread.submit)(task)
            return
        self._queued = True
        stream, written = self._stream, torch.cuda.current_stream(self._device).record_event()

        def on_stream() -> None:
            with torch.cuda.stream(stream):
                stream.wait_event(written)
                task()

        self._thread.submit(on_stream)

    # ------------------------------------------------------------------ in the ring's thread

    def _all_reduce(self, plan: CanonicalAllreduce, tag: int) -> None:
        assert self._transport is not None
        with torch.no_grad():
            plan.run(self._transport, tag)

    def _settle(self, slots: Slots) -> None:
        """Wait until everything received is in memory: the worker is about to report the sums."""
        assert self._transport is not None
        slots.settle()
        self._transport.synchronize()

    def _spread(self, message: Tensor) -> None:
        """Send or receive the message with EST 0's buffers."""
        transport, hosts = self._transport, len(self.ranges)
        assert transport is not None
        if self._spreads is not None:
            self._spreads.run(transport, message, BUFFERS_TAG)
            return
        transport.check()
        if self.me == 0:
            transfers = transport.exchange([(message, peer) for peer in range(1, hosts)], [], BUFFERS_TAG)
        else:
            transfers = transport.exchange([], [(message, 0)], BUFFERS_TAG)
        for transfer in transfers:
            transfer.wait()

    def _join_used(self, mine: Tensor, others: dict[int, Tensor], tag: int) -> None:
        """Exchange the maps of used parameters with all hosts, as DDP all-reduces its map."""
        transport = self._transport
        assert transport is not None
        transport.check()
        sent = mine.to(self._device)  # it is on the CPU; NCCL sends only GPU memory
        for transfer in transport.exchange(
            [(sent, peer) for peer in others], [(theirs, peer) for peer, theirs in others.items()], tag
        ):
            transfer.wait()
        transport.synchronize()
        for theirs in others.values():
            mine |= theirs.to(mine.device)
