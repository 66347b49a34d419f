"""Answers of one stream's requests: in order, together once they are known, and never before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from elastane_master.servers.pipeline import Decided, Pipeline

Begun = Decided[str] | asyncio.Task[str]


async def of(answers: list[Begun]) -> AsyncIterator[Begun]:
    for answer in answers:
        yield answer
    await asyncio.Event().wait()


def one(message: Any) -> tuple[Any]:
    """The only request of a message."""
    return (message,)


async def test_answers_go_together_once_each_is_durable() -> None:
    loop = asyncio.get_running_loop()
    first, second, looked_up = (loop.create_future() for _ in range(3))

    async def look() -> str:
        await looked_up
        return "looked up"

    begun: list[Begun] = [
        Decided("a", first),
        Decided("b", first),
        Decided("at once", None),
        Decided("c", second),
        asyncio.create_task(look()),
        Decided("d", None),
    ]
    async with Pipeline(of(begun), one, lambda request: request, most=9) as pipeline:
        batches = pipeline.batches()
        following = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0.01)
        assert not following.done()
        first.set_result(None)
        assert await following == ["a", "b", "at once"]
        following = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0.01)
        assert not following.done()
        second.set_result(None)
        assert await following == ["c"]
        looked_up.set_result(None)
        assert await anext(batches) == ["looked up", "d"]


async def test_an_answer_that_cannot_become_durable_is_an_error_at_its_place() -> None:
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
    first.set_result(None)
    second.set_exception(OSError("the log has ended"))
    begun: list[Begun] = [Decided("a", first), Decided("b", second), Decided("c", None)]
    async with Pipeline(of(begun), one, lambda request: request, most=9) as pipeline:
        batches = pipeline.batches()
        assert await anext(batches) == ["a"]
        with pytest.raises(OSError, match="the log has ended"):
            await anext(batches)


async def test_more_is_begun_when_a_batch_has_made_room() -> None:
    begun: list[str] = []

    def begin(request: str) -> Decided[str]:
        begun.append(request)
        return Decided(request, None)

    async def requests() -> AsyncIterator[str]:
        for request in "abcde":
            yield request

    async with Pipeline(requests(), one, begin, most=2) as pipeline:
        assert [batch async for batch in pipeline.batches()] == [["a", "b"], ["c", "d"], ["e"]]
        assert begun == list("abcde")


async def test_requests_of_one_message_are_begun_one_after_the_other_as_there_is_room() -> None:
    begun: list[str] = []

    def begin(request: str) -> Decided[str]:
        begun.append(request)
        return Decided(request, None)

    async def messages() -> AsyncIterator[str]:
        yield "abc"
        yield "de"

    async with Pipeline(messages(), iter, begin, most=2) as pipeline:
        await asyncio.sleep(0.01)
        assert begun == ["a", "b"], "a message of many takes no more room than many messages"
        assert [batch async for batch in pipeline.batches()] == [["a", "b"], ["c", "d"], ["e"]]


async def test_an_error_within_a_message_is_raised_at_its_place() -> None:
    def begin(request: str) -> Decided[str]:
        if request == "c":
            raise ValueError("refused")
        return Decided(request, None)

    def requests_of(message: str) -> Iterable[str]:
        if message == "bad":
            raise ValueError("no message")
        return message

    async def messages(*all_of_them: str) -> AsyncIterator[str]:
        for message in all_of_them:
            yield message

    for sent, error in ((("abcd", "ef"), "refused"), (("ab", "bad"), "no message")):
        async with Pipeline(messages(*sent), requests_of, begin, most=9) as pipeline:
            batches = pipeline.batches()
            assert await anext(batches) == ["a", "b"]
            with pytest.raises(ValueError, match=error):
                await anext(batches)


async def test_what_is_left_behind_a_batch_is_cancelled() -> None:
    task = asyncio.create_task(asyncio.sleep(60, "never"))
    async with Pipeline(of([Decided("a", None), task]), one, lambda request: request, most=9) as pipeline:
        assert await anext(pipeline.batches()) == ["a"]
    assert task.cancelled()


async def test_answers_go_together_up_to_a_size() -> None:
    begun: list[Begun] = [Decided(answer, None) for answer in ("aa", "b", "c", "dddddd", "e", "fff")]
    async with Pipeline(of(begun), one, lambda request: request, most=9) as pipeline:
        await asyncio.sleep(0)
        batches = pipeline.batches(len, 4)
        got = [await anext(batches) for _ in range(3)]
    assert got == [["aa", "b", "c"], ["dddddd"], ["e", "fff"]], "one that is larger goes alone"


async def test_after_its_end_a_stream_gives_no_answer_that_is_there() -> None:
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with Pipeline(of([Decided("a", durable)]), one, lambda request: request, most=9) as pipeline:
        following = asyncio.ensure_future(anext(pipeline.batches()))
        await asyncio.sleep(0.01)
        pipeline.end(OSError("paused"))
        durable.set_result(None)
        with pytest.raises(OSError, match="paused"):
            await following


async def test_who_leaves_a_stream_does_not_cancel_the_write_that_others_wait_for() -> None:
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with Pipeline(of([Decided("a", durable)]), one, lambda request: request, most=9) as pipeline:
        following = asyncio.ensure_future(anext(pipeline.batches()))
        await asyncio.sleep(0.01)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
    assert not durable.cancelled()
