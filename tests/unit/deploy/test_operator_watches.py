"""A watch through what API servers do to it: ends, breaks, refusals, silence; on the test's own server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from structlog.testing import capture_logs

import patience
from elastane_operator.decisions.watching import Change
from elastane_operator.edge import kube as client
from elastane_operator.edge import watches
from elastane_operator.edge.kube import KubeClient
from elastane_operator.edge.watches import Watch
from kube.api import kubeconfig
from unit.deploy.test_operator_watching import event, listing, thing

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
SECONDS = 20.0
#: Hang-ups that one request meets before it fails: aiohttp tries once more, on another connection.
HANG_UPS = 2


class ApiServer:
    """Answers lists and watches as the test says, each request by the next answer.

    When there are no more answers, a list is the last one again, and a watch stays open and silent.
    """

    def __init__(self) -> None:
        self.lists: deque[Answer] = deque()
        self.watches: deque[Answer] = deque()
        self.requests: list[web.Request] = []
        self.over = asyncio.Event()
        self.url = ""
        self._last: Answer = listed(1)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if "watch" in request.query:
            return await (self.watches.popleft() if self.watches else streamed(hold=self.over))(request)
        self._last = self.lists.popleft() if self.lists else self._last
        return await self._last(request)

    @property
    def said(self) -> list[str]:
        """What was asked for: "list", or "watch" with the version after which."""
        return [
            f"watch {request.query['resourceVersion']}" if "watch" in request.query else "list"
            for request in self.requests
        ]


def listed(version: int, *items: dict[str, Any]) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(listing(version, *items))

    return answer


def refused(status: int, reason: str = "", **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        body = {"kind": "Status", "code": status, "reason": reason, "message": f"refused for {reason}"}
        headers_of = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response(body, status=status, headers=headers_of)

    return answer


async def hung_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def streamed(*lines: bytes, hold: asyncio.Event | None = None, breaks: bool = False) -> Answer:
    """Send lines; then end in good order, break the connection, or say no more while `hold` is not set."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        if hold is not None:
            await hold.wait()
        if breaks:
            await hung_up(request)
        return response

    return answer


def unanswered(hold: asyncio.Event) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        await hold.wait()
        return await hung_up(request)

    return answer


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ApiServer]:
    made = ApiServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    made.over.set()
    await runner.cleanup()


@pytest_asyncio.fixture
async def kube(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    opened = await KubeClient.open(str(kubeconfig(tmp_path, server.url)), timeout_seconds=10)
    yield opened
    await opened.close()


class Following:
    """A watch that runs; what it delivered and logged."""

    def __init__(self, lines: list[Any]) -> None:
        self.changes: asyncio.Queue[Change] = asyncio.Queue()
        self.lines = lines

    async def see(self, *wanted: str) -> None:
        """Wait for these changes, and no other before them."""
        async with patience.within(SECONDS):
            for each in wanted:
                change = await self.changes.get()
                assert f"{change.type} {change.object['metadata']['name']}" == each

    def logged(self, name: str) -> list[Any]:
        return [line for line in self.lines if line["event"] == name]


@contextlib.asynccontextmanager
async def following(kube: KubeClient, **options: Any) -> AsyncIterator[Following]:
    with capture_logs() as lines:
        made = Following(lines)
        watch = Watch(kube, "Pod", on_change=made.changes.put_nowait, **options)
        task = asyncio.create_task(watch.run())
        try:
            yield made
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield


async def until(reached: Callable[[], object]) -> None:
    async with patience.within(SECONDS):
        while not reached():
            await asyncio.sleep(0.01)


def added(name: str, version: int) -> bytes:
    return event("ADDED", thing(name, version))


async def test_it_lists_and_then_watches_from_there(server: ApiServer, kube: KubeClient) -> None:
    server.lists.append(listed(7, thing("a", 3), thing("b", 5)))
    server.watches.append(streamed(added("c", 8), hold=server.over))
    async with following(kube, labels="elastane.io/job") as pods:
        await pods.see("ADDED a", "ADDED b", "ADDED c")
    first, second = server.requests
    assert (first.path, dict(first.query)) == ("/api/v1/pods", {"labelSelector": "elastane.io/job"})
    asked = dict(second.query)
    assert 20 <= int(asked.pop("timeoutSeconds")) <= 30
    assert asked == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "labelSelector": "elastane.io/job",
    }
    assert pods.lines == []


async def test_a_namespace_is_listed_and_watched_alone(server: ApiServer, kube: KubeClient) -> None:
    server.watches.append(streamed(added("a", 2), hold=server.over))
    async with following(kube, namespace="ml") as pods:
        await pods.see("ADDED a")
    assert {request.path for request in server.requests} == {"/api/v1/namespaces/ml/pods"}


async def test_a_watch_that_ends_in_good_order_is_followed_by_the_next(
    server: ApiServer, kube: KubeClient
) -> None:
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "90"}})
    server.watches += [streamed(added("a", 8), bookmark), streamed(added("b", 91), hold=server.over)]
    async with following(kube) as pods:
        await pods.see("ADDED a", "ADDED b")
    assert server.said == ["list", "watch 1", "watch 90"]
    assert pods.lines == [], "that is no failure"


async def test_a_watch_that_breaks_in_the_middle_of_a_line_goes_on_after_the_last_whole_one(
    server: ApiServer, kube: KubeClient
) -> None:
    server.watches += [
        streamed(added("a", 8), added("b", 9)[:30], breaks=True),
        streamed(added("b", 9), hold=server.over),
    ]
    async with following(kube) as pods:
        await pods.see("ADDED a", "ADDED b")
    assert server.said == ["list", "watch 1", "watch 8"]
    assert [line["reason"] for line in pods.logged("watch_interrupted")] == ["Unreachable"]
    assert len(pods.logged("watch_resumed")) == 1


@pytest.mark.parametrize(
    "gone",
    [
        refused(410, "Expired"),
        streamed(event("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})),
        streamed(b"not JSON\n"),
    ],
    ids=["status", "event", "garbage"],
)
async def test_a_version_that_is_gone_needs_a_list_which_shows_what_was_deleted(
    server: ApiServer, kube: KubeClient, gone: Answer
) -> None:
    server.lists += [listed(7, thing("a", 3), thing("b", 5)), listed(50, thing("b", 5))]
    server.watches += [gone, streamed(added("c", 51), hold=server.over)]
    async with following(kube) as pods:
        await pods.see("ADDED a", "ADDED b", "DELETED a", "MODIFIED b", "ADDED c")
    assert server.said == ["list", "watch 7", "list", "watch 50"]
    assert [line["reason"] for line in pods.logged("watch_interrupted")] == ["Expired"]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (hung_up, "Unreachable"),
        (refused(500, "InternalError"), "InternalError"),
        (refused(503), "Status503"),
        (refused(429, "TooManyRequests"), "TooManyRequests"),
        (refused(401, "Unauthorized"), "Unauthorized"),
        (refused(403, "Forbidden"), "Forbidden"),
        (streamed(), "Closed"),
    ],
    ids=["hung-up", "500", "503", "429", "401", "403", "ended-at-once"],
)
async def test_an_outage_is_got_over_and_logged_once(
    server: ApiServer, kube: KubeClient, failure: Answer, reason: str
) -> None:
    # Of refused credentials the client makes two requests.
    server.watches += [failure] * 6 + [streamed(added("a", 8), hold=server.over)]
    async with following(kube) as pods:
        await pods.see("ADDED a")
    assert server.said == ["list"] + ["watch 1"] * 7, "where it was, without a list"
    (line,) = pods.logged("watch_interrupted")
    assert (line["reason"], line["kind"], line["namespace"]) == (reason, "Pod", "all")
    assert line["error"]
    assert len(pods.logged("watch_resumed")) == 1


async def test_another_reason_in_the_same_outage_is_logged_too(server: ApiServer, kube: KubeClient) -> None:
    away = [hung_up] * HANG_UPS
    server.lists += [*away, refused(403, "Forbidden"), *away, listed(7, thing("a", 3))]
    server.watches.append(streamed(added("b", 8), hold=server.over))
    async with following(kube) as pods:
        await pods.see("ADDED a", "ADDED b")
    assert [line["reason"] for line in pods.logged("watch_interrupted")] == ["Unreachable", "Forbidden"]
    assert len(pods.logged("watch_resumed")) == 1


async def test_a_watch_in_which_nothing_happens_ends_an_outage(server: ApiServer, kube: KubeClient) -> None:
    server.watches += [hung_up] * HANG_UPS
    async with following(kube, settled_seconds=0.05) as pods:
        await until(lambda: pods.logged("watch_resumed"))
    assert server.said == ["list"] + ["watch 1"] * (HANG_UPS + 1)


async def test_the_server_says_how_long_to_wait(server: ApiServer, kube: KubeClient) -> None:
    server.watches += [refused(429, "TooManyRequests", Retry_After="1"), streamed(added("a", 8))]
    began = time.monotonic()
    async with following(kube) as pods:
        await pods.see("ADDED a")
    assert time.monotonic() - began >= 1.0


@pytest.mark.parametrize("value", ["86400", "Wed, 21 Oct 2026 07:28:00 GMT", "-1", "soon"])
async def test_what_it_says_is_bounded(
    server: ApiServer, kube: KubeClient, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "RETRY_AFTER_SECONDS_MAX", 0.1)
    server.watches += [refused(429, "TooManyRequests", Retry_After=value), streamed(added("a", 8))]
    async with following(kube) as pods:
        await pods.see("ADDED a")


@pytest.mark.parametrize("opened", [False, True], ids=["never-answered", "answered"])
async def test_a_silent_server_is_given_up(server: ApiServer, kube: KubeClient, opened: bool) -> None:
    silent = streamed(added("a", 8), hold=server.over) if opened else unanswered(server.over)
    server.watches += [silent, streamed(added("b", 9), hold=server.over)]
    async with following(kube, server_seconds=(0.1, 0.2), silence_seconds=0.1) as pods:
        await pods.see(*(["ADDED a"] if opened else []), "ADDED b")
        assert [line["reason"] for line in pods.logged("watch_interrupted")] == ["Unreachable"]


async def test_after_a_long_outage_it_lists_again(
    server: ApiServer, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "LIST_AGAIN_SECONDS", 0.0)
    server.lists += [listed(7, thing("a", 3)), listed(4)]
    server.watches += [*[hung_up] * HANG_UPS * 2, streamed(added("b", 5), hold=server.over)]
    async with following(kube) as pods:
        await pods.see("ADDED a", "DELETED a", "ADDED b")
    assert server.said == ["list", *["watch 7"] * HANG_UPS * 2, "list", "watch 4"]


async def test_an_event_beyond_every_bound_needs_a_list(
    server: ApiServer, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "EVENT_BYTES_MAX", 1000)
    large = event("ADDED", thing("a", 8, annotations={"x": "y" * 2000}))
    server.lists += [listed(7), listed(8, thing("a", 8))]
    server.watches += [streamed(large, hold=server.over), streamed(added("b", 9), hold=server.over)]
    async with following(kube) as pods:
        await pods.see("ADDED a", "ADDED b")
    assert server.said == ["list", "watch 7", "list", "watch 8"]


async def test_events_larger_than_any_buffer_are_read(server: ApiServer, kube: KubeClient) -> None:
    large = event("ADDED", thing("a", 8, annotations={"x": "y" * 10_000_000}))
    server.watches.append(streamed(large, hold=server.over))
    async with following(kube) as pods:
        await pods.see("ADDED a")
    assert pods.lines == []


async def test_a_renewed_token_is_read_while_others_use_the_old_one(
    server: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] == "Bearer renewed":
            return await streamed(added("a", 8), hold=server.over)(request)
        is_open = request.query.get("labelSelector") == "old"
        return await (streamed(hold=server.over) if is_open else refused(401, "Unauthorized"))(request)

    server.watches += [answer] * 10
    async with following(kube, labels="old") as old:
        await until(lambda: len(server.requests) == 2)
        path = tmp_path / "kubeconfig"
        config = json.loads(path.read_text())
        config["users"][0]["user"]["token"] = "renewed"
        path.write_text(json.dumps(config))
        async with following(kube, labels="new") as new:
            await new.see("ADDED a")
            await old.see("ADDED a")


async def test_credentials_that_cannot_be_read_are_waited_for(
    server: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    whole = path.read_text()
    server.watches += [refused(401, "Unauthorized")]
    path.write_text("")
    async with following(kube) as pods:
        await until(lambda: pods.logged("watch_interrupted"))
        path.write_text(whole)
        server.watches.append(streamed(added("a", 8), hold=server.over))
        await pods.see("ADDED a")
