"""Report of a step: the contexts of this worker's ESTs after it, sent while the last backward runs.

    the first gradient of the last backward   the step is reported, if its outcome is known by then
    the last gradient                         the early report is confirmed, or the step is reported

If backward draws no random numbers, the contexts after the step are known when backward begins, and the
master makes them durable while it runs. On a GPU the host runs ahead of the device anyway: steps are reported
at the last gradient.
"""

from __future__ import annotations

from typing import Final

import torch

from elastane.rng import Parts
from elastane.runtime import probes
from elastane.runtime.est_step import EstStep
from elastane.runtime.step_parts import StepParts
from elastane_proto.v1 import ring_pb2

_DRAWN_IN_BACKWARD: Final = (
    "random numbers were drawn in backward(): from now on steps are reported at the end of backward()"
)


class StepReporter:
    """Ends the mini-batches of a step and reports it. Called by the runner, and by the reducer in backward.

    device: of the model.
    """

    def __init__(self, parts: StepParts, device: torch.device) -> None:
        self._parts = parts
        self._protocol = parts.worker_session.protocol
        #: True if steps are reported at the end of their last backward; None: not known yet, the next
        #: backward shows whether it draws random numbers.
        self._reports_late: bool | None = None if device.type == "cpu" else True
        self._est_step: EstStep | None = None

    def begin(self, est_step: EstStep) -> None:
        """Begin a mini-batch of the turn."""
        self._est_step = est_step

    def end_batch(self, est_step: EstStep) -> None:
        """End an EST's mini-batch; after its last one keep its context and EST 0's buffers."""
        parts = self._parts
        est_step.loader_parts |= parts.repeats.finish(est_step)
        if est_step.guest is not None:
            if est_step.sync:
                parts.sentinel.ended(est_step)
            return
        if parts.trace is None and not est_step.sync:
            return
        states = parts.states()
        if parts.trace is not None:
            parts.trace.mini_batch_ended(
                est_step.step, est_step.rank, est_step.micro, states, est_step.metrics
            )
        if est_step.sync:
            self._note(est_step, states)
            self._keep(est_step)

    def first_gradient(self) -> bool:
        """Report the step early in the last EST's backward, if its outcome is already known.

        Returns True if it was reported; the step may not be applied before `last_gradient` has confirmed it.
        """
        est_step = self._est_step
        assert est_step is not None and est_step.last
        if self._reports_late:
            return False
        est_step.states = self._parts.states()
        if self._reports_late is None or est_step.step == self._parts.reducer.order_step:
            return False
        est_step.loader_parts |= self._parts.repeats.finish(est_step)
        self._note(est_step, est_step.states)
        self._report(est_step, in_backward=True)
        return True

    def last_gradient(self) -> str:
        """Report the step at the end of the last EST's backward, or confirm the early report.

        Then the step's all-reduce can start. Returns why no worker may apply it, if the report was wrong.
        """
        est_step, parts = self._est_step, self._parts
        assert est_step is not None and est_step.last
        is_reported = est_step.state.is_reported
        if is_reported:
            parts.worker_session.tell(self._protocol.end_backward)
        parts.frozen.check()
        states = parts.states() if est_step.states else {}
        if states:
            self._reports_late = bool(self._reports_late) or states != est_step.states
        if not is_reported:
            self.end_batch(est_step)
            self._report(est_step)
        else:
            if parts.trace is not None:
                parts.trace.mini_batch_ended(
                    est_step.step, est_step.rank, est_step.micro, states, est_step.metrics
                )
            self._keep(est_step)
        if parts.buffers.tensors:
            parts.reducer.collectives.broadcast_buffers()
        probes.reached("all_reduce", est_step.step)
        # An early report that turns out wrong may be durable. Nobody has applied the step: this worker still
        # withholds a bucket.
        return _DRAWN_IN_BACKWARD if is_reported and self._reports_late else ""

    def _note(self, est_step: EstStep, states: Parts) -> None:
        """Record the EST's context after the step and its StepTask."""
        context = self._parts.contexts.now[est_step.rank]
        est_step.state.contexts[est_step.rank] = context.next(states, est_step.loader_parts)
        task = ring_pb2.StepTask(virtual_rank=est_step.rank)
        task.range.start, task.range.end = est_step.taken[0].start, est_step.taken[-1].end
        for info in est_step.taken:
            task.samples.extend(info.samples)
        for name, value in est_step.metrics.items():
            task.metrics[name] = value.item() if isinstance(value, torch.Tensor) else float(value)
        est_step.state.tasks.append(task)

    def _keep(self, est_step: EstStep) -> None:
        """Snapshot EST 0's buffers after backward."""
        parts = self._parts
        parts.sentinel.ended(est_step)
        if est_step.rank == 0:
            parts.reducer.collectives.keep_buffers(parts.buffers.tensors)
            est_step.buffer_versions = parts.buffers.versions()

    def _report(self, est_step: EstStep, *, in_backward: bool = False) -> None:
        parts, state = self._parts, est_step.state
        report = ring_pb2.StepReport(
            generation=self._protocol.generation,
            step=est_step.step,
            epoch=est_step.step // parts.source.steps_per_epoch,
            tasks=state.tasks,
        )
        for rank, context in state.contexts.items():
            report.contexts.append(context.to_proto(parts.contexts.known[rank]))
        if est_step.step == parts.reducer.order_step and parts.worker_session.is_leader:
            report.extra.ready_order.extend(parts.reducer.ready_order)
        state_digest = parts.fingerprints.state_digest()
        settings_digest = parts.fingerprints.settings_digest()
        if state_digest is not None and settings_digest is not None:
            report.state_digest, report.settings_digest = state_digest, settings_digest
        parts.worker_session.tell(lambda: self._protocol.report(report, in_backward=in_backward))
