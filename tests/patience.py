"""How long a test may take before it counts as hung: longer while the machine serves many others.

pytest-timeout's limit is a time on the clock. At a load of 40 on two cores, fixtures that train took longer
although each of their processes went on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest_timeout

RUNNABLE_PER_CORE = 4.0
"""Load per core up to which the limit holds as it is: a test run alone makes as much."""
CHECK_SECONDS = 30.0
"""Time between two looks at the load, once the limit has passed."""


def slowdown(load: float, cores: int) -> float:
    """Return by how much longer tests may take. load: mean number of processes that can run."""
    return max(1.0, load / (RUNNABLE_PER_CORE * cores))


def may_go_on(elapsed_seconds: float, limit_seconds: float, load: float, cores: int) -> bool:
    """True while a test that has taken so long is within its limit at this load."""
    return elapsed_seconds < limit_seconds * slowdown(load, cores)


def set_timer(item: Any, settings: Any, now: Callable[[], float] = time.monotonic) -> bool:
    """Start the limit of a test, as pytest-timeout's hook of that name; ends the test by SIGALRM."""
    began = now()

    def expired(signum: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        load = os.getloadavg()[1]  # of the last five minutes, as long as the usual limit
        if may_go_on(now() - began, settings.timeout, load, os.cpu_count() or 1):
            signal.setitimer(signal.ITIMER_REAL, CHECK_SECONDS)
        else:
            pytest_timeout.timeout_sigalrm(item, settings)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel
    signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True
