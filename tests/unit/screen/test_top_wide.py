"""What `elastane top` shows at 60, 80 and 120 columns, sorted, filtered and beside its pane. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from elastane_cli.screen.columns import TABLES, Order, fit
from elastane_cli.screen.keys import Mouse
from elastane_cli.screen.news import JobNews, News
from elastane_cli.screen.pages import picture
from elastane_cli.screen.view import Layout, View, press
from elastane_proto.v1 import metric_pb2, ring_pb2, shard_pb2
from unit.cli.fake_master import running_job

WORKERS = View(page="job", job="train")


def busy_news(workers: int = 3) -> News:
    """A job whose workers have measured, lost one, and logged a loss."""
    job = running_job()
    job.settings.ests = workers
    del job.workers[:]
    detail = JobNews("train", job)
    figures = {}
    for number in range(workers):
        worker = job.workers.add(
            worker_id=f"w{number}", state=1, applied_step=12, host="node", pid=7, reason="joined: a host came"
        )
        worker.ests.start, worker.ests.end = number, number + 1
        worker.last_heard.FromNanoseconds(round((95 + number) * 1e9))
        figures[f"w{number}"] = ring_pb2.WorkerFigures(
            device_type="NVIDIA H100", ring_steps=9, ring_step_seconds=0.2, est_seconds=0.1, usual_steps=9,
            usual_data_wait_seconds=0.02 * (workers - number), usual_all_reduce_wait_seconds=0.05,
        )  # fmt: skip
    detail.figures = figures
    samples = [
        ring_pb2.ResourceSample(
            cpu_cores=cores, resident_bytes=3 * 2**29, gpu_use=cores / 4, gpu_bytes=gpu_bytes
        )
        for cores, gpu_bytes in ((0.0, 0), (1.0, 0), (2.0, 2**34))
    ]
    detail.resources = {"w1": samples}
    detail.take_event(ring_pb2.Event(sequence=1, kind="worker_joined", worker_id="w0", reason="w0 joined"))
    detail.take_event(
        ring_pb2.Event(sequence=2, kind="worker_lost", worker_id="w9", reason="its stream broke")
    )
    points = [metric_pb2.Point(step=step, steps=1, mean=1.0 - step / 4, last=0.5) for step in range(4)]
    detail.series = [
        metric_pb2.Series(name="accuracy", points=points),
        metric_pb2.Series(name="loss", points=points),
    ]
    return News(detail=detail)


def lines_of(view: View, news: News, columns: int, rows: int = 24, now: float = 100.0) -> list[str]:
    return picture(view, news, columns, rows, now).text.splitlines()


@pytest.mark.parametrize("table", sorted(TABLES))
def test_each_column_has_a_worth_and_those_of_most_worth_stay(table: str) -> None:
    columns = {column.id for column in TABLES[table].columns}
    assert sorted(TABLES[table].worth) == sorted(columns)
    shown: set[str] = set()
    for width in range(1, 160):
        placed = fit(TABLES[table], width, {})
        ids = {one.column.id for one in placed}
        assert ids == set(TABLES[table].worth[: len(ids)]), "what is left out is of least worth"
        assert ids >= shown, "a wider screen shows no less"
        assert placed[-1].end == width if placed[-1].column.grows else placed[-1].end <= width
        assert all(one.end <= other.start for one, other in pairwise(placed))
        shown = ids
    assert shown == columns


def test_what_each_width_shows_of_the_workers() -> None:
    news = busy_news()
    head = {width: lines_of(WORKERS, news, width)[4].split("│")[0].split() for width in (40, 60, 80, 120)}
    assert head[40] == ["WORKER", "STATE", "ESTS", "APPLIED"]
    assert head[60] == ["WORKER", "STATE", "ESTS", "APPLIED", "HEARD", "REASON"]
    assert head[80] == ["WORKER", "STATE", "ESTS", "APPLIED", "HEARD", "STEP", "DATA", "WAIT", "REASON"]
    assert head[120] == head[80], "the pane takes what is wider"
    assert lines_of(WORKERS, news, 80)[5].split()[:8] == [
        "w0",
        "member",
        "0",
        "12",
        "5.0s",
        "200ms",
        "60ms",
        "joined:",
    ]


def test_narrow_screens_keep_the_way_out_and_the_progress() -> None:
    lines = lines_of(replace(WORKERS, pinned=False), busy_news(), 40)
    assert "q: leave" in lines[-1] and "?: keys" in lines[-1] and "…" not in lines[-1]
    assert lines[1] == "step 12/30  3 ESTs on 3 workers"


def pane(view: View, news: News, columns: int = 120, rows: int = 24) -> str:
    """The pane's text alone."""
    lines = lines_of(view, news, columns, rows)
    return "\n".join(line.partition("│ ")[2].rstrip() for line in lines if "│ " in line)


def test_the_pane_shows_the_selected_worker_the_loss_and_the_latest_events() -> None:
    text = pane(replace(WORKERS, selected="w1"), busy_news(), rows=30)
    assert text.startswith("w1  member  ESTs 1\njoined: a host came\non          node, pid 7\n")
    assert "device      NVIDIA H100" in text
    assert "cpu         2.0 cores      ▁▅█" in text
    assert "memory      1.5 GiB        ███\n" in text and "gpu         50%, 16.0 GiB  ▁▅█" in text
    assert "cpu" not in pane(WORKERS, busy_news()), "only what is known of the selected one"
    assert "step        200ms, one EST 100ms" in text
    assert "data wait      40ms   20 % ■■········" in text
    assert "reduce wait    50ms   25 % ■■········" in text
    assert "loss: 0.5\n         1│" in text and "accuracy" not in text
    assert re.search(r"latest events\n.*worker_joined w0 joined\n\S+ worker_lost w9 its str", text)
    assert "│ " not in "".join(lines_of(WORKERS, busy_news(), 109))


def test_the_pane_does_not_repeat_its_page() -> None:
    news = busy_news()
    events = pane(replace(WORKERS, tab="events"), news)
    assert events.startswith("worker_lost\nits stream broke\n") and "latest events" not in events
    curves = pane(replace(WORKERS, tab="curves"), news)
    assert "latest events" in curves and "loss" not in curves
    assert pane(replace(WORKERS, page="worker", worker="gone"), news).startswith("gone  gone")
    jobs = News(jobs=[running_job("other"), running_job("train")])
    assert "train  running\n2 workers\n" in pane(View(selected="train"), jobs)


def test_the_pane_fits_any_height_and_wraps_long_reasons() -> None:
    news = busy_news()
    assert news.detail is not None and news.detail.job is not None
    news.detail.job.workers[0].reason = "because " * 60 + "中" * 80
    for columns in (110, 120, 200):
        for rows in range(3, 40):
            lines = picture(WORKERS, news, columns, rows, 100.0).lines
            assert len(lines) == rows and all(line.cell_len <= columns for line in lines)
    assert pane(WORKERS, news).count("because") > 12, "on more than two lines"


# ---------------------------------------------------------------- sort and filter


def shown(view: View, news: News, columns: int = 120) -> list[str]:
    return [row.id for row in picture(view, news, columns, 24, 100.0).layout.rows]


def pressed(view: View, news: News, *given: str | Mouse, columns: int = 120) -> View:
    """The view after keys, each on what the one before brought up."""
    for one in given:
        view = press(view, one, picture(view, news, columns, 24, 100.0).layout).view
    return view


def test_keys_sort_by_each_column_and_in_reverse() -> None:
    news = busy_news()
    view = pressed(WORKERS, news, "o")
    assert view.order == Order("worker") and "WORKER▲" in lines_of(view, news, 120)[4]
    view = pressed(view, news, "r")
    assert shown(view, news) == ["w2", "w1", "w0"] and "WORKER▼" in lines_of(view, news, 120)[4]
    view = pressed(view, news, *"oooooo")
    assert view.order == Order("data_wait") and shown(view, news) == ["w2", "w1", "w0"]
    assert "DATA WAIT▲" in lines_of(view, news, 120)[4]
    assert pressed(view, news, *"oo").order is None, "after the last column: the order of the ring"
    assert pressed(view, news, "t", "w").order == view.order, "each table keeps its order"
    assert pressed(view, news, "t").order is None
    assert pressed(WORKERS, news, "o", columns=40).order == Order("worker")


def test_tasks_are_sorted_below_their_dataset() -> None:
    tasks = [shard_pb2.TaskInfo(index=number, worker_id=f"w{5 - number}") for number in (1, 2)]
    news = busy_news()
    assert news.detail is not None
    datasets = [shard_pb2.Progress(dataset=name, doing=3, holders=tasks) for name in ("b", "a")]
    news.detail.take_progress(datasets, 0.0)
    view = replace(WORKERS, tab="tasks", orders={"tasks": Order("worker")})
    lines = [line.split("│")[0].split() for line in lines_of(view, news, 120)[5:13]]
    assert [line[0] for line in lines] == ["b", "2", "1", "and", "a", "2", "1", "and"]
    view = replace(view, filter="w4")
    lines = [line.split("│")[0].split() for line in lines_of(view, news, 120)[5:9]]
    assert [line[0] for line in lines] == ["b", "1", "a", "1"], "with the datasets above them"


def test_what_was_never_heard_of_is_below_in_both_directions() -> None:
    news = busy_news()
    assert news.detail is not None and news.detail.job is not None
    news.detail.job.workers[0].ClearField("last_heard")
    view = replace(WORKERS, orders={"workers": Order("heard")})
    assert shown(view, news) == ["w2", "w1", "w0"]
    assert shown(replace(view, orders={"workers": Order("heard", True)}), news) == ["w1", "w2", "w0"]


def test_a_filter_narrows_while_it_is_typed() -> None:
    news = busy_news(12)
    view = pressed(WORKERS, news, "/", "w", "1")
    assert shown(view, news) == ["w1", "w10", "w11"] and "/w1_" in lines_of(view, news, 120)[-2]
    kept = pressed(view, news, "enter")
    assert kept.question is None and "/w1: 3 rows" in lines_of(kept, news, 120)[3]
    assert shown(pressed(kept, news, "v"), news) == [], "the same text among the events"
    assert "nothing with 'w1'" in "".join(lines_of(pressed(kept, news, "v"), news, 120))
    assert shown(pressed(view, news, "backspace", "backspace", "9"), news) == ["w9"]
    assert pressed(view, news, "escape").filter == "" == pressed(kept, news, "escape").filter
    assert pressed(kept, news, "escape").page == "job", "it ends the filter first"
    letters = pressed(WORKERS, news, "/", *"jq", "space", "?")
    assert letters.filter == "jq ?", "keys are letters in a question"
    assert shown(replace(WORKERS, tab="events", filter="LOST"), news) == ["2"]
    assert shown(replace(WORKERS, tab="curves", filter="acc"), news)[0] == "accuracy/0"


# ---------------------------------------------------------------- mouse


def test_the_wheel_moves_the_window_and_takes_the_selection_along() -> None:
    news = busy_news(100)
    view = pressed(WORKERS, news, Mouse("wheel_down", 5, 8))
    layout = picture(view, news, 120, 24, 100.0).layout
    assert (layout.first, layout.room) == (3, 17) and view.selected == "w3"
    view = pressed(replace(view, selected="w10"), news, Mouse("wheel_down", 5, 8), Mouse("wheel_up", 5, 8))
    assert view.selected == "w10" and picture(view, news, 120, 24, 100.0).layout.first == 3
    view = pressed(view, news, *[Mouse("wheel_down", 5, 8)] * 60)
    assert picture(view, news, 120, 24, 100.0).layout.first == 83 and view.selected == "w83"
    assert pressed(view, news, *[Mouse("wheel_up", 5, 8)] * 60).first == 0


def test_the_wheel_moves_curves_at_once() -> None:
    news = busy_news()
    view = replace(WORKERS, tab="curves")
    before = picture(view, news, 80, 16, 100.0)
    after = press(view, Mouse("wheel_down", 5, 8), before.layout).view
    assert picture(after, news, 80, 16, 100.0).layout.first == 3
    for _ in range(9):
        after = press(after, Mouse("wheel_down", 5, 8), picture(after, news, 80, 16, 100.0).layout).view
    last = picture(after, news, 80, 16, 100.0).layout
    assert last.first == len(last.rows) - last.room
    assert press(after, Mouse("wheel_up", 5, 8), last).view.cursor == last.first - 3, (
        "at once in the other direction"
    )


def test_a_click_selects_and_on_what_is_selected_opens() -> None:
    news = busy_news(100)
    scrolled = pressed(WORKERS, news, *[Mouse("wheel_down", 5, 8)] * 2)
    first = picture(scrolled, news, 120, 24, 100.0).layout
    view = pressed(scrolled, news, Mouse("click", 5, first.top + 4))
    assert view.selected == "w10"
    assert picture(view, news, 120, 24, 100.0).layout.first == first.first, (
        "what was clicked stays where it is"
    )
    assert "w10 " in lines_of(view, news, 120)[first.top + 4]
    opened = pressed(view, news, Mouse("click", 30, first.top + 4))
    assert (opened.page, opened.worker) == ("worker", "w10")
    for column, line in ((100, first.top + 4), (5, 0), (5, 23), (5, 22)):  # the pane, the head, the foot
        assert pressed(view, news, Mouse("click", column, line)) == view


def test_a_click_on_the_newest_event_selects_it() -> None:
    news = busy_news()
    view = replace(WORKERS, tab="events")
    clicked = pressed(view, news, Mouse("click", 5, 6))
    assert (clicked.page, clicked.selected) == ("job", "2")
    assert pressed(clicked, news, Mouse("click", 5, 6)).worker == "w9"


def test_a_click_on_a_title_sorts_and_on_a_tab_turns_to_it() -> None:
    news = busy_news()
    titles = lines_of(WORKERS, news, 120)[4]
    view = pressed(WORKERS, news, Mouse("click", titles.index("DATA WAIT"), 4))
    assert view.order == Order("data_wait")
    view = pressed(view, news, Mouse("click", titles.index("DATA WAIT") + 3, 4))
    assert view.order == Order("data_wait", True) and shown(view, news)[0] == "w0"
    tabs = lines_of(WORKERS, news, 120)[3]
    assert pressed(view, news, Mouse("click", tabs.index("Tasks"), 3)).tab == "tasks"
    assert pressed(view, news, Mouse("click", tabs.index("Curves"), 3)).tab == "curves"
    assert pressed(view, news, Mouse("click", 70, 3)) == view, "beside the tabs"
    assert pressed(View(page="job"), News(), Mouse("click", 0, 0)) == View(page="job")
    assert press(WORKERS, Mouse("click", 0, 0), Layout()).view == WORKERS


# ---------------------------------------------------------------- documentation


def test_the_documentation_has_the_columns_of_each_width() -> None:
    page = (Path(__file__).parents[3] / "docs" / "watching.md").read_text()
    rows = dict(re.findall(r"^\| (jobs|workers|ESTs|tasks|events) \| (.*) \|$", page, re.MULTILINE))
    names = {"jobs": "jobs", "workers": "workers", "ESTs": "ests", "tasks": "tasks", "events": "events"}
    for name, table in names.items():
        titles = {column.id: column.title for column in TABLES[table].columns}
        assert rows[name].split(", ") == [titles[one] for one in TABLES[table].worth], name
