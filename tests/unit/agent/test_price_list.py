"""Lists of prices: what holds when, what is refused, and what a feed that misbehaves can do: nothing."""

from __future__ import annotations

import asyncio
import json
import math
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from aiohttp import web

from elastane_agent.supervisor.price_feed import (
    News,
    PriceFeedSettings,
    PriceListFeed,
    prices_at,
    set_prices_arguments,
)
from elastane_agent.supervisor.price_list import DevicePrices, is_price_list, parse_price_list
from elastane_agent.supervisor.price_source import BYTES_MAX, is_url, read_source
from elastane_agent.supervisor.price_table import PriceTable, PriceTableError
from elastane_common.errors import RefusedError


def entry(micros: Any = 310_000, device: str = "L4", capacity: str = "spot", **more: Any) -> dict[str, Any]:
    return {"device": device, "capacity": capacity, "micros_per_hour": micros, **more}


def text(*entries: Any, **common: Any) -> str:
    return json.dumps({"prices": entries, **common} if common else entries)


# ------------------------------------------------------------------ what holds


def test_prices_by_device_and_capacity() -> None:
    found = parse_price_list(
        text(entry(), entry(980_000, capacity="on-demand"), entry(5, "*", "on_demand"), currency="USD"),
        currency="USD",
    )
    assert found.at(0) == {"L4": DevicePrices(310_000, 980_000), "": DevicePrices(None, 5)}
    assert found.next_change(0) == math.inf and not found.stale(0)


def test_the_entry_that_ends_first_holds_and_the_last_one_is_kept() -> None:
    found = parse_price_list(
        text(
            entry(3, valid_until="1970-01-01T00:05:00Z"),
            entry(1, valid_until=100),
            entry(2, valid_until="1970-01-01T00:03:20"),
        )
    )
    prices = [found.at(now)["L4"].spot_micros for now in (0, 99.9, 100, 199, 200, 299, 300, 9999)]
    assert prices == [1, 1, 2, 2, 3, 3, 3, 3]
    assert [found.next_change(now) for now in (0, 100, 250, 300)] == [100, 200, 300, math.inf]
    assert not found.stale(299)
    [stale] = found.stale(300)
    assert stale.micros == 3


def test_zones() -> None:
    entries = (entry(1, zone="a"), entry(2, zone="b"), entry(3), entry(4, "A10"), entry(9, "T4", zone="a"))
    found = parse_price_list(text(*entries), zone="b").at(0)
    assert {device: price.spot_micros for device, price in found.items()} == {"L4": 2, "A10": 4}
    with pytest.raises(PriceTableError, match="several zones: a, b") as raised:
        parse_price_list(text(*entries))
    assert "--prices-zone" in str(raised.value.hint)
    with pytest.raises(PriceTableError, match="no price is of zone c"):
        parse_price_list(text(entry(zone="a")), zone="c")
    assert parse_price_list(text(entry(7, zone="a"))).at(0)["L4"].spot_micros == 7


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (text(entry(0)), "entry 1: micros_per_hour is 0"),
        (text(entry(), entry(-5, "A10")), "entry 2: micros_per_hour is -5"),
        ('[{"capacity": "spot", "micros_per_hour": NaN}]', "NaN is no price"),
        ('[{"capacity": "spot", "micros_per_hour": Infinity}]', "Infinity is no price"),
        ('[{"capacity": "spot", "micros_per_hour": 1e400}]', "micros_per_hour is inf"),
        (text(entry(0.31)), "micros_per_hour is 0.31"),
        (text(entry(True)), "micros_per_hour is True"),
        (text(entry("310000")), "micros_per_hour is '310000'"),
        (text(entry(10**12 + 1)), "micros_per_hour is 1000000000001"),
        (text(entry(10**4000)), "micros_per_hour is 1000"),
        (text(entry(currency="EUR")), "entry 1: the price is in EUR, the job's are in USD"),
        (text(entry(), currency="EUR"), "entry 1: the price is in EUR"),
        (text(entry(currency="dollars")), "is not a currency"),
        (text(entry(currency=5)), "is not a currency"),
        (text(entry(capacity="reserved")), "capacity must be"),
        (text({"micros_per_hour": 1}), "capacity must be"),
        (text(entry(device=["L4"])), "device is"),
        (text(entry(device="L4\x1b[2J")), "device is"),
        (text(entry(device="x" * 81)), "device is"),
        (text(entry(valid_until="soon")), "valid_until is 'soon'"),
        (text(entry(valid_until=-1)), "valid_until is -1"),
        (text(entry(valid_untill=3)), "unknown field, 'valid_untill'"),
        (text(entry(), entry()), "two prices of L4, spot"),
        (text(*(entry(device=f"d{number}") for number in range(65))), "more than 64 device types"),
        (text(entry(), prices_of="x"), "unknown field"),
        ("[]", "no prices"),
        ("{}", "not a list"),
        ("[[]]", "not a list"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("<html>", "not JSON"),
    ],
)
def test_what_is_no_list(content: str, words: str) -> None:
    with pytest.raises(PriceTableError, match=words.replace("[", r"\[")):
        parse_price_list(content, currency="USD")


def test_a_table_and_a_list_are_told_apart(tmp_path: Path) -> None:
    assert is_price_list(text(entry())) and is_price_list('{"prices": []}')
    assert not is_price_list('[{"at": 0, "spot": 1}]') and not is_price_list("at,spot\n0,1\n")
    path = tmp_path / "prices"
    path.write_text("at,spot\n0,1\n")
    assert isinstance(prices_at(PriceFeedSettings(str(path))), PriceTable)
    settings = PriceFeedSettings(str(path))
    path.write_text(text(entry()))
    assert prices_at(settings) is settings
    path.write_text(text(entry(0)))
    with pytest.raises(RefusedError, match=r"/prices: entry 1"):
        prices_at(settings)


def test_locations() -> None:
    assert is_url("http://h/p") and is_url("HTTPS://h") and not is_url("prices.json") and not is_url("C:/x")
    for bad in ("file:///etc/passwd", "ftp://h/p", "http://", "https:///x"):
        with pytest.raises(ValueError, match="neither a file nor"):
            is_url(bad)
    unread = PriceFeedSettings("http://127.0.0.1:9/never-asked")
    assert prices_at(unread) is unread


# ------------------------------------------------------------------ feeds over HTTP

GOOD = text(entry(310_000))
SENT: list[int] = []


async def _good(_: web.Request) -> web.Response:
    return web.Response(text=GOOD)


async def _hangs(_: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


async def _drips(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    for _ in range(600):
        await answer.write(b" ")
        await asyncio.sleep(0.1)
    return answer


async def _endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    answer.enable_chunked_encoding()
    await answer.prepare(request)
    for _ in range(1024):  # 1 GiB
        await answer.write(b" " * 1024 * 1024)
        SENT.append(1)
    return answer


async def _huge(_: web.Request) -> web.Response:
    return web.Response(body=b"[" + b" " * BYTES_MAX + b"]")


async def _zipped(_: web.Request) -> web.Response:
    return web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})


async def _away(request: web.Request) -> web.Response:
    return web.Response(status=302, headers={"Location": request.query["to"]})


async def _gone(_: web.Request) -> web.Response:
    return web.Response(status=503)


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """A server of good and bad feeds in a thread; its base URL."""
    app = web.Application()
    handlers = (_good, _hangs, _drips, _endless, _huge, _zipped, _away, _gone)
    app.add_routes([web.get(f"/{handler.__name__[1:]}", handler) for handler in handlers])
    loop, ready, ports = asyncio.new_event_loop(), threading.Event(), []

    async def serve() -> web.AppRunner:
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        ready.set()
        return runner

    def run() -> None:
        runner = loop.run_until_complete(serve())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(30)
    yield f"http://127.0.0.1:{ports[0]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


def test_a_feed_is_read_and_redirects_of_http_are_followed(base: str) -> None:
    assert read_source(f"{base}/good") == GOOD
    assert read_source(f"{base}/away?to=/good") == GOOD
    assert read_source(f"{base}/away?to={base}/good") == GOOD


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("hangs", "did not answer within 0.5 s"),
        ("drips", "did not answer within 0.5 s"),
        ("huge", "more than 1048576 bytes"),
        ("zipped", "compressed"),
        ("gone", "it answers 503"),
        ("none", "it answers 404"),
        ("away?to=file:///etc/passwd", "redirects to .*no http"),
        ("away?to=ftp://127.0.0.1/x", "redirects to .*no http"),
        ("away?to=data:,[]", "redirects to .*no http"),
        ("away?to=", "redirects to nowhere"),
    ],
)
def test_a_feed_that_misbehaves_is_an_error_in_time(base: str, path: str, words: str) -> None:
    with pytest.raises(OSError, match=words):
        read_source(f"{base}/{path}", timeout_seconds=0.5)


def test_a_gigabyte_is_not_read(base: str) -> None:
    with pytest.raises(OSError, match="more than 1048576 bytes"):
        read_source(f"{base}/endless")
    assert len(SENT) < 64, "what the buffers of both ends hold, no more"


def test_circles_of_redirects_end(base: str) -> None:
    url = f"{base}/good"
    for _ in range(6):
        url = f"{base}/away?to={quote(url, safe='')}"
    with pytest.raises(OSError, match="more than 5 redirects"):
        read_source(url)
    assert read_source(unquote(url.partition("?to=")[2])) == GOOD


def test_nobody_there_and_files_too_large(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"127\.0\.0\.1:9/p"):
        read_source("http://user:secret@127.0.0.1:9/p?key=secret", timeout_seconds=5)
    try:
        read_source("http://user:secret@127.0.0.1:9/p?key=secret", timeout_seconds=5)
    except OSError as error:
        assert "secret" not in str(error)
    path = tmp_path / "large"
    path.write_bytes(b" " * (BYTES_MAX + 1))
    with pytest.raises(OSError, match="more than"):
        read_source(str(path))


# ------------------------------------------------------------------ what the master is told


class Feed:
    """A feed under test: `answer` is what reading gives, and `now` the time."""

    def __init__(self, interval_seconds: float = 60.0) -> None:
        self.now = 1000.0
        self.answer: str | Exception = GOOD
        self.told: list[News] = []
        self.said: list[tuple[str, str]] = []
        self.refuses = False
        self.reads = 0
        self.feed = PriceListFeed(
            PriceFeedSettings("http://feed", interval_seconds=interval_seconds),
            "USD",
            self._tell,
            lambda text, event: self.said.append((event, text)),
            read=self._read,
        )

    def _tell(self, news: News) -> None:
        if self.refuses:
            raise RefusedError("no right to")
        self.told.append(news)

    def _read(self, location: str) -> str:
        assert location == "http://feed"
        self.reads += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def look(self, after: float = 60.0) -> float:
        self.now += after
        return self.feed.look(self.now, lambda: self.now)

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.said]


def test_only_what_has_changed_is_told() -> None:
    feed = Feed()
    assert feed.look(0) == 60
    assert feed.told == [{"L4": DevicePrices(310_000, None, 1000 + 300)}]
    feed.look()
    assert len(feed.told) == 1 and feed.reads == 2
    feed.answer = text(entry(320_000))
    feed.look()
    assert feed.told[1] == {"L4": DevicePrices(320_000, None, 1120 + 300)}
    assert not feed.said
    for _ in range(3):
        feed.look()
    assert len(feed.told) == 3, "that they last longer is told when half of the time is over"


@pytest.mark.parametrize(
    "answer",
    [TimeoutError("http://feed did not answer within 10 s"), text(entry(0)), text(entry(currency="EUR"))],
    ids=["hangs", "zero", "currency"],
)
def test_while_a_feed_fails_the_last_prices_are_kept_and_it_is_said_once(answer: str | Exception) -> None:
    feed = Feed()
    feed.look(0)
    feed.answer = answer
    for _ in range(10):
        feed.look()
    assert len(feed.told) == 1, "nothing else, and no longer time: the master sees when they expire"
    assert feed.events == ["prices_unreadable"]
    assert "the last prices are kept" in feed.said[0][1]
    feed.answer = GOOD
    feed.look()
    assert feed.events == ["prices_unreadable", "prices_readable"]
    assert feed.told[1]["L4"].expires_at == feed.now + 300


def test_a_feed_that_never_answered_changes_nothing() -> None:
    feed = Feed()
    feed.answer = OSError("no route to host")
    feed.look(0)
    assert not feed.told and feed.said == [
        ("prices_unreadable", "the prices cannot be read, no price is known: no route to host")
    ]


def test_prices_that_end_are_kept_and_named() -> None:
    feed = Feed()
    feed.answer = text(entry(1, valid_until=1010), entry(2, valid_until=1030))
    assert feed.look(0) == 10
    assert feed.look(10) == 20
    assert [news["L4"].spot_micros for news in feed.told] == [1, 2]
    assert feed.look(20) == 30
    assert feed.events == ["prices_stale"] and "L4, spot ended at 1970-01-01T00:17:10" in feed.said[0][1]
    feed.look(1)
    assert feed.events == ["prices_stale"] and feed.reads == 1
    assert feed.told[-1] == {"L4": DevicePrices(2, None, 1030)}


def test_what_the_master_refused_is_told_again() -> None:
    feed = Feed()
    feed.refuses = True
    feed.look(0)
    assert feed.events == ["prices_refused"] and not feed.told
    feed.refuses = False
    feed.look()
    assert len(feed.told) == 1


def test_a_clock_that_was_set_back_does_not_stop_the_readings() -> None:
    feed = Feed()
    feed.look(0)
    assert feed.look(-500_000) == 60 and feed.reads == 2
    feed.look(30)
    assert feed.reads == 2


def test_the_arguments_of_set_prices() -> None:
    arguments = set_prices_arguments({"": DevicePrices(1, None, 50.5), "L4": DevicePrices(None, 2)})
    assert arguments["spot_price_micros"] == 1 and arguments["on_demand_price_micros"] is None
    assert arguments["expires"].timestamp() == 50.5
    [device] = arguments["devices"]
    assert (device.device_type, device.on_demand_price_micros) == ("L4", 2)
    assert not device.HasField("spot_price_micros") and not device.HasField("expires")
    assert set_prices_arguments({"L4": DevicePrices(5)})["expires"] is None


def test_the_thread_reads_until_it_is_stopped(tmp_path: Path) -> None:
    path, told = tmp_path / "prices.json", queue.SimpleQueue[News]()
    path.write_text(GOOD)
    say: Callable[[str, str], None] = lambda text, event: pytest.fail(text)  # noqa: E731
    feed = PriceListFeed(PriceFeedSettings(str(path), interval_seconds=0.05), "USD", told.put, say)
    feed.start()
    assert told.get(timeout=30)["L4"].spot_micros == 310_000
    path.with_suffix(".new").write_text(text(entry(5)))
    path.with_suffix(".new").replace(path)
    while told.get(timeout=30)["L4"].spot_micros != 5:
        pass
    feed.stop()
