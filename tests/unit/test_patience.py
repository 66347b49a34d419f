"""The time limit of tests: as it stands on a machine of their own, longer beside many others."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_timeout

import patience


@pytest.mark.parametrize("load, factor", [(0.0, 1.0), (5.0, 1.0), (8.0, 1.0), (40.0, 5.0), (80.0, 10.0)])
def test_tests_may_take_longer_in_proportion_to_the_load(load: float, factor: float) -> None:
    assert patience.slowdown(load, cores=2) == factor
    assert patience.may_go_on(299.0 * factor, 300.0, load, 2)
    assert not patience.may_go_on(301.0 * factor, 300.0, load, 2)


@pytest.mark.parametrize("load, is_ended", [(1.0, True), (1000.0, False)])
def test_a_test_is_ended_at_its_limit_unless_the_machine_is_busy(
    monkeypatch: pytest.MonkeyPatch, load: float, is_ended: bool
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, load, 0.0))
    monkeypatch.setattr(pytest_timeout, "timeout_sigalrm", lambda item, settings: ended.append(item))
    item, clock = SimpleNamespace(), iter((100.0, 400.5))
    handler, left = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0]
    try:
        patience.set_timer(item, SimpleNamespace(timeout=300.0), lambda: next(clock))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.raise_signal(signal.SIGALRM)
        assert bool(ended) == is_ended
        assert bool(signal.getitimer(signal.ITIMER_REAL)[0]) != is_ended, "it is looked at again"
        item.cancel_timeout()
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left)
