"""Spot notices: what each cloud's documented answers mean, and what is not concluded from others."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from elastane.runtime.environment import WorkerEnvironment
from elastane_agent.supervisor.notices.detect import check_choice, chosen_source, detect_source
from elastane_agent.supervisor.notices.fetch import Reply, Request, fetcher
from elastane_agent.supervisor.notices.node import NodeNotices
from elastane_agent.supervisor.notices.notice import LEFT_MIN_SECONDS, Notice, NoticeFormatError
from elastane_agent.supervisor.notices.sources import CLOUDS, Source
from elastane_agent.supervisor.notices.watch import NoticeWatch
from elastane_common.errors import RefusedError
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
        service.notice, service.now = NOTICES[cloud], AT_SECONDS - 17.0
        notice = source.look()
    assert notice is not None
    assert (notice.kind, notice.source, notice.lead_seconds) == ("reclaim", cloud, LEADS[cloud])
    # However wrong this node's own clock is.
    for skew in (-7200.0, 0.0, 7200.0):
        assert notice.seconds_left(AT_SECONDS - 17.0 + skew) == (30.0 if cloud == "gcp" else 17.0)


def test_a_time_that_is_past_leaves_time_for_a_step() -> None:
    with metadata_service("aws") as service:
        service.notice, service.now = AT, AT_SECONDS + 600.0
        notice = CLOUDS["aws"](fetcher(5.0), service.url).look()
    assert notice is not None and notice.seconds_left(AT_SECONDS) == LEFT_MIN_SECONDS
    of_a_file = Notice("reclaim", "file", "gone", AT_SECONDS)
    assert of_a_file.seconds_left(AT_SECONDS - 17.5) == 17.5
    assert of_a_file.seconds_left(AT_SECONDS + 3600.0) == LEFT_MIN_SECONDS


@pytest.mark.parametrize("lost", [False, True], ids=["no tokens", "tokens lost on their way"])
def test_a_service_without_session_tokens(lost: bool) -> None:
    with metadata_service("aws") as service:
        service.tokens_known, service.tokens_lost, service.token_required = False, lost, False
        source = CLOUDS["aws"](fetcher(0.2), service.url)
        assert source.is_here() and source.look() is None
        service.notice = AT
        assert source.look() is not None
        service.token_required = True
        with pytest.raises(NoticeFormatError, match="401"):
            source.look()


def test_a_service_on_ipv6() -> None:
    with metadata_service("aws", "::1") as service:
        service.notice = AT
        assert CLOUDS["aws"](fetcher(5.0), service.url).look() is not None


def test_an_ipv6_address_without_a_port_is_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def connect(address: tuple[str, int], *_: object, **__: object) -> socket.socket:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(OSError):
        fetcher(1.0)(Request("http://[fd00:ec2::254]/latest/meta-data/"))
    assert asked == [("fd00:ec2::254", 80)]


@pytest.mark.parametrize(
    ("cloud", "answers"),
    [
        ("aws", {"spot": "spot", "on-demand": "on-demand", "scheduled": "on-demand", "<html>": "", None: ""}),
        ("gcp", {"TRUE": "spot", "FALSE": "on-demand", "maybe": "", None: ""}),
        ("azure", {"Spot": "spot", "Regular": "on-demand", "": "on-demand", "x": "", None: ""}),
        ("alibaba", {None: ""}),
    ],
)
def test_what_kind_of_node_this_is(cloud: str, answers: dict[str | None, str]) -> None:
    with metadata_service(cloud) as service:
        source = CLOUDS[cloud](fetcher(5.0), service.url)
        for told, capacity in answers.items():
            service.capacity = told
            assert source.capacity() == capacity, told


def test_a_worker_is_told_why_it_alone_is_asked_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    notices = NodeNotices("none")

    def told(worker: str) -> str:
        for name, value in {**notices.environment(), "ELASTANE_WORKER_ID": worker}.items():
            monkeypatch.setenv(name, value)
        seconds, reason = WorkerEnvironment().notice()
        return f"{reason}, {seconds:.0f} s"

    assert told("w1") == "SIGTERM, 30 s"
    notices.announce_to("w1", 40.0, "the job wants 1 worker")
    notices.announce_to("w2", 50.0, "its host is gone")
    assert [told(worker) for worker in ("w0", "w1", "w2")] == [
        "SIGTERM, 30 s", "the job wants 1 worker, 40 s", "its host is gone, 50 s"
    ]  # fmt: skip
    notices.announce(60.0, "reclaimed")
    assert told("w1") == "reclaimed, 60 s", "the node goes with all its workers"
    notices.stop()


def test_workers_learn_what_kind_of_node_this_is_and_when_it_goes(tmp_path: Path) -> None:
    told: queue.SimpleQueue[Notice] = queue.SimpleQueue()
    with metadata_service("aws") as service:
        service.capacity, service.notice = "on-demand", AT
        notices = NodeNotices("auto", service.url, 0.02)
        files = {name: Path(path) for name, path in notices.environment().items()}
        notices.start(told.put, pytest.fail)
        assert told.get(timeout=30).source == "aws"
        assert files["ELASTANE_CAPACITY_FILE"].read_text() == "on-demand"
        notices.announce(15.0, "why")
        assert json.loads(files["ELASTANE_NOTICE_FILE"].read_text())["reason"] == "why"
        notices.stop()
    assert not files["ELASTANE_NOTICE_FILE"].parent.exists()
    declared = NodeNotices("none", capacity="spot")
    assert declared.environment()["ELASTANE_CAPACITY"] == "spot"
    declared.stop()


def test_of_two_sources_whichever_speaks_first_is_heard(tmp_path: Path) -> None:
    told: queue.SimpleQueue[Notice] = queue.SimpleQueue()
    file = tmp_path / "notice"
    with metadata_service("aws") as service:
        notices = NodeNotices(f"auto, file:{file}", service.url, 0.02)
        notices.start(told.put, pytest.fail)
        file.write_text('{"seconds": 60}')
        assert told.get(timeout=30).source == "file"
        service.notice = AT
        assert told.get(timeout=30).source == "aws"
        notices.stop()


def test_a_notice_that_is_withdrawn_was_told_all_the_same() -> None:
    told: queue.SimpleQueue[Notice] = queue.SimpleQueue()
    with metadata_service("azure") as service:
        service.notice = NOTICES["azure"]
        watch = NoticeWatch(lambda: CLOUDS["azure"](fetcher(5.0), service.url), told.put, pytest.fail, 0.02)
        watch.start()
        assert told.get(timeout=30).kind == "reclaim"
        service.notice = None
        watch._thread.join(30)
    assert told.empty(), "the drain has begun: it costs no step, and the agent is started again"


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
            with pytest.raises(OSError, match="did not complete its answer"):
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
        with pytest.raises(OSError, match="exceeds"):
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
        service.notice, service.now = text, AT_SECONDS - 60.0
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


@pytest.mark.parametrize("choice", ["", "ec2", "file:", "https://x", "AWS", "aws,", "aws,ec2"])
def test_choice_that_is_none(choice: str) -> None:
    with pytest.raises(RefusedError, match="unknown source"):
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
