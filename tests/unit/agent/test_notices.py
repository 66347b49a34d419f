"""Spot notices: what each cloud's documented answers mean, and what is not concluded from others."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from elastane.agent.notices.detect import check_choice, chosen_source, detect_source
from elastane.agent.notices.fetch import Reply, Request, fetcher
from elastane.agent.notices.notice import Notice, NoticeFormatError
from elastane.agent.notices.sources import CLOUDS, Source
from elastane.agent.notices.watch import NoticeWatch
from elastane.errors import RefusedError
from metadata_fakes import azure_event, metadata_service

AT = "2026-11-21T08:22:00Z"
AT_SECONDS = datetime(2026, 11, 21, 8, 22, tzinfo=UTC).timestamp()
NOTICES: dict[str, Any] = {
    "aws": AT,
    "alibaba": AT,
    "gcp": True,
    "azure": azure_event("Preempt", "Sat, 21 Nov 2026 08:22:00 GMT", "scale_set_2", "scale_set_3"),
}
LEADS = {"aws": 120.0, "alibaba": 300.0, "gcp": 30.0, "azure": 30.0}


@pytest.mark.parametrize("cloud", NOTICES)
def test_notice_of_each_cloud(cloud: str) -> None:
    with metadata_service(cloud) as service:
        source = CLOUDS[cloud](fetcher(5.0), service.url)
        assert source.look() is None
        service.notice = NOTICES[cloud]
        notice = source.look()
    assert notice is not None
    assert (notice.kind, notice.source, notice.lead_seconds) == ("reclaim", cloud, LEADS[cloud])
    if cloud == "gcp":
        assert notice.seconds_left(AT_SECONDS) == 30.0
    else:
        assert notice.seconds_left(AT_SECONDS - 17.5) == 17.5
        assert notice.seconds_left(AT_SECONDS + 5.0) == 0.0


def test_rebalance_is_no_reclaim() -> None:
    with metadata_service("aws") as service:
        source = CLOUDS["aws"](fetcher(5.0), service.url)
        service.rebalance = AT
        assert (notice := source.look()) is not None and notice.kind == "rebalance"
        service.notice = AT
        assert (notice := source.look()) is not None and notice.kind == "reclaim"


@pytest.mark.parametrize("cloud", ["aws", "alibaba"])
def test_token_that_ran_out_is_asked_for_again(cloud: str) -> None:
    with metadata_service(cloud) as service:
        service.token_required = True
        source = CLOUDS[cloud](fetcher(5.0), service.url)
        service.notice = AT
        assert source.look() is not None
        service.forget_tokens()
        assert source.look() is not None
        tokens = [asked for asked in service.asked if asked.startswith("PUT")]
    assert len(tokens) == 2


def test_events_of_other_machines_and_of_other_kinds_are_not_ours() -> None:
    with metadata_service("azure") as service:
        source = CLOUDS["azure"](fetcher(5.0), service.url)
        service.notice = (
            azure_event("Preempt", "", "scale_set_2") + "," + azure_event("Reboot", "", "scale_set_3")
        )
        assert source.look() is None
        service.notice = azure_event("Preempt", "", "scale_set_3", status="Started")
        notice = source.look()
    assert notice is not None and notice.at is None and notice.seconds_left(AT_SECONDS) == 30.0


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(
    "garbage", [b"", b"<html>login</html>", b"[1, 2]", b'{"Events": [7]}', b'{"time": 5}', b"\xff\xfe"]
)
def test_garbage_is_no_notice(cloud: str, garbage: bytes) -> None:
    with metadata_service(cloud) as service:
        source = CLOUDS[cloud](fetcher(5.0), service.url)
        service.garbage = garbage
        with pytest.raises(NoticeFormatError):
            source.look()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_service_that_never_answers_is_an_error_in_time(cloud: str) -> None:
    with metadata_service(cloud) as service:
        service.silent = threading.Event()
        source = CLOUDS[cloud](fetcher(0.2), service.url)
        with pytest.raises(OSError):
            source.look()
        assert not source.is_here()


def test_answer_that_drips_is_cut_off() -> None:
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while not over.wait(0.05):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            with pytest.raises(OSError, match="did not end its answer"):
                fetcher(0.3)(Request(f"http://127.0.0.1:{server.getsockname()[1]}/"))
        finally:
            over.set()
            thread.join()


def test_answer_that_ends_early_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(OSError, match="20 bytes early"):
            fetcher(5.0)(Request(f"http://127.0.0.1:{server.getsockname()[1]}/"))
        thread.join()


def test_answer_that_does_not_end_is_cut_off() -> None:
    with metadata_service("http") as service:
        service.notice = "x" * 100_000
        with pytest.raises(OSError, match="more than"):
            fetcher(5.0)(Request(service.url))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_cloud_is_found_by_its_answers(cloud: str) -> None:
    with metadata_service(cloud) as service, metadata_service("none") as other:
        urls = {name: service.url if name == cloud else other.url for name in CLOUDS}
        found = detect_source(fetcher(5.0), urls)
        # All that share the address of this one must keep away from it.
        shared = detect_source(fetcher(5.0), dict.fromkeys(CLOUDS, service.url))
        nothing = detect_source(fetcher(5.0), dict.fromkeys(CLOUDS, other.url))
    assert found is not None and found.name == cloud
    assert shared is not None and shared.name == cloud
    assert nothing is None


@pytest.mark.parametrize(
    ("text", "seconds", "reason"),
    [
        ("", 30.0, "announced"),
        ('{"seconds": 15, "reason": "node pool"}', 15.0, "node pool"),
        (AT, 60.0, "announced"),
        (f'{{"time": "{AT}"}}', 60.0, "announced"),
    ],
)
@pytest.mark.parametrize("hook", ["file", "http"])
def test_hooks(tmp_path: Path, hook: str, text: str, seconds: float, reason: str) -> None:
    with metadata_service("http") as service:
        file = tmp_path / "notice"
        choice = f"file:{file}" if hook == "file" else service.url
        source = chosen_source(check_choice(choice), fetcher(5.0))
        assert source is not None and source.look() is None
        file.write_text(text)
        service.notice = text
        notice = source.look()
    assert notice is not None and notice.reason == reason
    assert notice.seconds_left(AT_SECONDS - 60.0) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "soon",
        "Sat, 21 Nov 99999999999999999999 08:22:00 GMT",
        "Sat, 21 Nov 2026 08:22:00 +9999999999",
        '{"seconds": -1}',
        '{"seconds": "x"}',
        '{"seconds": true}',
        "{",
    ],
)
def test_hook_that_says_nonsense(tmp_path: Path, text: str) -> None:
    file = tmp_path / "notice"
    file.write_text(text)
    source = chosen_source(f"file:{file}", fetcher(1.0))
    assert source is not None
    with pytest.raises(NoticeFormatError):
        source.look()


@pytest.mark.parametrize("choice", ["", "ec2", "file:", "https://x", "AWS"])
def test_choice_that_is_none(choice: str) -> None:
    with pytest.raises(RefusedError, match="no such source"):
        check_choice(choice)


class Scripted(Source):
    """A source that says what it is told to, one answer for each look."""

    name = "scripted"
    default_url = ""
    poll_seconds = 0.001

    def __init__(self, *answers: Notice | Exception | None) -> None:
        super().__init__(self._no_requests)
        self._answers = list(answers)

    @staticmethod
    def _no_requests(request: Request) -> Reply:
        raise AssertionError(request)

    def look(self) -> Notice | None:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def is_here(self) -> bool:
        return True


def watched(source: Callable[[], Source | None]) -> tuple[list[Notice], list[str]]:
    """What a watch tells until the first reclaim."""
    told: queue.SimpleQueue[Notice] = queue.SimpleQueue()
    troubles: list[str] = []
    watch = NoticeWatch(source, told.put, troubles.append)
    watch.start()
    notices = [told.get(timeout=30)]
    while notices[-1].kind != "reclaim":
        notices.append(told.get(timeout=30))
    watch.stop()
    return notices, troubles


def test_watch_survives_failures_and_tells_each_outage_once() -> None:
    reclaim = Notice("reclaim", "scripted", "now")
    rebalance = Notice("rebalance", "scripted", "maybe")
    down, wrong = OSError("down"), NoticeFormatError("not as documented")
    source = Scripted(None, down, down, rebalance, rebalance, None, wrong, down, reclaim)
    notices, troubles = watched(lambda: source)
    assert notices == [rebalance, reclaim]
    assert [text.partition("read: ")[2] for text in troubles] == ["down", "not as documented"]


def test_watch_that_was_stopped_tells_nothing() -> None:
    looked, told = threading.Event(), []

    class Slow(Scripted):
        def look(self) -> Notice | None:
            looked.set()
            watch.stop()
            return super().look()

    watch = NoticeWatch(lambda: Slow(Notice("reclaim", "scripted", "now")), told.append, told.append)
    watch.start()
    assert looked.wait(30)
    watch._thread.join(30)
    assert told == [] and not watch._thread.is_alive()
