"""Calls of the store are bounded one by one, although they share a timer."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import patience
from elastane_master.store.pinned import CallTimeouts


async def answered(future: asyncio.Future[str]) -> str:
    return await future


async def test_a_call_that_takes_too_long_ends_and_the_others_go_on() -> None:
    timeouts = CallTimeouts(60.0)
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    late, other = (asyncio.create_task(timeouts.bounded(answered(one))) for one in (first, second))
    await asyncio.sleep(0)
    of_late, of_other = timeouts._calls
    of_late.ends_at = 0.0
    timeouts._look()
    assert timeouts._timer is not None and timeouts._timer.when() == of_other.ends_at
    async with patience.within(10):
        with pytest.raises(TimeoutError):
            await late
        assert first.cancelled() and late.cancelling() == 0 and not other.done()
        second.set_result("in time")
        assert await other == "in time"


async def test_calls_that_begin_after_others_have_ended_are_bounded_too() -> None:
    timeouts = CallTimeouts(0.02)
    async with patience.within(10):
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await timeouts.bounded(answered(asyncio.get_running_loop().create_future()))


async def test_calls_in_time_set_one_timer_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timeouts, timers = CallTimeouts(60.0), []
    set_timer = loop.call_at

    def call_at(when: float, *arguments: object) -> asyncio.TimerHandle:
        timers.append(when)
        return set_timer(when, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_at", call_at)
    for _ in range(20):
        future = loop.create_future()
        future.set_result("at once")
        assert await timeouts.bounded(answered(future)) == "at once"
    assert len(timers) == 1


@pytest.mark.parametrize(("seconds", "is_late"), [(60.0, False), (60.0, True), (None, False)])
async def test_a_caller_that_is_cancelled_is_cancelled(seconds: float | None, is_late: bool) -> None:
    """Also at the moment at which its call is late."""
    timeouts = CallTimeouts(seconds)
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(timeouts.bounded(answered(loop.create_future())))
    await asyncio.sleep(0)
    if is_late:
        timeouts._calls.copy().popitem()[0].ends_at = 0.0
        timeouts._look()
    waiting.cancel()
    async with patience.within(10):
        with pytest.raises(asyncio.CancelledError):
            await waiting
    with pytest.raises(TimeoutError):  # the caller's own, shorter time
        async with asyncio.timeout(0.01):
            await CallTimeouts(60.0).bounded(answered(loop.create_future()))


async def test_a_call_is_late_in_a_task_that_survived_a_cancellation() -> None:
    async def survivor() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return await CallTimeouts(0.02).bounded(answered(asyncio.get_running_loop().create_future()))

    task = asyncio.create_task(survivor())
    await asyncio.sleep(0)
    task.cancel()
    async with patience.within(10):
        with pytest.raises(TimeoutError):
            await task


async def test_an_error_of_the_call_is_the_callers() -> None:
    async def fails() -> str:
        raise ValueError("no")

    timeouts = CallTimeouts(60.0)
    with pytest.raises(ValueError, match="no"):
        await timeouts.bounded(fails())
    assert not timeouts._calls
