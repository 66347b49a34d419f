"""Renders the pages of `elastane top` as lines of text that fit the terminal. Pure.

A page has a head, a body of which a window around the selected row is shown, beside it on wide terminals a
pane (`side`), and two lines at the foot: an answer or the selected row's full text, and the keys. A question
has as many lines as it needs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from elastane_cli.screen.actions import question_words
from elastane_cli.screen.body import Body, arranged
from elastane_cli.screen.columns import TABLES, Placed, cells_line, fit, header
from elastane_cli.screen.help import BINDINGS
from elastane_cli.screen.news import News
from elastane_cli.screen.side import pane_columns, pane_lines
from elastane_cli.screen.tables import PHASE_STYLES, body_of
from elastane_cli.screen.view import TABS, Area, Layout, View
from elastane_cli.views.progress import duration_text
from elastane_cli.views.text import counted, one_line
from elastane_common.job_words import phase_words, progress_words, working
from elastane_proto.v1 import job_pb2

_TAB_LABELS = {"workers": "Workers", "ests": "ESTs", "tasks": "Tasks", "events": "eVents", "curves": "Curves"}
_BAR_COLUMNS_MIN = 10
_KEYS_CHARACTERS = 20


@dataclass(frozen=True, slots=True)
class Picture:
    """The whole screen, and what stands where on it."""

    lines: list[Text]
    layout: Layout

    @property
    def text(self) -> str:
        """The lines without styles."""
        return "\n".join(line.plain for line in self.lines)


def picture(view: View, news: News, columns: int, rows: int, now: float) -> Picture:
    """Render the whole screen: exactly `rows` lines of at most `columns` characters.

    now: seconds since the Unix epoch.
    """
    side_columns = pane_columns(columns)
    main_columns = columns - side_columns - (1 if side_columns else 0)
    body = arranged(body_of(view, news, main_columns, now), view)
    tabs = _tabs(view)
    head = [] if view.help else [*_head(view, news, columns), _under_head(view, tabs, body)]
    placed = fit(TABLES[body.table], main_columns, body.longest) if body.table and body.entries else ()
    question = _question(view, news, columns)
    foot_lines = len(question) or 2
    room = max(rows - len(head) - foot_lines - (1 if placed else 0), 0)
    layout = _layout(view, body, placed, room, len(head), main_columns, tabs)
    at = view.position(layout.rows)
    if view.help:
        main = [
            Text("keys of elastane top", "bold"),
            *(_binding_line(one.shown, one.words) for one in BINDINGS),
        ]
    else:
        main = [header(placed, view.order)] if placed else []
        main += _window(body, placed, layout, at, main_columns)
    space = max(rows - len(head) - foot_lines, 0)
    if side_columns and not view.help:
        selected = layout.rows[at] if layout.rows else None
        side = pane_lines(view, news, selected, side_columns - 2, space)
        main = _beside(main, side, main_columns, space)
    main = main[:space] + [Text("")] * (space - len(main))
    full_text = body.entries[at].detail if body.entries and not view.help else ""
    foot = question or _foot(view, news, full_text, columns)
    lines = [one_line(line) for line in [*head, *main, *foot][:rows]]
    for line in lines:
        line.truncate(columns, overflow="ellipsis")
        line.no_wrap = True
    return Picture(lines, layout)


# ---------------------------------------------------------------- head and foot


def _head(view: View, news: News, columns: int) -> list[Text]:
    """Return the lines above the tabs: the job with its phase, its progress."""
    if view.page == "jobs":
        count = "" if news.jobs is None else f"  {counted(len(news.jobs), 'job')}"
        return [Text.assemble(("elastane", "bold"), count)]
    detail = news.detail
    job = detail.job if detail is not None else None
    if detail is None or job is None:
        return [Text(view.job, style="bold")]
    phase = phase_words(job)
    first = Text.assemble((job.name, "bold"), "  ", (phase, PHASE_STYLES.get(phase, "")))
    if job.reason:
        first.append(f": {job.reason}")
    train = next((item for item in detail.datasets if item.dataset == "train"), None)
    tail = ""
    if train is not None and not train.complete:
        tail = f"  {train.samples_per_second:,.1f} samples/s  left {duration_text(train)}"
    return [first, Text(_job_words(job, columns)), _progress_bar(job, tail, columns)]


def _job_words(job: job_pb2.Job, columns: int) -> str:
    """Return how far the job is and what it runs on; narrow screens lose the last of `worth` first."""
    parts = {
        "progress": progress_words(job),
        "epoch": f"epoch {min(job.epoch + 1, job.epochs)}/{job.epochs}" if job.epochs else "",
        "generation": f"generation {job.generation}",
        "workers": f"{counted(job.settings.ests, 'EST')} on {counted(working(job), 'worker')}",
        "saved": f"saved {job.saved_step}" if job.saved_step >= 0 else "",
    }
    return _fitting(parts, ("progress", "workers", "epoch", "saved", "generation"), "  ", columns)


def _progress_bar(job: job_pb2.Job, tail: str, columns: int) -> Text:
    total = job.steps_per_epoch * job.epochs
    if not total:
        return Text("")
    width = max(_BAR_COLUMNS_MIN, columns - len(tail) - len(" 100.0 %"))
    done = round(width * min(job.step / total, 1.0))
    percent = f" {100 * job.step / total:5.1f} %"
    return Text.assemble(("━" * done, "green"), ("━" * (width - done), "dim"), percent, tail)


def _tabs(view: View) -> tuple[Area, ...]:
    """Return where the tabs stand in their line."""
    if view.page != "job":
        return ()
    areas, start = [], 0
    for tab in TABS:
        end = start + len(_TAB_LABELS[tab]) + 2
        areas.append(Area(start, end, tab))
        start = end + 1
    return tuple(areas)


def _under_head(view: View, tabs: Sequence[Area], body: Body) -> Text:
    """Return the line with the tabs and, if rows are filtered, by what."""
    line = Text()
    for area in tabs:
        line.pad_right(area.start - line.cell_len)
        line.append(f" {_TAB_LABELS[area.name]} ", style="reverse" if area.name == view.tab else "")
    if view.filter:
        found = sum(not entry.head for entry in body.entries)
        line.append(("  " if tabs else "") + f"/{view.filter}: {counted(found, 'row')}", style="yellow")
    return line


def _question(view: View, news: News, columns: int) -> list[Text]:
    """Return the lines of the open question, with its keys or the reason why its answer was refused."""
    if view.question is None:
        return []
    words = _wrapped(question_words(view.question, _limits(view.question.job, news)), columns, "bold yellow")
    if view.question.fault:
        return [*words, *_wrapped(view.question.fault, columns, "bold red")]
    typed = view.question.about in ("filter", "scale")
    keys = "enter: done   escape: give up" if typed else "y: yes   any other key: no"
    return [*words, *_wrapped(keys, columns, "dim")]


def _foot(view: View, news: News, full_text: str, columns: int) -> list[Text]:
    hints = Text(_keys(view, columns), style="dim")
    if view.notice is not None:
        return [Text(view.notice.text, "bold red" if view.notice.fault else "bold green"), hints]
    if news.trouble:
        return [Text(news.trouble, style="bold red"), hints]
    return [Text(full_text), hints]


def _wrapped(words: str, columns: int, style: str) -> list[Text]:
    """Return the words on as many lines as they need: a question must be visible as a whole."""
    return [Text(line, style) for line in textwrap.wrap(words, columns) or [""]]


def _limits(job: str, news: News) -> str:
    """Return the limits of a job's workers, "1:4"; empty if they are not known."""
    known = [*(news.jobs or ()), *([news.detail.job] if news.detail is not None and news.detail.job else [])]
    found = next((one.settings for one in reversed(known) if one.name == job), None)
    return f"{found.workers_min}:{found.workers_max}" if found is not None else ""


def _keys(view: View, columns: int) -> str:
    can_go_back = view.page == "worker" or (view.page == "job" and not view.pinned)
    parts = {
        "tab": "tab: next page" if view.page == "job" else "",
        "open": "enter: open" if view.page != "worker" else "",
        "filter": "/: filter",
        "sort": "o: sort" if view.page != "worker" else "",
        "act": "d s p: drain, scale, save",
        "back": "escape: back" if can_go_back else "",
        "help": "?: keys",
        "leave": "q: leave",
    }
    return _fitting(parts, ("help", "leave", "back", "open", "tab", "filter", "act", "sort"), "   ", columns)


def _fitting(parts: dict[str, str], worth: Sequence[str], gap: str, columns: int) -> str:
    """Join the parts that are not empty; while they are too long, that of least worth is left out."""
    kept = {name: text for name, text in parts.items() if text}
    for least in reversed(worth):
        if len(gap.join(kept.values())) <= columns or len(kept) == 1:
            break
        kept.pop(least, None)
    return gap.join(kept.values())


def _binding_line(shown: str, words: str) -> Text:
    return Text.assemble((f"{shown:<{_KEYS_CHARACTERS}}", "bold"), words)


# ---------------------------------------------------------------- body


def _layout(
    view: View,
    body: Body,
    placed: Sequence[Placed],
    room: int,
    head: int,
    columns: int,
    tabs: tuple[Area, ...],
) -> Layout:
    """Return what stands where. The window moves no further than the selected row needs."""
    rows = [entry.row for entry in body.entries]
    at = view.position(rows)
    first = max(min(view.first, at), at - room + 1) if body.marks else at
    return Layout(
        rows=rows,
        first=max(0, min(first, len(rows) - room)),
        room=room,
        top=head + (1 if placed else 0),
        columns=columns,
        marks=body.marks,
        header=head if placed else -1,
        headers=tuple(Area(one.start, one.end, one.column.id) for one in placed),
        tabs_line=head - 1 if tabs else -1,
        tabs=tabs,
    )


def _window(body: Body, placed: Sequence[Placed], layout: Layout, at: int, columns: int) -> list[Text]:
    """Return the lines of the rows in the window."""
    if not body.entries:
        return [Text(body.empty, style="dim")]
    lines = []
    for number in range(layout.first, min(layout.first + layout.room, len(body.entries))):
        content = body.entries[number].content()
        line = content if isinstance(content, Text) else cells_line(placed, content)
        if number == at and body.marks:
            # Drop the line's own colours: reversed, they would become coloured blocks.
            line = one_line(Text(line.plain, style="reverse"))
            line.pad_right(max(0, columns - line.cell_len))
        lines.append(line)
    return lines


def _beside(main: Sequence[Text], side: Sequence[Text], columns: int, lines: int) -> list[Text]:
    """Return lines with the pane at the right of the page."""
    result = []
    for number in range(lines):
        # Appended to a new line, so that the style of the whole row ends with the page.
        line = Text().append_text(one_line(main[number])) if number < len(main) else Text("")
        line.truncate(columns, overflow="ellipsis")
        line.pad_right(columns - line.cell_len)
        line.append(" │ ", "dim")
        if number < len(side):
            line.append_text(side[number])
        result.append(line)
    return result
