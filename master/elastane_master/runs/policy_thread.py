"""A scheduling policy at work: one decision at a time, in a thread of its own, and not for ever."""

from __future__ import annotations

from collections.abc import Callable

from elastane_common.bounded_thread import BoundedThread, StillBusy
from elastane_scheduler.view import Decision, Policy, View


class PolicyThread:
    """make: a new policy; what an earlier one remembers is given up with it when it fails.

    seconds_max: for one decision. Used from one event loop.
    """

    def __init__(self, make: Callable[[], Policy], seconds_max: float) -> None:
        self._make = make
        self._policy = make()
        self._thread: BoundedThread[Decision] = BoundedThread("scheduling policy", seconds_max)

    async def decide(self, view: View) -> Decision:
        """Return the policy's decision. Raises TooSlow, StillBusy, and whatever the policy raises."""
        policy = self._policy
        try:
            return await self._thread.run(lambda: policy.decide(view))
        except StillBusy:
            raise
        except Exception:
            self._policy = self._make()
            raise
