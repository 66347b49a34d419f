"""The pane at the right of wide terminals: what is selected, the loss, and the latest events. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from rich.text import Text

from elastane_cli.screen.durations import brief
from elastane_cli.screen.news import JobNews, News
from elastane_cli.screen.tables import PHASE_STYLES, STATE_STYLES, moment_of, state_word
from elastane_cli.screen.view import Row, View
from elastane_cli.views.curves import curve_lines
from elastane_cli.views.events import folded_event, is_alarming, reason_beside_worker
from elastane_cli.views.jobs import ests_text
from elastane_cli.views.text import counted, local_time, one_line
from elastane_common.job_words import phase_words, progress_words, working
from elastane_common.sizes import size_text
from elastane_proto.folding import folded
from elastane_proto.short_names import short
from elastane_proto.v1 import job_pb2, metric_pb2, ring_pb2

WIDE_COLUMNS = 110
"""Narrower terminals have no pane."""
_MAIN_COLUMNS = 80
_PANE_COLUMNS_MIN, _PANE_COLUMNS_MAX = 34, 60
_LABEL_CHARACTERS = 11
_REASON_LINES_MAX = 4
_CURVE_LINES_MIN, _CURVE_LINES_MAX = 4, 12
_EVENT_LINES_MIN = 2
_EVENTS_READ_MAX = 200
_CLOCK_CHARACTERS = 8
_BAR_CHARACTERS = 10
_VALUE_CHARACTERS = 14
_BARS = "▁▂▃▄▅▆▇█"


def pane_columns(columns: int) -> int:
    """Return the width of the pane in a terminal of a width; 0: none."""
    if columns < WIDE_COLUMNS:
        return 0
    return min(max(columns - _MAIN_COLUMNS, _PANE_COLUMNS_MIN), _PANE_COLUMNS_MAX)


def pane_lines(view: View, news: News, selected: Row | None, columns: int, lines: int) -> list[Text]:
    """Return at most `lines` lines of `columns` characters.

    selected: the row of the page that is selected. What the page itself shows is left out of its pane.
    """
    if view.page == "jobs":
        shown = next(
            (job for job in news.jobs or () if selected is not None and job.name == selected.id), None
        )
        return _fitted([_job(shown, columns)] if shown is not None else [], columns, lines)
    detail = news.detail
    if detail is None or detail.job is None:
        return []
    sections = []
    worker = view.worker_of([selected] if selected is not None else [])
    if view.tab == "events" and view.page == "job" and selected is not None:
        sections.append(_event(detail, selected, columns))
    elif worker:
        sections.append(_worker(detail, detail.job, worker, columns))
    else:
        sections.append(_job(detail.job, columns))
    left = lines - sum(len(section) + 1 for section in sections)
    has_events = view.page != "job" or view.tab != "events"
    has_curve = view.page != "job" or view.tab != "curves"
    loss = _loss(detail.series)
    if has_curve and loss is not None:
        most = max(left // 2, _CURVE_LINES_MIN) if has_events else left
        if left >= _CURVE_LINES_MIN + (_EVENT_LINES_MIN + 1 if has_events else 0):
            sections.append(_curve(loss, columns, min(most, _CURVE_LINES_MAX)))
            left -= len(sections[-1]) + 1
    if has_events and left > 1:
        sections.append(_events(detail, columns, left))
    return _fitted(sections, columns, lines)


def _fitted(sections: Sequence[list[Text]], columns: int, lines: int) -> list[Text]:
    """Return the sections with an empty line between two, cut to the size."""
    result: list[Text] = []
    for section in sections:
        result += [Text(""), *section] if result else section
    result = [one_line(line) for line in result[:lines]]
    for line in result:
        line.truncate(columns, overflow="ellipsis")
    return result


def _fact(label: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{label:<{_LABEL_CHARACTERS}} ", "dim"), (value, style))


def _wrapped(text: str, columns: int, style: str = "") -> list[Text]:
    """Return a text on as many lines as it may have; the last one ends in an ellipsis if there is more."""
    words = " ".join(text.split())
    result: list[Text] = []
    rest = one_line(Text(words, style))
    while rest.plain and len(result) < _REASON_LINES_MAX:
        if len(result) == _REASON_LINES_MAX - 1:
            rest.truncate(columns, overflow="ellipsis")
            return [*result, rest]
        fits = rest.copy()
        fits.truncate(columns, overflow="crop")
        at = len(fits.plain)
        if at < len(rest.plain) and not rest.plain[at].isspace():
            at = fits.plain.rfind(" ") if " " in fits.plain else at
        line, rest = rest.divide([at])
        result.append(line)
        rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
    return result


def _job(job: job_pb2.Job, columns: int) -> list[Text]:
    phase = phase_words(job)
    settings = job.settings
    limits = f"{settings.workers_min}:{settings.workers_max}"
    lines = [
        Text.assemble((job.name, "bold"), "  ", (phase, PHASE_STYLES.get(phase, ""))),
        *_wrapped(job.reason, columns),
        _fact("progress", progress_words(job)),
    ]
    if job.epochs:
        lines.append(_fact("epoch", f"{min(job.epoch + 1, job.epochs)}/{job.epochs}"))
    lines.append(_fact("workers", f"{working(job)} (wanted: {limits})"))
    lines.append(_fact("ESTs", str(settings.ests)))
    if settings.scaling:
        lines += [_fact("scales by", settings.scaling)]
    lines.append(_fact("generation", str(job.generation)))
    lines.append(_fact("saved", f"step {job.saved_step}" if job.saved_step >= 0 else "never"))
    if job.HasField("created"):
        lines.append(_fact("created", local_time(job.created.seconds)[:-4]))
    return lines


def _worker(detail: JobNews, job: job_pb2.Job, name: str, columns: int) -> list[Text]:
    worker = next((one for one in job.workers if one.worker_id == name), None)
    if worker is None:
        return [Text.assemble((name, "bold"), "  ", ("gone", "red"))]
    state = state_word(worker)
    hosts = worker.ests.end > worker.ests.start
    place = f"  ESTs {ests_text(worker.ests.start, worker.ests.end)}" if hosts else ""
    lines = [
        Text.assemble((name, "bold"), "  ", (state, STATE_STYLES.get(state, "")), place),
        *_wrapped(worker.reason, columns),
        _fact("on", f"{worker.host}, pid {worker.pid}"),
    ]
    if samples := detail.resources.get(name):
        lines += _resources(samples)
    figures = detail.figures.get(name)
    return [*lines, *_figures(figures)] if figures is not None else lines


def _resources(samples: Sequence[ring_pb2.ResourceSample]) -> list[Text]:
    """Return what the worker uses of its machine, and beside it what it used over the last samples."""
    last, latest = samples[-1], samples[-_BAR_CHARACTERS:]
    cores = [sample.cpu_cores for sample in latest]
    memory = [float(sample.resident_bytes) for sample in latest]
    lines = [
        _over_time("cpu", f"{last.cpu_cores:.1f} cores", cores),
        _over_time("memory", size_text(last.resident_bytes), memory),
    ]
    if last.gpu_bytes:
        use = [sample.gpu_use for sample in latest]
        lines.append(_over_time("gpu", f"{last.gpu_use:.0%}, {size_text(last.gpu_bytes)}", use))
    return lines


def _over_time(label: str, value: str, values: Sequence[float]) -> Text:
    """Return a fact with its latest values as bars, the highest of them full."""
    most = max(values)
    bars = [_BARS[round(one / most * (len(_BARS) - 1))] if most > 0 else _BARS[0] for one in values]
    return _fact(label, f"{value:<{_VALUE_CHARACTERS}} ").append("".join(bars), "cyan")


def _figures(figures: ring_pb2.WorkerFigures) -> list[Text]:
    """Return what the worker measured: its device, its steps, and what they waited for."""
    lines = [_fact("device", figures.device_type)] if figures.device_type else []
    if figures.ring_steps:
        lines.append(
            _fact("step", f"{brief(figures.ring_step_seconds)}, one EST {brief(figures.est_seconds)}")
        )
    if figures.usual_steps:
        for label, seconds in (
            ("data wait", figures.usual_data_wait_seconds),
            ("reduce wait", figures.usual_all_reduce_wait_seconds),
            ("script code", figures.usual_after_seconds),
        ):
            lines.append(_share(label, seconds, figures.ring_step_seconds))
    if figures.steps_replayed:
        lines.append(
            _fact("replayed", f"{counted(figures.steps_replayed, 'step')}, {brief(figures.replay_seconds)}")
        )
    return lines


def _share(label: str, seconds: float, step_seconds: float) -> Text:
    """Return a fact with its share of the step's time, as a number and as a bar."""
    line = _fact(label, f"{brief(seconds):>7}")
    if step_seconds > 0:
        share = min(seconds / step_seconds, 1.0)
        full = round(share * _BAR_CHARACTERS)
        line.append(f"  {100 * share:3.0f} % ")
        line.append("■" * full, "yellow")
        line.append("·" * (_BAR_CHARACTERS - full), "dim")
    return line


def _loss(series: Sequence[metric_pb2.Series]) -> metric_pb2.Series | None:
    """Return the series to draw: the first whose name has "loss", else the first."""
    drawn = [one for one in series if one.points]
    return next((one for one in drawn if "loss" in one.name.casefold()), drawn[0] if drawn else None)


def _curve(series: metric_pb2.Series, columns: int, lines: int) -> list[Text]:
    """Return the curve under a title that is short enough for the pane."""
    value = f": {series.points[-1].last:.6g}"
    title = Text(short(series.name, max(columns - len(value), _LABEL_CHARACTERS)) + value, "bold")
    return [title, *(Text(line, "cyan") for line in curve_lines(series, columns, lines)[1:])]


def _events(detail: JobNews, columns: int, lines: int) -> list[Text]:
    """Return the latest events, the newest last, each on one line."""
    latest = list(islice(reversed(detail.events), _EVENTS_READ_MAX))[::-1]
    runs = list(folded(latest, lambda event: event.kind))[-(lines - 1) :]
    result = [Text("latest events", "bold")]
    for event in map(folded_event, runs):
        clock = local_time(moment_of(event)).rpartition(" ")[2][:_CLOCK_CHARACTERS]
        kind = (event.kind, "bold red" if is_alarming(event) else "bold")
        worker = (f" {event.worker_id}" if event.worker_id else "", "green")
        result.append(Text.assemble((clock, "cyan"), " ", kind, worker, f" {reason_beside_worker(event)}"))
    return result if runs else []


def _event(detail: JobNews, selected: Row, columns: int) -> list[Text]:
    """Return the whole of the selected event."""
    event = next((one for one in detail.events if str(one.sequence) == selected.id), None)
    if event is None:
        return []
    worker = [_fact("worker", event.worker_id, "green")] if event.worker_id else []
    return [
        Text(event.kind, "bold red" if is_alarming(event) else "bold"),
        *_wrapped(event.reason, columns),
        _fact("time", local_time(moment_of(event)), "cyan"),
        _fact("step", f"{event.step}, generation {event.generation}"),
        *worker,
    ]
