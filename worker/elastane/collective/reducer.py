"""Gradients of a step, from autograd's hooks to the averages in `p.grad`.

DistributedDataParallel's work for one rank, done for all ESTs of a worker, so that the sums have
the same bits (bucket layouts: `buckets`; order of additions: `order`; memory: `slots`; what is sent, and
when: `collectives`):

    each EST's turn   the hook of a parameter puts grad * (1/N) into the EST's slot of its bucket; the
                      script keeps the EST's own gradient in p.grad and may modify it
    the last turn     at the first gradient the step may be reported (`BackwardReport`); a bucket whose
                      gradients are all in, and all buckets before it, is all-reduced in the background
                      while backward continues
    end of backward   the step is reported or confirmed, then the sums are awaited, and p.grad holds the
                      averages before backward() returns to the script

With gradient accumulation an EST has several backward passes in a step, as under DDP's no_sync(): only the
gradients of the last one are used, with everything autograd has added up in p.grad.

When the ring is aborted or breaks, the script notices nothing: p.grad holds the last EST's own gradients,
`failure` holds the reason, and the loader replays the step. Mistakes of the script (a parameter without a
gradient, two backward passes) are raised from its backward().

The averages are views of memory that the next step's all-reduce writes to, as with DDP's
`gradient_as_bucket_view`: clone a gradient to keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from operator import or_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from elastane.collective.backward import Backward, BackwardReport
from elastane.collective.buckets import Bucket, first_layout, rebuilt_layout, unused_layout
from elastane.collective.collectives import StepCollectives
from elastane.collective.gradient_digest import GradientDigest
from elastane.collective.order import Ranges
from elastane.collective.ring_errors import RingError
from elastane.collective.script_gradients import ScriptGradients
from elastane.collective.shared_members import SharedMembers
from elastane.collective.slots import Pool, Slots, allocate, provide
from elastane.collective.transport import RingTransport
from elastane_common.errors import StepError, UnsupportedError


class Reducer:
    """Gradients of one worker, taken by autograd's hooks. Built once; called by the script's thread.

    params: all that require a gradient, in registration order, with their names; num_ests: N; buffers: the
    module's, of any dtype. The others are DDP's arguments of these names.
    """

    def __init__(
        self,
        params: Sequence[Parameter],
        names: Sequence[str],
        num_ests: int,
        buffers: Sequence[Tensor] = (),
        *,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        gradient_as_bucket_view: bool = False,
    ) -> None:
        assert params and num_ests > 0
        self._params = list(params)
        self._names = list(names)
        self._num_ests = num_ests
        self.gradients = ScriptGradients(params)
        self._factor = 1.0 / num_ests
        self._bucket_cap_mb = bucket_cap_mb
        self._as_bucket_view = gradient_as_bucket_view
        #: A static graph may run a parameter's hook several times, so gradients are taken at the end of
        #: backward.
        self._deferred = static_graph
        self._may_be_unused = find_unused_parameters or static_graph
        self._rebuilds = static_graph or not find_unused_parameters
        #: Communication for the gradients taken here.
        self.collectives = StepCollectives(self._params[0].device, buffers)
        self._layout_order: list[int] | None = None
        self._slots: Slots | None = None
        self._stale = True
        #: Memory for the next ring.
        self._provided: Pool = {}
        self._backward: Backward | None = None
        #: Parameters that some EST of this worker used in the step; after the exchange, some EST of the ring.
        self._used = bytearray(len(self._params))
        self._order: dict[int, None] = {}
        self._hooks = [self._hook(index, param) for index, param in enumerate(self._params)]
        #: `Backward.waits_in` of a backward whose gradients are all taken one by one.
        self._none_waits: list[int | None] = [None] * len(self._params)
        #: Called when the backward of a mini-batch is over, before its step is reported.
        self.backward_ended: Callable[[], None] = lambda: None
        #: Why the step's all-reduce failed, or None. Reset by `drop` and a new step.
        self.failure: RingError | None = None

    @property
    def params(self) -> Sequence[Parameter]:
        """The parameters whose gradients are summed."""
        return self._params

    @property
    def ready_order(self) -> list[int]:
        """Parameter indices in the order in which gradients of the recorded backward became ready."""
        return list(self._order)

    @property
    def order_step(self) -> int | None:
        """The step whose ready order decides the layout of all later steps.

        None if the layout never changes.
        """
        if not self._rebuilds:
            return None
        return 1 if self._deferred else 0

    # ------------------------------------------------------------------ the ring and the layout

    def set_ring(self, transport: RingTransport, ranges: Ranges, me: int) -> None:
        """Adopt a new generation: its transport, the virtual ranks of each member, this worker's index.

        Called between steps; memory is reallocated when the next step begins.
        """
        self.drop()
        self.collectives.set_ring(transport, ranges, me)
        self._stale = True

    def set_layout(self, ready_order: Sequence[int] | None) -> None:
        """Set the bucket layout from the next step on.

        ready_order: order in which EST 0's gradients became ready in step `order_step`; None: the first
        step's layout.
        """
        order = None if ready_order is None else list(ready_order)
        if order != self._layout_order:
            self._layout_order = order
            self._stale = True

    def provide(self, ready_order: Sequence[int] | None, ests: int, members: SharedMembers | None) -> None:
        """Allocate host memory for this worker's first ring, which otherwise the ring's first step would do.

        Called while this worker waits for its state. Arguments: the ring's layout as for `set_layout`; the
        number of this worker's ESTs; the members' memory if they share it. What the ring turns out to have no
        use for is released.
        """
        if self._slots is not None or not self._params[0].is_cpu:
            return
        layout = self._layout_for(None if ready_order is None else list(ready_order))
        self._provided = provide(layout, ests, members)

    # ------------------------------------------------------------------ the step

    def begin_backward(
        self,
        slot: int,
        last: bool,
        record_order: bool,
        *,
        first: bool = True,
        sync: bool = True,
        guest: bool = False,
        digest: GradientDigest | None = None,
        report: BackwardReport | None = None,
    ) -> None:
        """Begin the next mini-batch, of this worker's `slot`-th EST; slot 0 begins a step.

        last: it is the worker's last EST of the step. record_order: record `ready_order`. first, sync: the
        mini-batch is the EST's first or last of the step. guest: the EST is another worker's; it uses slot 0
        before this worker's first EST, and the step begins with it. digest: receives the EST's contribution
        to the sums. report: reports the step; used in the worker's last mini-batch of it. Raises StepError if
        the previous mini-batch had no backward().
        """
        before = self._backward
        if before is not None and not before.complete:
            raise StepError(
                "the loop body ended without backward()",
                hint="call backward() once for every mini-batch; it must reach a parameter",
            )
        opens = slot == 0 and first and not (before is not None and before.guest)
        if opens:
            self._begin_step()
        slots = self._slots
        assert slots is not None and slot < len(slots.views)
        if first and not opens:
            self.gradients.begin_est(slots)
        if record_order:
            self._order = {}
        self._backward = Backward(
            slot,
            sync,
            last and sync,
            record_order and sync,
            bytearray(len(self._params)),
            [len(bucket.places) for bucket in slots.layout],
            [0] * len(slots.layout) if first or before is None else before.added,
            [0] * len(slots.layout),
            [[] for _ in slots.layout],
            self._none_waits if record_order or not sync or self._deferred else slots.waits_in,
            guest=guest,
            digest=digest if sync else None,
            report=report if last and sync else None,
        )

    def _begin_step(self) -> None:
        self.collectives.begin_step()
        self.gradients.release()
        if self._stale:
            self._reallocate()
        assert self._slots is not None
        self.gradients.begin_step(self._slots)
        self.failure = None
        self._used = bytearray(len(self._params))

    @property
    def backward_done(self) -> bool:
        """True if backward() of the current mini-batch is done."""
        return self._backward is not None and self._backward.complete

    def written_between(self) -> str | None:
        """Return the first parameter whose gradient the script changed since backward(), or None.

        Only for a mini-batch that is not its EST's last of the step.
        """
        left = self._backward.left if self._backward is not None else ()
        for name, param, (gradient, version) in zip(self._names, self._params, left, strict=False):
            if param.grad is not gradient or (gradient is not None and gradient._version != version):
                return name
        return None

    def gradients_used(self) -> None:
        """Note that the optimizer has used the gradients: a later write to p.grad counts as zeroing it."""
        if self._slots is not None and self._slots.versions:
            self._slots.note_versions()

    def end_step(self) -> None:
        """End an applied step: until the next turn begins, gradients belong to the script."""
        self._backward = None
        self.gradients.end_step()

    def drop(self) -> None:
        """Discard the step in flight without waiting for it; the next step begins with the same gradients."""
        if self.collectives.drop():
            self._slots, self._stale = None, True  # the thread may still write to this memory
        if self._backward is not None:
            self.gradients.lose_step()
        self._backward = None
        self.failure = None

    def close(self) -> None:
        """Remove the hooks and end the collectives. Idempotent."""
        for hook in self._hooks:
            hook.remove()
        self.collectives.close()

    # ------------------------------------------------------------------ in backward

    def watch_outputs(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        """Forward hook of the model: detect the end of the outermost backward through the outputs' hooks.

        Reentrant activation checkpointing runs backward passes inside the backward pass; a callback that a
        parameter's hook queued would belong to an inner one. The gradients of the outputs are computed first,
        in the outermost.
        """
        if self._backward is None:
            return
        for output in (outputs,) if isinstance(outputs, Tensor) else tree_leaves(outputs):
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(self._backward_began)

    def _backward_began(self, gradient: Tensor) -> None:
        backward = self._backward
        if backward is not None and not backward.callback_queued:
            backward.callback_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)

    def _hook(self, index: int, param: Parameter) -> RemovableHandle:
        """Register the hook of parameter `index`.

        It runs for every parameter in every backward, behind kernels that have emptied the caches, so that
        each line of it costs several times what it costs in a loop: a small gradient that nothing is known to
        write to is noted without a call.
        """
        hooks: Sized = ()

        def take(param: Tensor) -> None:
            backward, slots, gradient = self._backward, self._slots, param.grad
            if backward is None or slots is None:
                return  # outside the loop gradients belong to the script
            bucket = backward.waits_in[index]
            if (
                bucket is None
                or backward.arrived[index]
                or not backward.begun
                or len(hooks) > 1  # one of the script's may write to the gradient after ours
                or gradient is None
                or gradient is slots.averages[index]
            ):
                self._take(index, param)
                return
            backward.arrived[index] = 1
            # The version detects later writes.
            backward.waiting[bucket].append((index, gradient, gradient._version))
            backward.missing[bucket] -= 1
            if not backward.missing[bucket]:
                self._fill(bucket, backward, slots)
            if backward.last:
                param.grad = None

        handle = param.register_post_accumulate_grad_hook(take)
        hooks = param._post_accumulate_grad_hooks  # the same object for as long as the parameter lives
        return handle

    def _take(self, index: int, param: Tensor) -> None:
        """Take the gradient of parameter `index`, complete for this backward."""
        backward, slots = self._backward, self._slots
        if backward is None or slots is None:
            return  # outside the loop gradients belong to the script
        gradient = param.grad
        assert gradient is not None
        if backward.complete or (backward.arrived[index] and not self._deferred):
            raise StepError(
                f"parameter {self._names[index]} got a second gradient in one turn",
                hint="call backward() once for every mini-batch; for several in a step use"
                " prepare(accumulation_steps=), for reentrant checkpointing static_graph=True",
                parameter=self._names[index],
            )
        if gradient.layout is not torch.strided:
            raise self._sparse(index)
        backward.arrived[index] = 1
        if not backward.begun:
            backward.begun = True
            self._backward_began(gradient)
            if backward.last:
                unconfirmed = backward.report is not None and backward.report.first_gradient()
                # On a single host the last sum is computed by the very thread that would wait for it.
                backward.held = unconfirmed or len(self.collectives.ranges) == 1
        if gradient is slots.averages[index]:
            backward.added[slots.bucket_of[index]] += 1
        if backward.record_order:
            self._order.pop(index, None)
            self._order[index] = None
        if backward.sync and not self._deferred:
            self._put(index, gradient, backward, slots)
            if backward.last:
                param.grad = None

    def _put(self, index: int, gradient: Tensor | None, backward: Backward, slots: Slots) -> None:
        """Put an EST's gradient into its slot, scaled as DDP scales it; None: the EST has no gradient."""
        bucket = slots.bucket_of[index]
        in_place = gradient is slots.averages[index]
        backward.in_place[bucket] += in_place
        if gradient is not None and gradient.requires_grad:
            gradient = gradient.detach()  # backward(create_graph=True): the averages have no graph
        # Small gradients wait for the whole bucket, to be copied in one call; the version detects later
        # writes.
        if gradient is not None and slots.gathered[bucket] and not in_place and self._stays(index):
            backward.waiting[bucket].append((index, gradient, gradient._version))
        else:
            self._scale_into(slots.views[backward.slot][index], gradient, in_place)
        backward.missing[bucket] -= 1
        if not backward.missing[bucket]:
            self._fill(bucket, backward, slots)

    def _fill(self, bucket: int, backward: Backward, slots: Slots) -> None:
        """Fill the EST's slot of a bucket whose gradients have all arrived, and start what can be summed."""
        if backward.waiting[bucket]:
            self._gather(bucket, backward, slots)
        if backward.in_place[bucket]:
            self._check_zeroed(bucket, backward, slots)
        if backward.digest is not None:
            backward.digest.add(bucket, slots.plans[bucket].slots[backward.slot])
        if backward.last:
            end = len(slots.plans) - backward.held
            backward.started = self.collectives.start_buckets(
                slots.plans, backward.started, end, backward.missing, backward_done=backward.complete
            )

    def _stays(self, index: int) -> bool:
        """True if no hook of the script may write to the parameter's gradient after ours."""
        hooks = self._params[index]._post_accumulate_grad_hooks
        return hooks is None or len(hooks) == 1

    def _scale_into(self, target: Tensor, gradient: Tensor | None, in_place: bool) -> None:
        if gradient is None:
            target.zero_()
        elif in_place and self._as_bucket_view:
            # DDP divides by N where the gradient is a view of the bucket, and multiplies by 1/N elsewhere;
            # the results differ in the last bit if N is not a power of two.
            torch.div(gradient, self._num_ests, out=target)
        else:
            torch.mul(gradient, self._factor, out=target)

    def _gather(self, bucket: int, backward: Backward, slots: Slots) -> None:
        """Copy all waiting gradients of a bucket into the EST's slot."""
        waiting, backward.waiting[bucket] = backward.waiting[bucket], []
        targets, gradients, views = [], [], slots.views[backward.slot]
        for index, gradient, version in waiting:
            if gradient.layout is not torch.strided:
                raise self._sparse(index)
            targets.append(views[index])
            # Without the graph of backward(create_graph=True).
            gradients.append(gradient.detach() if gradient.requires_grad else gradient)
            if gradient._version != version:
                raise UnsupportedError(
                    f"the gradient of parameter {self._names[index]} was changed while backward() ran",
                    hint="change it in the parameter's own register_post_accumulate_grad_hook, made before"
                    " prepare, or between backward() and optimizer.step()",
                    parameter=self._names[index],
                )
        if len(waiting) < len(slots.layout[bucket].places):
            for target, gradient in zip(targets, gradients, strict=True):
                self._scale_into(target, gradient, False)
            return
        # None of the tensors requires a gradient, so no graph arises, whether or not backward() makes one.
        torch._foreach_copy_(targets, gradients)
        slots.plans[bucket].slots[backward.slot].mul_(self._factor)

    def _sparse(self, index: int) -> UnsupportedError:
        return UnsupportedError(
            f"parameter {self._names[index]} has a sparse gradient",
            hint="use dense gradients (sparse=False)",
            parameter=self._names[index],
        )

    def _check_zeroed(self, bucket: int, backward: Backward, slots: Slots) -> None:
        """Raise UnsupportedError if gradients were added to the last step's averages without zeroing them.

        Only a worker that applied the last step has those averages; the value that other workers add to is
        known only if it is zero. Zeroing and adding write to every gradient once each, which the version
        counters show.
        """
        if slots.versions and slots.writes(bucket) < backward.in_place[bucket] + backward.added[bucket]:
            raise UnsupportedError(
                "gradients were added to those of the step before",
                hint="call optimizer.zero_grad() in every turn, before backward()",
            )

    def _backward_ended(self) -> None:
        """Finish a turn's backward; called by autograd before backward() returns."""
        backward, slots = self._backward, self._slots
        assert backward is not None and slots is not None
        if 1 not in backward.arrived:
            # torch.autograd.grad() of the outputs, for a loss with gradients in it: not the script's
            # backward() yet.
            backward.callback_queued = False
            return
        backward.complete, backward.waits_in = True, self._none_waits
        self.backward_ended()
        if not backward.guest:
            self._used = bytearray(map(or_, self._used, backward.arrived))
        if not backward.sync:
            backward.left = [(p.grad, p.grad._version if p.grad is not None else 0) for p in self._params]
            return
        late: list[int] = []
        if self._deferred or 0 in backward.arrived:
            late = [index for index, arrived in enumerate(backward.arrived) if self._deferred or not arrived]
        if late and not self._may_be_unused:
            names = [self._names[index] for index in late]
            raise StepError(
                f"backward() gave no gradient to {', '.join(names[:5])}"
                + (f" and {len(names) - 5} more parameters" if len(names) > 5 else ""),
                hint="every parameter that requires a gradient must take part in the loss; "
                "if some do not, call prepare(..., find_unused_parameters=True)",
                parameters=names,
            )
        for index in late:
            self._put(index, self._params[index].grad, backward, slots)
        if backward.last:
            why = backward.report.last_gradient() if backward.report is not None else ""
            if why:
                self.collectives.give_up(why)
            self.collectives.start_buckets(
                slots.plans, backward.started, len(slots.plans), backward.missing, backward_done=True
            )
            self._finish(backward, slots)
        slots.note_versions()

    def _finish(self, backward: Backward, slots: Slots) -> None:
        """Wait for the sums and show them to the script, or the EST's own gradients if the ring ended."""
        used = torch.frombuffer(self._used, dtype=torch.uint8) if self._may_be_unused else None
        self.failure = self.collectives.finish(slots, used)
        shown = slots.averages if self.failure is None else slots.views[backward.slot]
        for index, param in enumerate(self._params):
            # As under DDP, the gradient of a parameter that no EST used is left unchanged.
            if self._used[index]:
                param.grad = shown[index]

    # ------------------------------------------------------------------ memory

    def _reallocate(self) -> None:
        """Allocate slots and sums for the current ring and layout, reusing previous memory where it fits.

        Sums that p.grad shows stay where they are, or else are copied: all members of a ring that changes
        would wait for 100 MB of new memory for each 25 million parameters.
        """
        old, layout = self._slots, self._layout_for(self._layout_order)
        shown = any(param.grad is not None for param in self._params)
        pool = old.recycled(sums=not shown) if old is not None else self._provided
        self._slots, self._provided = None, {}
        ring = self.collectives
        kept = old.sums if old is not None and shown and old.layout == layout else None
        slots = self._slots = allocate(
            layout, ring.ranges, ring.me, len(self._params), pool, ring.members, kept
        )
        self._stale = False
        if old is not None and shown:
            for param, before, average in zip(self._params, old.averages, slots.averages, strict=True):
                if param.grad is before:
                    stays = average.data_ptr() == before.data_ptr()
                    param.grad = average if stays else average.copy_(before)

    def _layout_for(self, order: list[int] | None) -> list[Bucket]:
        if not self._rebuilds:
            return unused_layout(self._params, self._bucket_cap_mb)
        if order is None:
            return first_layout(self._params)
        return rebuilt_layout(self._params, order, self._bucket_cap_mb)
