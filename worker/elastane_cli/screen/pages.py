"""Renders the pages of `elastane top` as lines of text that fit the terminal. Pure.

A page has a head, a body of which a window around the selected row is shown, and two lines at the
foot: the selected row's full text, and the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.text import Text

from elastane_cli.explain import explain
from elastane_cli.screen.news import JobNews, News, held_key
from elastane_cli.screen.view import TABS, Row, View
from elastane_cli.views.curves import curve_lines
from elastane_cli.views.events import fold_line, is_wanted
from elastane_cli.views.explanation import explanation_lines
from elastane_cli.views.jobs import ests_text
from elastane_cli.views.progress import duration_text
from elastane_cli.views.slots import status_lines
from elastane_cli.views.text import counted, one_line
from elastane_common.job_words import phase_words, progress_words, working
from elastane_proto.folding import folded
from elastane_proto.message_codec import enum_word
from elastane_proto.short_names import short, short_names
from elastane_proto.v1 import job_pb2

PHASE_STYLES = {"waiting": "yellow", "running": "green", "doing tasks": "green", "tasks done": "bold green",
                "suspended": "yellow", "succeeded": "bold green",
                "failed": "bold red", "cancelled": "red"}  # fmt: skip
STATE_STYLES = {"member": "green", "standby": "cyan", "draining": "yellow", "awaited": "yellow"}
HELP = (
    "up down, j k        select            page up, page down, home, end",
    "enter, right        open the job or worker (of an event, EST, task) selected",
    "escape, left        back",
    "tab, w e t v c      workers, ESTs, tasks and who holds them, events, curves",
    "a                   of the events: every checkpoint, or those in a row as one",
    "q, Ctrl-C           leave             ?  this page",
)
CURVE_ROWS = 10


@dataclass
class Body:
    """Selectable rows of a page. columns: header line. lines, details: line and full text of each row."""

    columns: str = ""
    rows: list[Row] = field(default_factory=list)
    lines: list[Text] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    #: Shown instead of rows where there are none.
    empty: str = ""
    #: Highlight the selected row; else the selection only moves the window.
    marks: bool = True

    def add(self, row: Row, line: Text | str, detail: str = "") -> None:
        self.rows.append(row)
        self.lines.append(line if isinstance(line, Text) else Text(line))
        self.details.append(detail)


def rows_of(view: View, news: News, now: float) -> list[Row]:
    """Return the selectable rows of the page. now: seconds since the Unix epoch."""
    return _body(view, news, 80, now).rows


def picture(view: View, news: News, columns: int, rows: int, now: float) -> list[Text]:
    """Render the whole screen: exactly `rows` lines of at most `columns` characters.

    now: seconds since the Unix epoch.
    """
    head = _head(view, news, columns, now)
    body = _body(view, news, columns, now)
    keys = Text(_keys(view), style="dim")
    foot = [Text(news.trouble, style="bold red"), keys] if news.trouble else [Text(""), keys]
    room = max(rows - len(head) - len(foot) - (1 if body.columns else 0), 0)
    shown: list[Text] = []
    if view.help:
        shown = [Text(line) for line in HELP]
    elif not body.rows:
        shown = [Text(body.empty, style="dim")]
    else:
        at = view.position(body.rows)
        first = max(0, min(at - room // 2, len(body.rows) - room))
        for number in range(first, min(first + room, len(body.rows))):
            line = body.lines[number]
            if number == at and body.marks:
                # Drop the line's own colours: reversed, they would become coloured blocks.
                line = one_line(Text(line.plain, style="reverse"))
                line.pad_right(max(0, columns - line.cell_len))
            shown.append(line)
        if not news.trouble and body.details[at]:
            foot[0] = Text(body.details[at])
    if body.columns and not view.help:
        head.append(Text(body.columns, style="bold"))
    else:
        room += 1 if body.columns else 0
    shown = shown[:room]
    shown += [Text("")] * (room - len(shown))
    lines = [*head, *shown, *foot][:rows]
    lines = [one_line(line) for line in lines]
    for line in lines:
        line.truncate(columns, overflow="ellipsis")
        line.no_wrap = True
    return lines


def _head(view: View, news: News, columns: int, now: float) -> list[Text]:
    """Return the lines above the body: the job with its phase, its progress, and the tabs."""
    if view.page == "jobs":
        count = "" if news.jobs is None else f"  {counted(len(news.jobs), 'job')}"
        return [Text.assemble(("elastane", "bold"), count), Text("")]
    detail = news.detail
    job = detail.job if detail is not None else None
    if detail is None or job is None:
        return [Text(view.job, style="bold"), Text("")]
    phase = phase_words(job)
    total = job.steps_per_epoch * job.epochs
    first = Text.assemble((job.name, "bold"), "  ", (phase, PHASE_STYLES.get(phase, "")))
    if job.reason:
        first.append(f": {job.reason}")
    parts = [progress_words(job)]
    if job.epochs:
        parts.append(f"epoch {min(job.epoch + 1, job.epochs)}/{job.epochs}")
    parts += [
        f"generation {job.generation}",
        f"{counted(job.settings.ests, 'EST')} on {counted(working(job), 'worker')}",
    ]
    if job.saved_step >= 0:
        parts.append(f"saved {job.saved_step}")
    third = Text("")
    train = next((item for item in detail.datasets if item.dataset == "train"), None)
    if total:
        tail = ""
        if train is not None and not train.complete:
            tail = f"  {train.samples_per_second:,.1f} samples/s  left {duration_text(train)}"
        width = max(10, columns - len(tail) - 8)
        done = round(width * min(job.step / total, 1.0))
        third = Text.assemble(
            ("━" * done, "green"), ("━" * (width - done), "dim"), f" {100 * job.step / total:5.1f} %", tail
        )
    head = [first, Text("  ".join(parts)), third]
    if view.page == "worker":
        return [*head, Text("")]
    tabs = Text()
    for tab in TABS:
        label = {"workers": "Workers", "ests": "ESTs", "tasks": "Tasks", "events": "eVents"}.get(
            tab, "Curves"
        )
        tabs.append(f" {label} ", style="reverse" if tab == view.tab else "")
        tabs.append(" ")
    return [*head, tabs]


def _body(view: View, news: News, columns: int, now: float) -> Body:
    if view.page == "jobs":
        return _jobs(news)
    detail = news.detail
    if detail is None or detail.job is None:
        return Body(empty="waiting for the master ...")
    if view.page == "worker":
        return _worker(view.worker, detail)
    if view.tab == "workers":
        return _workers(detail.job, now)
    if view.tab == "ests":
        return _ests(detail, now)
    if view.tab == "tasks":
        return _tasks(detail, now)
    if view.tab == "events":
        return _events(detail, view)
    return _curves(detail, columns)


def _jobs(news: News) -> Body:
    body = Body(f"{'JOB':<24} {'PHASE':<11} {'PROGRESS':>18} {'WORKERS':>7} {'ESTS':>5}  REASON")
    body.empty = "no jobs: start one with `elastane run`" if news.jobs is not None else "waiting ..."
    for job in news.jobs or ():
        phase = phase_words(job)
        line = Text.assemble(
            f"{short(job.name, 24):<24} ",
            (f"{phase:<11}", PHASE_STYLES.get(phase, "")),
            f" {progress_words(job):>18} {working(job):>7} {job.settings.ests:>5}  {job.reason}",
        )
        body.add(Row(job.name, job.name), line, job.reason)
    return body


def _workers(job: job_pb2.Job, now: float) -> Body:
    body = Body(f"{'WORKER':<24} {'STATE':<10} {'ESTS':<9} {'APPLIED':>7} {'HEARD':>7}  REASON")
    body.empty = "no workers"
    names = short_names([worker.worker_id for worker in job.workers], 24)
    for worker in job.workers:
        state = enum_word(job_pb2.WorkerState.DESCRIPTOR, worker.state)
        heard = "-"
        if worker.HasField("last_heard"):
            heard = age(now - worker.last_heard.seconds - worker.last_heard.nanos / 1e9)
        line = Text.assemble(
            f"{names[worker.worker_id]:<24} ",
            (f"{state:<10}", STATE_STYLES.get(state, "")),
            f" {ests_text(worker.ests.start, worker.ests.end):<9} {worker.applied_step:>7} {heard:>7}"
            f"  {worker.reason}",
        )
        where = f"{worker.worker_id} on {worker.host} pid {worker.pid}: {worker.reason}"
        body.add(Row(worker.worker_id, worker.worker_id), line, where)
    return body


def _ests(detail: JobNews, now: float) -> Body:
    body = Body(f"{'EST':>5}  {'WORKER':<28} {'DOES STEP':>10} {'FOR':>7}  STATE")
    assert detail.job is not None
    held: dict[str, list[tuple[int, float]]] = {}
    for item in detail.datasets:
        if item.dataset == "train":
            for task in item.holders:
                since = detail.held_since.get(held_key(item.dataset, task), now)
                held.setdefault(task.worker_id, []).append((task.index, since))
    hosts = {
        rank: worker for worker in detail.job.workers for rank in range(worker.ests.start, worker.ests.end)
    }
    names = short_names([worker.worker_id for worker in detail.job.workers], 28)
    for rank in range(detail.job.settings.ests):
        worker = hosts.get(rank)
        if worker is None:
            body.add(Row(str(rank)), Text(f"{rank:>5}  nobody", style="yellow"), "no worker hosts it now")
            continue
        state = enum_word(job_pb2.WorkerState.DESCRIPTOR, worker.state)
        longest = min(held.get(worker.worker_id, []), key=lambda one: one[1], default=None)
        does, waits = (str(longest[0]), age(now - longest[1])) if longest is not None else ("-", "-")
        line = f"{rank:>5}  {names[worker.worker_id]:<28} {does:>10} {waits:>7}  {state}"
        body.add(Row(str(rank), worker.worker_id), line, worker.reason)
    return body


def _tasks(detail: JobNews, now: float) -> Body:
    body = Body(f"{'DATASET':<16} {'TASK':>9} {'ATT':>3}  {'POSITIONS':<19} {'HELD':>7} {'LEFT':>7}  BY")
    body.empty = "no dataset yet"
    for number, text in enumerate(status_lines(detail.slots) if detail.slots is not None else ()):
        body.add(Row(f"slots {number}"), Text(text, style="cyan"), text)
    for item in detail.datasets:
        counts = f"todo {item.todo}  doing {item.doing}  done {item.done}/{item.total}"
        counts += f"  failed {item.failed}" if item.failed else ""
        counts += f"  re-queued {item.requeued}  timed out {item.timed_out}"
        style = "bold red" if item.failed else "bold"
        body.add(Row(item.dataset), Text(f"{short(item.dataset, 16):<16} {counts}", style=style), counts)
        for task in item.holders:
            key = held_key(item.dataset, task)
            deadline = task.deadline.seconds + task.deadline.nanos / 1e9
            left = age(deadline - now) if task.HasField("deadline") else "-"
            held = age(now - detail.held_since.get(key, now))
            positions = f"{task.range.start}-{task.range.end - 1}"
            line = f"{'':<16} {task.index:>9} {task.attempt:>3}  {positions:<19} {held:>7} {left:>7}"
            errors = "; ".join(error.error for error in task.errors)
            body.add(
                Row(repr(key), task.worker_id), f"{line}  {task.worker_id}", errors or f"by {task.worker_id}"
            )
        if (more := item.doing - len(item.holders)) > 0:
            text = f"{'':<16} and {more} more that are reported or not listed"
            body.add(Row(f"{item.dataset} more"), Text(text, style="dim"))
    return body


def _events(detail: JobNews, view: View) -> Body:
    body = Body(empty="no events yet" if not detail.events else "none of the events is wanted")
    result = [event for event in detail.events if is_wanted(event, view.wanted)]
    one_by_one = view.unfolded or view.wanted.kinds
    for run in ((event,) for event in result) if one_by_one else folded(result, lambda event: event.kind):
        # Identified by its first event, so that a growing run keeps its place.
        body.add(Row(str(run[0].sequence), run[-1].worker_id), fold_line(run), run[-1].reason)
    return body


def _curves(detail: JobNews, columns: int) -> Body:
    body = Body(empty="nothing logged: scripts log with job.log(name=value)", marks=False)
    for series in detail.series:
        for number, line in enumerate(curve_lines(series, columns, CURVE_ROWS)):
            style = "bold" if number == 0 else "cyan"
            body.add(Row(f"{series.name}/{number}"), Text(line, style=style))
    return body


def _worker(name: str, detail: JobNews) -> Body:
    assert detail.job is not None
    result = explain(name, detail.job, list(detail.events))
    body = Body(empty=f"{name}: not known (any more)")
    if result is not None:
        for number, line in enumerate(explanation_lines(result)):
            assert isinstance(line, Text)
            reason = result.chain[number - 1].reason if 0 < number <= len(result.chain) else result.sentence
            body.add(Row(str(number)), line, reason)
    return body


def _keys(view: View) -> str:
    if view.page == "jobs":
        return "enter: open   ?: keys   q: leave"
    if view.page == "worker":
        return "escape: back   ?: keys   q: leave"
    back = "" if view.pinned else "escape: back   "
    return f"tab: next page   enter: open a worker   {back}?: keys   q: leave"


def age(seconds: float) -> str:
    """Format a duration: "0.4s", "12s", "3m10s", "2h05m", "4d"; negative ones as 0."""
    seconds = max(seconds, 0.0)
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, whole = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{whole:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d"


def plain(lines: Sequence[Text]) -> str:
    """Return the lines as plain text without styles."""
    return "\n".join(line.plain for line in lines)
