"""A step's gradients, from autograd's hooks to the averages in `p.grad`.

What DistributedDataParallel does for one rank, done for all ESTs of a worker, so that the sums have
the same bits (bucket layouts: `buckets`; order of additions: `order`):

    each EST's turn   the hook of a parameter puts grad * (1/N) into the EST's slot of its bucket and
                      takes the gradient away from the script: p.grad is None on all turns but the last
    the last turn     a bucket whose gradients are all in, and all buckets before it, is all-reduced
                      in the background while backward goes on
    end of backward   the step is reported (`on_last_backward`), then the sums are waited for, and
                      p.grad holds the averages before backward() returns to the script

When the ring is aborted or breaks the script notices nothing: p.grad stays None, `failure` says why,
and the loader replays the step. The script's own mistakes (a parameter without a gradient, two
backward passes) are raised from its backward().

The averages are views of memory that the next step's all-reduce writes to, as with DDP's
`gradient_as_bucket_view`: clone a gradient to keep it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import Parameter

from elastane.collective.allreduce import CanonicalAllreduce, Memory
from elastane.collective.background import BackgroundThread
from elastane.collective.buckets import Bucket, first_layout, rebuilt_layout
from elastane.collective.order import Ranges
from elastane.collective.packing import Packing
from elastane.collective.transport import RingError, RingTransport
from elastane.errors import StepError, UnsupportedError

#: Tag of the buffers' message; bucket i has tag i + 1.
BUFFERS_TAG: Final = 0


@dataclass(slots=True)
class _Turn:
    """One EST's backward."""

    slot: int
    last: bool
    record_order: bool
    #: Which parameters' gradients have arrived, and how many of each bucket have not.
    arrived: bytearray
    missing: list[int]
    #: Buckets handed to the background thread, in order.
    started: int = 0
    callback_queued: bool = False
    #: Gradients were added to the last step's averages, which the script had not set to None.
    in_place: bool = False
    complete: bool = False


@dataclass(slots=True)
class _Slots:
    """Where gradients lie in the present ring and layout; indices are the parameters'."""

    layout: list[Bucket]
    plans: list[CanonicalAllreduce]
    #: views[slot][index]: an EST's scaled gradient; averages[index]: the sum over all ESTs.
    views: list[list[Tensor]]
    averages: list[Tensor]
    bucket_of: list[int]
    #: Version of each bucket's sums at the start of the step: tells who has written to p.grad since.
    versions: list[int] = field(default_factory=list)


class Reducer:
    """Built once by the trainer; its methods are called by the script's thread.

    params: all that require a gradient, in registration order, with their names; num_ests: N;
    buffers: the module's, of any dtype; on_last_backward: called at the end of the last EST's
    backward, before the collective is waited for; bucket_cap_mb: as DDP's argument.
    """

    def __init__(
        self,
        params: Sequence[Parameter],
        names: Sequence[str],
        num_ests: int,
        buffers: Sequence[Tensor] = (),
        *,
        on_last_backward: Callable[[], None] = lambda: None,
        bucket_cap_mb: float | None = None,
    ) -> None:
        assert params and num_ests > 0
        self._params = list(params)
        self._names = list(names)
        self._scale = 1.0 / num_ests
        self._on_last_backward = on_last_backward
        self._bucket_cap_mb = bucket_cap_mb
        self._packing = Packing(list(buffers))
        self._transport: RingTransport | None = None
        self._ranges: Ranges = []
        self._me = 0
        self._layout_order: list[int] | None = None
        self._slots: _Slots | None = None
        self._stale = True
        self._turn: _Turn | None = None
        self._zeroes_in_place = False
        self._message: Tensor | None = None
        self._background = BackgroundThread("elastane-allreduce")
        self._stream = _side_stream(self._params[0].device)
        self._hooks = [
            param.register_post_accumulate_grad_hook(partial(self._take, index))
            for index, param in enumerate(self._params)
        ]
        #: Why the step's all-reduce was given up; None while all is well. Reset by `drop` and a new step.
        self.failure: RingError | None = None
        #: Parameter indices as the gradients of the recorded backward became ready.
        self.ready_order: list[int] = []
        #: EST 0's buffers after the step, once backward() of the last turn has returned.
        self.next_buffers: list[Tensor] = []

    # ------------------------------------------------------------------ the ring and the layout

    def set_ring(self, transport: RingTransport, ranges: Ranges, me: int) -> None:
        """A new generation: its transport, the virtual ranks of each member, this worker's index.

        Called between steps; memory is exchanged when the next step begins.
        """
        self.drop()
        self._transport, self._ranges, self._me = transport, list(ranges), me
        self._stale = True

    def set_layout(self, ready_order: Sequence[int] | None) -> None:
        """The bucket layout from the next step on: the first step's (None), or that rebuilt from the
        order in which EST 0's gradients became ready in the first step."""
        order = None if ready_order is None else list(ready_order)
        if order != self._layout_order:
            self._layout_order = order
            self._stale = True

    # ------------------------------------------------------------------ the step

    def begin_turn(self, slot: int, last: bool, record_order: bool) -> None:
        """The next mini-batch is that of this worker's `slot`-th EST; slot 0 begins a step.

        last: it is the worker's last EST of the step. record_order: take down `ready_order`.
        Raises StepError when the turn before had no backward().
        """
        if self._turn is not None and not self._turn.complete:
            raise StepError(
                "the loop body ended without backward()", hint="call backward() once for every mini-batch"
            )
        assert self._transport is not None, "set_ring comes first"
        if slot == 0:
            assert not self._background.busy
            if self._stale:
                self._slots = self._allocate()
                self._stale = False
            self.failure = None
            self._message = None
            assert self._slots is not None
            self._slots.versions = [plan.out._version for plan in self._slots.plans]
        assert self._slots is not None and slot < len(self._slots.views)
        if record_order:
            self.ready_order = []
        missing = [len(bucket.places) for bucket in self._slots.layout]
        self._turn = _Turn(slot, last, record_order, bytearray(len(self._params)), missing)

    def end_step(self) -> None:
        """The step is applied: until the next turn begins, gradients are the script's own."""
        self._turn = None

    def broadcast_buffers(self, captured: Sequence[Tensor] | None) -> None:
        """Spread EST 0's buffers with this step: called once a step by every member, not later than in
        `on_last_backward`; the first member passes the buffers as EST 0's turn left them, others None.

        They are copied at once, and are in `next_buffers` when backward() of the last turn returns.
        """
        if self._me == 0:
            assert captured is not None, "the host of EST 0 has EST 0's buffers"
            self._message = self._packing.pack(captured)
        else:
            self._message = self._packing.empty()

    def drop(self) -> None:
        """Throw the step in flight away: p.grad is None, nothing of it is waited for.

        A ring in which a step was dropped while its messages travelled must not be used again, so
        it is aborted if that has not been done.
        """
        if self._background.busy and self._transport is not None:
            self._transport.abort()
        with suppress(RingError):  # what an aborted collective ends with
            self._background.finish()
        self._turn = None
        self._message = None
        self.failure = None
        for param in self._params:
            param.grad = None

    def close(self) -> None:
        """Remove the hooks and end the thread; a collective in flight is aborted. Idempotent."""
        if self._background.busy and self._transport is not None:
            self._transport.abort()
        for hook in self._hooks:
            hook.remove()
        self._background.close()

    # ------------------------------------------------------------------ in backward

    def _take(self, index: int, param: Tensor) -> None:
        """Hook: the gradient of parameter `index` is complete for this backward."""
        turn, slots = self._turn, self._slots
        if turn is None or slots is None:
            return  # outside the loop the gradients are the script's own
        gradient = param.grad
        assert gradient is not None
        if gradient.requires_grad:
            gradient = gradient.detach()  # backward(create_graph=True): the averages have no graph
        if turn.complete or turn.arrived[index]:
            raise StepError(
                f"parameter {self._names[index]} got a second gradient in one turn",
                hint="call backward() once for every mini-batch; nested or repeated backward passes are not"
                " supported",
                parameter=self._names[index],
            )
        if gradient.layout is not torch.strided:
            raise UnsupportedError(
                f"parameter {self._names[index]} has a sparse gradient",
                hint="use dense gradients (sparse=False)",
                parameter=self._names[index],
            )
        bucket = slots.bucket_of[index]
        if turn.slot == 0 and gradient is slots.averages[index]:
            turn.in_place = self._zeroes_in_place = True
        elif turn.slot == 0 and self._zeroes_in_place:
            # A dropped step took the zeros away that the script adds to. They make 0.0 of -0.0, and one
            # 0.0 among the terms keeps the sum from being -0.0: the other ESTs need no such care.
            gradient = gradient + 0.0
        torch.mul(gradient, self._scale, out=slots.views[turn.slot][index])
        param.grad = None
        turn.arrived[index] = 1
        turn.missing[bucket] -= 1
        if turn.record_order:
            self.ready_order.append(index)
        if not turn.callback_queued:
            turn.callback_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)
        if not turn.missing[bucket]:
            self._bucket_is_in(bucket)

    def _bucket_is_in(self, bucket: int) -> None:
        turn, slots = self._turn, self._slots
        assert turn is not None and slots is not None
        if turn.in_place:
            self._check_zeroed(bucket, slots)
        while turn.last and turn.started < len(slots.plans) and not turn.missing[turn.started]:
            self._submit(partial(self._all_reduce, slots.plans[turn.started], turn.started + 1))
            turn.started += 1

    def _check_zeroed(self, bucket: int, slots: _Slots) -> None:
        """Gradients that were added to the last step's averages must have been zeroed in between.

        Only the first turn has those averages: what the other ESTs would add to is known only if it is
        zero. Zeroing and adding write to every gradient once each.
        """
        writes = slots.plans[bucket].out._version - slots.versions[bucket]
        if writes < 2 * len(slots.layout[bucket].places):
            raise UnsupportedError(
                "gradients were added to those of the step before",
                hint="call optimizer.zero_grad() in every turn, before backward()",
            )

    def _submit(self, task: Callable[[], None]) -> None:
        """Give the background thread a task on tensors that the current stream has work for."""
        if self._stream is None:
            self._background.submit(task)
            return
        stream, written = self._stream, torch.cuda.current_stream().record_event()

        def on_stream() -> None:
            with torch.cuda.stream(stream):
                stream.wait_event(written)
                task()

        self._background.submit(on_stream)

    def _all_reduce(self, plan: CanonicalAllreduce, tag: int) -> None:
        assert self._transport is not None
        with torch.no_grad():
            plan.run(self._transport, tag)

    def _spread(self, message: Tensor) -> None:
        """Send or receive the message with EST 0's buffers."""
        transport, hosts = self._transport, len(self._ranges)
        assert transport is not None
        transport.check()
        if self._me == 0:
            transfers = transport.exchange([(message, peer) for peer in range(1, hosts)], [], BUFFERS_TAG)
        else:
            transfers = transport.exchange([], [(message, 0)], BUFFERS_TAG)
        for transfer in transfers:
            transfer.wait()

    def _backward_ended(self) -> None:
        """Called by autograd at the end of each turn's backward, before backward() returns."""
        turn = self._turn
        assert turn is not None
        unused = [name for name, arrived in zip(self._names, turn.arrived, strict=True) if not arrived]
        if unused:
            raise StepError(
                f"backward() gave no gradient to {', '.join(unused[:5])}"
                + (f" and {len(unused) - 5} more parameters" if len(unused) > 5 else ""),
                hint="every parameter that requires a gradient must take part in the loss;"
                " find_unused_parameters is not supported yet",
                parameters=unused,
            )
        turn.complete = True
        if turn.last:
            self._on_last_backward()
            self._finish()

    def _finish(self) -> None:
        """Wait for the sums and show them to the script; a ring that ended leaves p.grad None."""
        message = self._message
        if message is not None and self._packing.total_bytes:
            self._submit(partial(self._spread, message))
        try:
            self._background.finish()
        except RingError as error:
            # Its traceback holds messages of the old group, which must be free to go.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            self.failure = error
            return
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        if message is not None:
            self.next_buffers = self._packing.unpack(message)
        assert self._slots is not None
        for param, average in zip(self._params, self._slots.averages, strict=True):
            param.grad = average

    # ------------------------------------------------------------------ memory

    def _allocate(self) -> _Slots:
        """Slots and sums for the present ring and layout, from the memory of those before where it fits."""
        pool = self._recycled()
        self._slots = None
        if self._layout_order is None:
            layout = first_layout(self._params)
        else:
            layout = rebuilt_layout(self._params, self._layout_order, self._bucket_cap_mb)
        plans = [
            CanonicalAllreduce(bucket.elements, bucket.dtype, self._ranges, self._me, _memory(pool, bucket))
            for bucket in layout
        ]
        start, end = self._ranges[self._me]
        by_slot: list[dict[int, Tensor]] = [{} for _ in range(end - start)]
        averages: dict[int, Tensor] = {}
        bucket_of = [0] * len(self._params)
        for number, (bucket, plan) in enumerate(zip(layout, plans, strict=True)):
            for views, slot in zip(by_slot, plan.slots, strict=True):
                views.update(bucket.views(slot))
            averages.update(bucket.views(plan.out))
            for place in bucket.places:
                bucket_of[place.index] = number
        indices = range(len(self._params))
        return _Slots(
            layout,
            plans,
            [[views[index] for index in indices] for views in by_slot],
            [averages[index] for index in indices],
            bucket_of,
        )

    def _recycled(self) -> dict[tuple[int, torch.dtype, torch.device], list[Tensor]]:
        """Memory of the present slots by size. The sums stay out of it while p.grad shows them."""
        pool: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
        shown = any(param.grad is not None for param in self._params)
        for plan in self._slots.plans if self._slots is not None else ():
            for block in plan.blocks[:-1] if shown else plan.blocks:
                pool[block.numel(), block.dtype, block.device].append(block)
        return pool


def _memory(pool: dict[tuple[int, torch.dtype, torch.device], list[Tensor]], bucket: Bucket) -> Memory:
    def take(elements: int) -> Tensor:
        fitting = pool.get((elements, bucket.dtype, bucket.device))
        if fitting:
            return fitting.pop()
        return torch.empty(elements, dtype=bucket.dtype, device=bucket.device)

    return take


def _side_stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None
