"""`elastane top` through a real pseudo-terminal of 80 columns, and its pure parts."""

from __future__ import annotations

import os
import signal
import termios
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from elastane_cli.screen import news as news_module
from elastane_cli.screen.durations import age, brief
from elastane_cli.screen.keys import decode
from elastane_cli.screen.news import JobNews, News, Watching, held_key
from elastane_cli.screen.pages import picture
from elastane_cli.screen.view import Layout, Leave, Row, View, press
from elastane_proto.event_filter import EventFilter
from elastane_proto.v1 import ps_pb2, ring_pb2, shard_pb2
from pseudo_terminal import WAIT_SECONDS, Terminal
from unit.cli.fake_master import FakeMaster, running_job


def test_from_the_list_of_jobs_down_to_a_worker_and_back(
    master: FakeMaster, start: Callable[..., Terminal]
) -> None:
    top = start()
    top.until("JOB ", "train", "running", "suspended")
    top.press("\x1b[B\r")  # down, enter
    top.until("train  running: 2 workers", "step 12/30", "w0", "member", "0-1", "2-3", "Workers")
    top.press("e")
    top.until("DOES STEP", "12")
    top.press("t")
    top.until("train            todo 1  doing 1  done 2/4", "96-127", "w1")
    top.press("v")
    top.until("worker_lost", "reason 2")
    top.press("c")
    top.until("loss: 0.166667 at the last of 12 steps", "│")
    top.press("w\x1b[B\r")  # the second worker
    top.until("w1  in the ring, hosts ESTs 2-3", "worker_joined")
    top.press("\x1b")
    top.until("WORKER", "Curves")
    master.change("train", step=13)
    top.until("step 13/30")
    top.press("\x1b")
    top.until("2 jobs")
    top.press("?")
    top.until("who holds them")
    top.press("xq")
    assert top.process.wait(WAIT_SECONDS) == 0
    assert termios.tcgetattr(top.theirs) == top.before  # echo and lines are back


def test_each_page_fits_and_follows_the_size(start: Callable[..., Terminal]) -> None:
    top = start("train")
    top.until("step 12/30")
    top.resize(60, 12)
    os.kill(top.process.pid, signal.SIGWINCH)
    text = top.until("leave", "epoch 2/3")
    assert all(len(line) <= 60 for line in text.splitlines())
    top.press("q")
    assert top.process.wait(WAIT_SECONDS) == 0
    assert b"\x1b[?1049l" in top.raw or top.until("running")  # the screen of before is back


def test_ctrl_c_leaves_and_restores(start: Callable[..., Terminal]) -> None:
    top = start("train")
    top.until("step 12/30")
    top.press("\x03")
    assert top.process.wait(WAIT_SECONDS) == 130
    assert termios.tcgetattr(top.theirs) == top.before


def test_a_job_that_is_not_there_says_so_on_a_usable_terminal(start: Callable[..., Terminal]) -> None:
    top = start("nonsense")
    top.until("no job 'nonsense'")
    assert top.process.wait(WAIT_SECONDS) == 3
    assert termios.tcgetattr(top.theirs) == top.before


# ---------------------------------------------------------------- pure


def test_keys() -> None:
    assert decode(b"\x1b[Aj\x1b[6~\r\x1b") == (["up", "j", "page_down", "enter", "escape"], b"")
    assert decode("é".encode() + b"\x00\xff\xfe") == (["é"], b"")
    assert decode(b"\x1b[200~q\x1b[?1;2c") == (["q"], b""), "sequences of other purposes"


def test_what_keys_do_to_the_view() -> None:
    layout = Layout([Row("a", "a"), Row("b", "b"), Row("c", "c")])
    view = View()
    for key, selected in (("down", "b"), ("j", "c"), ("down", "c"), ("up", "b"), ("home", "a")):
        view, effect = press(view, key, layout)
        assert view.selected == selected and effect is None
    opened = press(view, "enter", layout).view
    assert (opened.page, opened.job) == ("job", "a")
    assert press(opened, "escape", Layout()) == (View(selected="a"), None)
    pinned = View(page="job", job="a", pinned=True)
    assert press(pinned, "escape", Layout()) == (pinned, None)
    assert isinstance(press(pinned, "q", Layout()).effect, Leave)
    tabs = pinned
    for tab in ("ests", "tasks", "events", "curves", "workers"):
        tabs = press(tabs, "tab", Layout()).view
        assert tabs.tab == tab


def test_what_is_selected_stays_selected_while_rows_come_and_go() -> None:
    view = View(selected="b", cursor=1)
    assert view.position([Row("x"), Row("a"), Row("b")]) == 2
    assert view.position([Row("x"), Row("y"), Row("z")]) == 1  # it is gone: where it was
    assert view.position([]) == 0
    assert View(page="job", tab="events").position([Row("1"), Row("2")]) == 1  # the newest


def news_of(workers: int, events: int = 0) -> News:
    job = running_job()
    job.settings.ests = workers
    del job.workers[:]
    for number in range(workers):
        worker = job.workers.add(worker_id=f"node-with-a-very-long-name-{number}", reason="x" * 300)
        worker.ests.start, worker.ests.end = number, number + 1
    detail = JobNews("train", job)
    for number in range(events):
        detail.events.append(ring_pb2.Event(sequence=number + 1, kind="worker_joined", reason="why " * 100))
    return News(detail=detail)


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("tab", ["workers", "ests", "tasks", "events", "curves"])
def test_pages_are_as_large_as_the_terminal(tab: str, columns: int) -> None:
    news = news_of(100, 50)
    for rows in (3, 10, 24):
        view = View(page="job", job="train", tab=tab)  # type: ignore[arg-type]
        lines = picture(view, news, columns, rows, 0.0).lines
        assert len(lines) == rows and all(line.cell_len <= columns for line in lines)


def test_the_keys_are_told_in_80_columns() -> None:
    told = picture(replace(View(), help=True), News(jobs=[]), 80, 24, 0.0).text
    assert "…" not in told and "curves" in told and "leave" in told


def test_the_selected_row_is_in_the_window() -> None:
    news = news_of(100)
    for selected in ("0", "50", "99"):
        text = picture(View(page="job", tab="ests", selected=selected), news, 80, 24, 0.0).text
        assert f"\n{selected:>5}  " in text


def test_who_holds_what_and_for_how_long() -> None:
    task = shard_pb2.TaskInfo(index=3, attempt=2, worker_id="w1")
    task.range.start, task.range.end = 30, 40
    task.deadline.seconds = 160
    progress = shard_pb2.Progress(dataset="images", doing=1, total=9, holders=[task])
    detail = JobNews("train", running_job())
    detail.take_progress([progress], 100.0)
    detail.take_progress([progress], 130.0)
    assert detail.held_since == {held_key("images", task): 100.0}
    view = View(page="job", tab="tasks")
    text = picture(view, News(detail=detail), 80, 24, 145.0).text
    row = next(line for line in text.splitlines() if "30-39" in line)
    assert row.split() == ["3", "2", "30-39", "45s", "15s", "w1"]
    assert picture(view, News(detail=detail), 80, 24, 0.0).layout.rows[1].opens == "w1"
    task.attempt = 3  # another attempt is held from now on
    detail.take_progress([shard_pb2.Progress(dataset="images", holders=[task])], 150.0)
    assert list(detail.held_since.values()) == [150.0]


class Slots:
    """A client that knows the slots of a job once it is asked a second time."""

    def __init__(self) -> None:
        self.asked = 0
        self.found = ps_pb2.GetSlotsResponse()
        self.found.processes.add(ps_id="ps-0", state="serving")
        self.found.map.places.add(owner="ps-0")

    def find_slots(self, job: str) -> ps_pb2.GetSlotsResponse | None:
        self.asked += 1
        return self.found if self.asked > 1 else None


def test_parameter_servers_are_above_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news_module, "SLOTS_SECONDS", 0.0)
    detail, client, ended = JobNews("train", running_job()), Slots(), threading.Event()
    detail.take_progress([shard_pb2.Progress(dataset="images", total=9)], 0.0)
    detail.slots = next(iter(Watching._slots(client, detail, ended)))  # type: ignore[arg-type]
    assert client.asked == 2
    text = picture(View(page="job", tab="tasks"), News(detail=detail), 80, 24, 0.0).text
    assert text.index("parameter servers: ps-0; 1 of 1 slot served") < text.index("images")
    detail.datasets, client.asked = [shard_pb2.Progress(dataset="train")], 0
    monkeypatch.setattr(ended, "wait", lambda seconds: ended.set())
    assert not list(Watching._slots(client, detail, ended)) and not client.asked  # type: ignore[arg-type]


def test_ages() -> None:
    shown = [age(seconds) for seconds in (-1, 0.44, 59.4, 61, 3700, 300_000)]
    assert shown == ["0.0s", "0.4s", "59s", "1m01s", "1h01m", "3d"]


def test_times_of_steps() -> None:
    told = [brief(seconds) for seconds in (0.0003, 0.0123, 0.9994, 1.25, 75.0)]
    assert told == ["0.3ms", "12ms", "999ms", "1.25s", "1m15s"]


def test_checkpoints_that_follow_each_other_are_one_row_until_a_is_pressed() -> None:
    news = news_of(1, events=2)
    assert news.detail is not None
    for number in range(3, 9):
        news.detail.events.append(ring_pb2.Event(sequence=number, kind="checkpoint_saved", step=number))
    view = View(page="job", job="train", tab="events")
    assert shown(view, news) == ["1", "2", "3"]
    news.detail.events.append(ring_pb2.Event(sequence=9, kind="checkpoint_saved"))
    assert shown(view, news) == ["1", "2", "3"], "it grows where it is"
    view = press(view, "a", Layout()).view
    assert len(shown(view, news)) == 9
    assert press(view, "a", Layout()).view == View(page="job", job="train", tab="events")
    joined = View(wanted=EventFilter(("worker",), sequence=2))
    opened = press(joined, "enter", Layout([Row("train", "train")])).view
    assert shown(replace(opened, tab="events"), news) == ["2"]
    assert press(opened, "escape", Layout()).view == replace(joined, selected="train")


def shown(view: View, news: News) -> list[str]:
    """The ids of the rows on a page."""
    return [row.id for row in picture(view, news, 80, 24, 0.0).layout.rows]
