"""What a worker does after a slot's answer to a push. Pure; as `elastane.slots.push_state` of the client.

A task is done when every slot has said that it has it, and is reported with the sum of the lives in those
answers. A task that any slot refuses is over: what others still say changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from elastane_slots.pushes import AGAIN_VERDICTS, DONE_VERDICTS, RETURNED_VERDICTS, Verdict


class PushState:
    """A push on its way to `slots`. open: slots without a final answer."""

    def __init__(self, slots: Iterable[int]) -> None:
        self.open = set(slots)
        self._lives: dict[int, int] = {}
        self._returned = self._closed = False

    @property
    def outcome(self) -> str:
        """ "done", "returned" or "closed"; "" while it is not known."""
        if self._closed:
            return "closed"
        if self._returned:
            return "returned"
        return "" if self.open else "done"

    @property
    def lives_sum(self) -> int:
        return sum(self._lives.values())

    def answered(self, slot: int, verdict: Verdict, life: int) -> None:
        """Take a slot's answer."""
        if verdict in AGAIN_VERDICTS or slot not in self.open:
            return
        if verdict in DONE_VERDICTS:
            self.open.discard(slot)
            self._lives[slot] = life
        elif verdict in RETURNED_VERDICTS:
            self._returned = True
        else:
            self._closed = True
