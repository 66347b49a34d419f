"""Signals, task waiters and sessions: nobody misses news, nobody is woken in vain, nothing grows."""

from __future__ import annotations

import asyncio

import pytest

import patience
from elastane_master.decisions.effects import Drain
from elastane_master.decisions.events import Rejection
from elastane_master.jobs.sessions import Session
from elastane_master.jobs.task_waiters import TaskWaiters
from elastane_master.servers.waiting_line import WaitingLine
from elastane_master.signals import Signal


async def test_a_signal_announced_before_the_wait_is_not_missed() -> None:
    signal = Signal()
    seen = signal.count
    signal.announce()
    signal.announce()
    assert await patience.wait_for(signal.beyond(seen), 1) == 2


async def test_a_signal_wakes_all_who_wait() -> None:
    signal = Signal()
    waiting = [asyncio.create_task(signal.beyond(0)) for _ in range(3)]
    await asyncio.sleep(0)
    signal.announce()
    assert await asyncio.gather(*waiting) == [1, 1, 1]


class Waiting:
    """Waiters of one dataset, with what is wanted set by hand."""

    def __init__(self) -> None:
        self.wanted = "none"
        self.waiters = TaskWaiters(lambda dataset: self.wanted)  # type: ignore[arg-type,return-value]

    async def start(self, count: int) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.waiters.wait("d", 60)) for _ in range(count)]
        await asyncio.sleep(0)
        return tasks

    async def check(self, wanted: str) -> None:
        self.wanted = wanted
        self.waiters.check()
        for _ in range(3):
            await asyncio.sleep(0)


async def test_one_waiter_is_woken_for_one_task_and_all_when_none_needs_to_wait() -> None:
    waiting = Waiting()
    tasks = await waiting.start(5)
    await waiting.check("none")
    assert [task.done() for task in tasks] == [False] * 5
    await waiting.check("one")
    assert [task.done() for task in tasks] == [True] + [False] * 4
    await waiting.check("all")
    assert all(task.done() for task in tasks)
    assert not waiting.waiters._waiting


async def test_a_woken_waiter_that_is_cancelled_hands_its_turn_on() -> None:
    waiting = Waiting()
    first, second = await waiting.start(2)
    waiting.wanted = "one"
    waiting.waiters.check()
    first.cancel()
    await asyncio.wait({first})
    await patience.wait_for(second, 1)


async def test_a_wait_that_times_out_leaves_nothing_behind() -> None:
    waiting = Waiting()
    await waiting.waiters.wait("d", 0.01)
    assert not waiting.waiters._waiting


async def test_whoever_is_answered_hurries_those_of_its_stream_before_it() -> None:
    waiting, line = Waiting(), WaitingLine()
    places = [line.enter() for _ in range(4)]
    asleep = [asyncio.create_task(place.sleep(waiting.waiters, "d", 60)) for place in places]
    await asyncio.sleep(0)
    line.answered(places[1])
    await patience.wait_for(asleep[0], 1)
    assert [place.hurried for place in places] == [True, False, False, False]
    line.answered(places[0])  # it was let go already: nobody else is hurried for it
    assert not places[2].hurried
    line.answered()
    await patience.wait_for(asyncio.gather(*asleep[2:]), 1)
    assert places[2].hurried and places[3].hurried
    asleep[1].cancel()
    await asyncio.wait({asleep[1]})
    assert not waiting.waiters._waiting


async def test_one_that_is_hurried_as_it_is_woken_hands_its_turn_on() -> None:
    waiting, line = Waiting(), WaitingLine()
    place = line.enter()
    hurried = asyncio.create_task(place.sleep(waiting.waiters, "d", 60))
    await asyncio.sleep(0)
    (other,) = await waiting.start(1)
    waiting.wanted = "one"
    waiting.waiters.check()
    line.answered()
    await patience.wait_for(asyncio.gather(hurried, other), 1)


async def read(session: Session) -> list[object]:
    return [message async for message in session.outgoing()]


async def test_a_session_gives_what_was_put_in_order_and_then_ends() -> None:
    session = Session("a")
    reading = asyncio.create_task(read(session))
    await asyncio.sleep(0)
    session.put(Drain("1"))
    session.put(Drain("2"))
    await asyncio.sleep(0)
    session.put(Drain("3"))
    session.end()
    session.put(Drain("late"))
    assert [message.reason for message in await reading] == ["1", "2", "3"]


async def test_a_refused_session_sends_what_is_queued_first() -> None:
    session = Session("a")
    session.put(Drain("1"))
    session.end(Rejection("evicted", "out"))
    session.end()
    got = []
    with pytest.raises(Rejection, match="out"):
        async for message in session.outgoing():
            got.append(message)
    assert len(got) == 1


async def test_a_session_that_nobody_reads_is_ended() -> None:
    session = Session("a")
    assert all(session.put(Drain("x")) for _ in range(1000))
    assert not session.put(Drain("x"))
    assert session.ended
    with pytest.raises(Rejection, match="did not read"):
        await read(session)
