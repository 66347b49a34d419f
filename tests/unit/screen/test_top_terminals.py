"""`elastane top` on terminals that are not as they should be, and with masters and workers that are not."""

from __future__ import annotations

import re
import shlex
import signal
import termios
from collections.abc import Callable

from elastane_cli.explain import explain
from elastane_cli.screen.news import JobNews, News
from elastane_cli.screen.pages import picture
from elastane_cli.screen.view import View
from elastane_cli.views.curves import curve_lines
from elastane_cli.views.events import event_line
from elastane_cli.views.explanation import explanation_lines
from elastane_proto.v1 import job_pb2, metric_pb2, ring_pb2, shard_pb2
from pseudo_terminal import ELASTANE, Terminal
from unit.cli.fake_master import FakeMaster, running_job, serving

NASTY = "the script raised:\nTraceback [/x]\n\tFile [red]a.py[/red] \x1b[2J\x1b]0;mine\x07" + "é中" * 60


def nasty_news() -> News:
    job = running_job()
    job.reason = NASTY
    for worker in job.workers:
        worker.reason, worker.host = NASTY, NASTY
    detail = JobNews("train", job)
    for number in (1, 2):
        event = ring_pb2.Event(sequence=number, kind="worker_lost", worker_id="w1", reason=NASTY)
        detail.events.append(event)
    return News(jobs=[job], detail=detail)


def test_what_workers_say_stays_on_its_line() -> None:
    news = nasty_news()
    views = [View(), View(page="worker", job="train", worker="w1")]
    views += [View(page="job", job="train", tab=tab) for tab in ("workers", "ests", "tasks", "events")]  # type: ignore[arg-type]
    for view in views:
        for columns, rows in ((80, 24), (120, 40), (80, 10), (30, 5)):
            lines = picture(view, news, columns, rows, 0.0).lines
            assert len(lines) == rows
            assert all(line.cell_len <= columns for line in lines)
            assert not any(re.search(r"[\x00-\x1f\x7f-\x9f]", line.plain) for line in lines), view
            if rows >= 10:
                assert "leave" in lines[-1].plain


def test_an_event_is_one_line_and_its_brackets_stay() -> None:
    detail = nasty_news().detail
    assert detail is not None and detail.job is not None
    line = event_line(detail.events[0]).plain
    assert "raised: Traceback [/x]" in line and "[red]a.py" in line and len(line.splitlines()) == 1
    told = explain("w1", detail.job, list(detail.events))
    assert told is not None
    assert all(len(str(one).splitlines()) == 1 for one in explanation_lines(told))


def test_an_event_names_its_worker_once_and_another_days_date() -> None:
    event = ring_pb2.Event(sequence=1, kind="worker_lost", worker_id="w1", reason="w1: its stream broke")
    event.time.FromSeconds(1_600_000_000)
    line = event_line(event).plain
    assert line.endswith("w1  its stream broke") and " 2020-09-1" in line
    event.reason, event.worker_id = "w1 was lost", ""
    assert event_line(event).plain.endswith("g0 s0 w1 was lost")


def test_workers_with_whole_domain_names_are_told_apart() -> None:
    news = nasty_news()
    assert news.detail is not None and news.detail.job is not None
    for number, worker in enumerate(news.detail.job.workers):
        worker.worker_id = f"spot-pool-b-{number}.training.svc.cluster.local"
    for tab in ("workers", "ests"):
        text = picture(View(page="job", job="train", tab=tab), news, 80, 24, 0.0).text  # type: ignore[arg-type]
        assert "spot-pool-b-0…" in text and "spot-pool-b-1…" in text


def test_the_name_of_a_curve_cannot_steer_the_terminal() -> None:
    series = metric_pb2.Series(name="\x1b]0;title\x07 " + "a" * 200)
    series.points.add(step=0, steps=1, mean=1.0, last=2.5)
    title = curve_lines(series, 80, 5)[0]
    assert title.isprintable() and len(title) <= 80 and title.endswith(": 2.5 at the last of 1 steps")


def test_tasks_that_are_not_listed_are_counted() -> None:
    detail = JobNews("train", running_job())
    task = shard_pb2.TaskInfo(index=3, worker_id="w1")
    detail.take_progress([shard_pb2.Progress(dataset="train", doing=8, holders=[task])], 0.0)
    text = picture(View(page="job", job="train", tab="tasks"), News(detail=detail), 80, 24, 0.0).text
    assert "and 7 more that are reported or not listed" in text


def test_a_reason_with_brackets_in_the_list_of_jobs(master: FakeMaster) -> None:
    master.jobs["train"].reason = "KeyError: [/x] [red]a[/red]"
    jobs = Terminal("jobs", "--master", master.address, columns=160)
    try:
        jobs.until("KeyError: [/x] [red]a[/red]")
        assert jobs.wait() == 0
    finally:
        jobs.close()


def test_a_terminal_that_cannot_place_text_is_told_of_what_does(start: Callable[..., Terminal]) -> None:
    top = start(env={"TERM": "dumb"})
    top.until("progress --watch")
    assert top.wait() == 2


def test_letters_that_the_terminal_has_not(start: Callable[..., Terminal]) -> None:
    top = start("train", env={"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"})
    top.until("step 12/30", "w0")
    assert top.selected_row() is not None, "what is selected is to be seen without colours too"
    top.press("c")
    top.until("loss: 0.166667")
    top.press("q")
    assert top.wait() == 0


def test_sigterm_restores_the_terminal(start: Callable[..., Terminal]) -> None:
    top = start("train")
    top.until("step 12/30")
    top.process.send_signal(signal.SIGTERM)
    assert top.wait() == 128 + signal.SIGTERM
    assert termios.tcgetattr(top.theirs) == top.before
    assert top.raw.endswith(b"\x1b[?1049l")


def test_ctrl_z_gives_the_shell_its_terminal_and_fg_takes_it_again(master: FakeMaster) -> None:
    shell = Terminal(program=["bash", "--norc", "--noprofile", "-i"], env={"PS1": "prompt> "})
    try:
        shell.until("prompt>")
        shell.press(shlex.join([*ELASTANE, "top", "train", "--master", master.address]) + "\n")
        shell.until("step 12/30", "leave")
        seen = len(shell.raw)
        shell.press("\x1a")
        shell.until("Stopped")
        assert b"\x1b[?1049l" in shell.raw[seen:] and b"\x1b[?25h" in shell.raw[seen:]
        assert b"\x1b[?1000l" in shell.raw[seen:], "the shell has the mouse, too"
        seen = len(shell.raw)
        shell.press("fg\n")
        master.change("train", step=13)
        shell.until("step 13/30", "leave")
        assert b"\x1b[?1049h" in shell.raw[seen:] and b"\x1b[?1000h" in shell.raw[seen:]
        shell.press("q")
        shell.until("(wanted: 1:4)")
        shell.press("exit 7\n")
        assert shell.wait() == 7
    finally:
        shell.close()


def test_a_master_that_goes_away_and_comes_back() -> None:
    fake = FakeMaster()
    with serving(fake) as address:
        top = Terminal("top", "--master", address, "--interval", "0.05", "--timeout", "0.5")
        try:
            top.until("step 12/30")
        except BaseException:
            top.close()
            raise
    try:
        top.until("no news: ", "step 12/30")
        fake.change("train", step=14, phase=job_pb2.JOB_PHASE_SUCCEEDED)
        with serving(fake, address):
            top.until("step 14/30", "succeeded", gone="no news")
        # A page that is opened while nobody answers waits as well.
        top.until("no news: ")
        top.press("\x1b")
        top.until("waiting ...", "no news: ")
        with serving(fake, address):
            top.until("1 job", "14/30", gone="no news")
            top.press("q")
            assert top.wait() == 0
    finally:
        top.close()
