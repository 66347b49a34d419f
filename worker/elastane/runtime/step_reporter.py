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
from elastane.runtime.step_parts import StepParts
from elastane.runtime.turn import Turn
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
        self._protocol = parts.attendance.protocol
        #: True if steps are reported at the end of their last backward; None: not known yet, the next
        #: backward shows whether it draws random numbers.
        self._reports_late: bool | None = None if device.type == "cpu" else True
        self._turn: Turn | None = None

    def begin(self, turn: Turn) -> None:
        """Begin a mini-batch of the turn."""
        self._turn = turn

    def end_batch(self, turn: Turn) -> None:
        """End an EST's mini-batch; after its last one keep its context and EST 0's buffers."""
        parts = self._parts
        turn.loader_parts |= parts.repeats.finish(turn)
        if turn.guest is not None:
            if turn.sync:
                parts.sentinel.ended(turn)
            return
        if parts.trace is None and not turn.sync:
            return
        states = parts.states()
        if parts.trace is not None:
            parts.trace.turn_ended(turn.step, turn.rank, turn.micro, states, turn.metrics)
        if turn.sync:
            self._note(turn, states)
            self._keep(turn)

    def first_gradient(self) -> bool:
        """Report the step early in the last EST's backward, if its outcome is already known.

        Returns True if it was reported; the step may not be applied before `last_gradient` has confirmed it.
        """
        turn = self._turn
        assert turn is not None and turn.last
        if self._reports_late:
            return False
        turn.states = self._parts.states()
        if self._reports_late is None or turn.step == self._parts.reducer.order_step:
            return False
        turn.loader_parts |= self._parts.repeats.finish(turn)
        self._note(turn, turn.states)
        self._report(turn, in_backward=True)
        return True

    def last_gradient(self) -> str:
        """Report the step at the end of the last EST's backward, or confirm the early report.

        Then the step's all-reduce can start. Returns why no worker may apply it, if the report was wrong.
        """
        turn, parts = self._turn, self._parts
        assert turn is not None and turn.last
        is_reported = turn.state.is_reported
        if is_reported:
            parts.attendance.tell(self._protocol.end_backward)
        parts.frozen.check()
        states = parts.states() if turn.states else {}
        if states:
            self._reports_late = bool(self._reports_late) or states != turn.states
        if not is_reported:
            self.end_batch(turn)
            self._report(turn)
        else:
            if parts.trace is not None:
                parts.trace.turn_ended(turn.step, turn.rank, turn.micro, states, turn.metrics)
            self._keep(turn)
        if parts.buffers.tensors:
            parts.reducer.collectives.broadcast_buffers()
        probes.reached("all_reduce", turn.step)
        # An early report that turns out wrong may be durable. Nobody has applied the step: this worker still
        # withholds a bucket.
        return _DRAWN_IN_BACKWARD if is_reported and self._reports_late else ""

    def _note(self, turn: Turn, states: Parts) -> None:
        """Record the EST's context after the step and its StepTask."""
        context = self._parts.contexts.now[turn.rank]
        turn.state.contexts[turn.rank] = context.next(states, turn.loader_parts)
        task = ring_pb2.StepTask(virtual_rank=turn.rank)
        task.range.start, task.range.end = turn.taken[0].start, turn.taken[-1].end
        for info in turn.taken:
            task.samples.extend(info.samples)
        for name, value in turn.metrics.items():
            task.metrics[name] = value.item() if isinstance(value, torch.Tensor) else float(value)
        turn.state.tasks.append(task)

    def _keep(self, turn: Turn) -> None:
        """Snapshot EST 0's buffers after backward."""
        parts = self._parts
        parts.sentinel.ended(turn)
        if turn.rank == 0:
            parts.reducer.collectives.keep_buffers(parts.buffers.tensors)
            turn.buffer_versions = parts.buffers.versions()

    def _report(self, turn: Turn, *, in_backward: bool = False) -> None:
        parts, state = self._parts, turn.state
        report = ring_pb2.StepReport(
            generation=self._protocol.generation,
            step=turn.step,
            epoch=turn.step // parts.source.steps_per_epoch,
            tasks=state.tasks,
        )
        for rank, context in state.contexts.items():
            report.contexts.append(context.to_proto(parts.contexts.known[rank]))
        if turn.step == parts.reducer.order_step and parts.attendance.is_leader:
            report.extra.ready_order.extend(parts.reducer.ready_order)
        state_digest = parts.fingerprints.state_digest()
        settings_digest = parts.fingerprints.settings_digest()
        if state_digest is not None and settings_digest is not None:
            report.state_digest, report.settings_digest = state_digest, settings_digest
        parts.attendance.tell(lambda: self._protocol.report(report, in_backward=in_backward))
