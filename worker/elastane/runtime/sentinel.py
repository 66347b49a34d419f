"""A worker's part in the sentinel: reports the gradient digest of the EST that the master checks.

The EST's host computes the digest of its contribution to the sums. Another worker runs the EST's turn before
its own turns: the loader gives the loop body one extra mini-batch (or several that accumulate) from the EST's
context, and nothing in that turn takes effect. Its gradients use the slot of the worker's first EST.
"""

from __future__ import annotations

from elastane.collective.gradient_digest import GradientDigest
from elastane.context import EstContext
from elastane.data.source import BatchSource
from elastane.runtime.attendance import Attendance
from elastane.runtime.turn import Turn
from elastane_proto.v1 import ring_pb2


class Sentinel:
    """The worker's part of the check. Used by the trainer, in the script's thread."""

    def __init__(self, attendance: Attendance, source: BatchSource) -> None:
        self._attendance = attendance
        self._source = source

    def turns(self, step: int, own: list[Turn]) -> list[Turn]:
        """Return this worker's turns of `step`, after that of another worker's EST to be checked."""
        check = self._attendance.take_check(step)
        if check is None:
            return own
        if not check.HasField("context"):
            for turn in own:
                if turn.rank == check.virtual_rank:
                    turn.digest = GradientDigest()
            return own
        guest = EstContext.from_proto(check.context)
        self._source.take_in(guest, step)
        first = own[0]
        turn = Turn(first.state, guest.virtual_rank, 0, ends=False, batches=first.batches, guest=guest)
        turn.digest = GradientDigest()
        return [turn, *own]

    def ended(self, turn: Turn) -> None:
        """Report the turn's digest after its last backward, if the turn is checked."""
        if turn.digest is None or turn.repeated:
            return
        protocol = self._attendance.protocol
        report = ring_pb2.CheckReport(
            generation=protocol.generation,
            step=turn.step,
            virtual_rank=turn.rank,
            digest=turn.digest.value(),
        )
        self._attendance.tell(lambda: protocol.check_report(report))
        if turn.guest is not None:
            self._source.forget(turn.rank)
