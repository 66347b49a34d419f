"""Cancellations that are swallowed on their way."""

from __future__ import annotations

import asyncio
import gc

import pytest
import structlog
from redis.exceptions import ConnectionError as ConnectionLost

import patience
from elastane_common import cancellation
from elastane_master.store import connection
from elastane_master.store.errors import StoreUnreachable


async def deaf(times: int) -> None:
    """As `asyncio.wait_for` of Python 3.11 may be."""
    while True:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            times -= 1
            if times < 0:
                raise


async def test_a_task_that_did_not_hear_it_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "AGAIN_SECONDS", 0.01)
    tasks = [asyncio.create_task(deaf(times)) for times in (0, 1, 3)]
    await asyncio.sleep(0)
    async with patience.within(10):
        await cancellation.cancel(*tasks)
    assert all(task.cancelled() for task in tasks)


async def test_none_and_ended_tasks_are_no_reason_to_wait() -> None:
    ended = asyncio.create_task(asyncio.sleep(0))
    await ended
    await cancellation.cancel()
    await cancellation.cancel(ended)
    assert not ended.cancelled()


async def test_a_store_is_not_tried_for_ever_when_the_client_swallows_the_time_out() -> None:
    class Swallowing:
        async def ping(self) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                raise ConnectionLost("reset by peer") from None

    async with patience.within(10):
        with pytest.raises(StoreUnreachable, match=r"within 0\.1 s: reset by peer"):
            await connection._reach(Swallowing(), "redis://127.0.0.1:1/0", 0.1)  # type: ignore[arg-type]


async def test_what_a_caller_that_left_had_begun_comes_to_its_end_and_its_failure_is_logged() -> None:
    loop = asyncio.get_running_loop()
    unseen: list[object] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    may_end = asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        raise ConnectionLost("the store is away")

    caller = asyncio.create_task(cancellation.to_its_end(work()))
    await asyncio.sleep(0)
    await cancellation.cancel(caller)
    with structlog.testing.capture_logs() as logs:
        may_end.set()
        async with patience.within(10):
            while not logs:
                await asyncio.sleep(0)
    assert [entry["error"] for entry in logs] == ["the store is away"]
    gc.collect()
    assert not unseen


async def test_the_end_of_all_waits_for_those_that_clean_up_and_drops_errors() -> None:
    started, cleaned = asyncio.Event(), []

    async def cleans_up() -> None:
        try:
            started.set()
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            cleaned.append("up")

    async def fails() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise ConnectionLost("gone")

    tasks = [asyncio.create_task(cleans_up()), asyncio.create_task(fails())]
    await started.wait()
    await asyncio.sleep(0)
    await cancellation.end_all(tasks)
    assert cleaned == ["up"] and all(task.done() for task in tasks)
