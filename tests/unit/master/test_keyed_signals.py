"""Signals by key: news of one key wake its own waiters, and nobody misses any."""

from __future__ import annotations

import asyncio

import patience
from elastane_master.signals import SignalsByKey


async def test_news_of_a_key_wake_its_own_waiters_alone() -> None:
    signals: SignalsByKey[int] = SignalsByKey()
    with signals.watching(1) as one, signals.watching(2) as two:
        waits = asyncio.create_task(one.beyond(one.count))
        await asyncio.sleep(0)
        signals.announce(2)
        await asyncio.sleep(0)
        assert two.count == 1 and not waits.done()
        signals.announce(1)
        async with patience.within(10):
            assert await waits == 1


async def test_two_who_watch_one_key_both_wake() -> None:
    signals: SignalsByKey[str] = SignalsByKey()
    with signals.watching("a") as first:
        with signals.watching("a") as second:
            assert first is second
        signals.announce("a")  # the other one has left
        assert first.count == 1


async def test_all_are_woken_together() -> None:
    signals: SignalsByKey[int] = SignalsByKey()
    with signals.watching(1) as one, signals.watching(2) as two:
        signals.announce_all()
        assert (one.count, two.count) == (1, 1)


async def test_nothing_is_kept_of_what_nobody_watches() -> None:
    signals: SignalsByKey[int] = SignalsByKey()
    signals.announce(1)
    with signals.watching(1):
        assert len(signals) == 1
    assert len(signals) == 0
