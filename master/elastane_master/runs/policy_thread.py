"""A scheduling policy at work: one decision at a time, in a thread of its own, and not for ever."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from elastane_scheduler.view import Decision, Policy, View


class PolicySlow(Exception):  # noqa: N818 - named after the fact, as in elastane_scheduler
    """A decision takes longer than it may. What was begun is not waited for."""


class PolicyThread:
    """make: a new policy; what an earlier one remembers is given up with it when it fails.

    seconds_max: for one decision. Used from one event loop. A thread cannot be ended: while one is late,
    every further decision is refused.
    """

    def __init__(self, make: Callable[[], Policy], seconds_max: float) -> None:
        self._make = make
        self._seconds_max = seconds_max
        self._policy = make()
        self._late: threading.Thread | None = None

    async def decide(self, view: View) -> Decision:
        """Return the policy's decision. Raises PolicySlow, and whatever the policy raises."""
        if self._late is not None and self._late.is_alive():
            raise PolicySlow("its last decision still takes time")
        self._late = None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Decision] = loop.create_future()
        policy = self._policy

        def settle(decision: Decision | None, error: BaseException | None) -> None:
            if answer.done():
                return
            if decision is not None:
                answer.set_result(decision)
            elif error is not None:
                answer.set_exception(error)

        def work() -> None:
            decision: Decision | None = None
            failed: BaseException | None = None
            try:
                decision = policy.decide(view)
            except BaseException as error:  # noqa: BLE001 - it must reach whoever waits
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, decision, failed)

        # A daemon: a policy that never ends must not keep the master from ending.
        thread = threading.Thread(target=work, name="scheduling policy", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(self._seconds_max):
                return await answer
        except TimeoutError:
            self._late = thread
            self._policy = self._make()
            raise PolicySlow(f"it took longer than {self._seconds_max:g} s") from None
        except Exception:
            self._policy = self._make()
            raise
