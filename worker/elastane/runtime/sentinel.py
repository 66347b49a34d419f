"""A worker's part in the sentinel: reports the gradient digest of the EST that the master checks.

The EST's host computes the digest of its contribution to the sums. Another worker runs the EST's turn before
its own turns: the loader gives the loop body one extra mini-batch (or several that accumulate) from the EST's
context, and nothing in that turn takes effect. Its gradients use the slot of the worker's first EST.
"""

from __future__ import annotations

from elastane.collective.gradient_digest import GradientDigest
from elastane.context import EstContext
from elastane.data.source import BatchSource
from elastane.runtime.est_step import EstStep
from elastane.runtime.worker_session import WorkerSession
from elastane_proto.v1 import ring_pb2


class Sentinel:
    """The worker's part of the check. Used by the trainer, in the script's thread."""

    def __init__(self, worker_session: WorkerSession, source: BatchSource) -> None:
        self._worker_session = worker_session
        self._source = source

    def turns(self, step: int, own: list[EstStep]) -> list[EstStep]:
        """Return this worker's turns of `step`, after that of another worker's EST to be checked."""
        check = self._worker_session.take_check(step)
        if check is None:
            return own
        if not check.HasField("context"):
            for est_step in own:
                if est_step.rank == check.virtual_rank:
                    est_step.digest = GradientDigest()
            return own
        guest = EstContext.from_proto(check.context)
        self._source.take_in(guest, step)
        first = own[0]
        est_step = EstStep(first.state, guest.virtual_rank, 0, ends=False, batches=first.batches, guest=guest)
        est_step.digest = GradientDigest()
        return [est_step, *own]

    def ended(self, est_step: EstStep) -> None:
        """Report the turn's digest after its last backward, if the turn is checked."""
        if est_step.digest is None or est_step.repeated:
            return
        protocol = self._worker_session.protocol
        report = ring_pb2.CheckReport(
            generation=protocol.generation,
            step=est_step.step,
            virtual_rank=est_step.rank,
            digest=est_step.digest.value(),
        )
        self._worker_session.tell(lambda: protocol.check_report(report))
        if est_step.guest is not None:
            self._source.forget(est_step.rank)
