"""The rows of each page of `elastane top`, from what the master told. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from rich.text import Text

from elastane_cli.explain import explain
from elastane_cli.screen.body import Body, Cells, Entry
from elastane_cli.screen.durations import age, brief
from elastane_cli.screen.news import JobNews, News, held_key
from elastane_cli.screen.view import Row, View
from elastane_cli.views.curves import curve_lines
from elastane_cli.views.events import folded_event, is_alarming, is_wanted, reason_beside_worker
from elastane_cli.views.explanation import explanation_lines
from elastane_cli.views.jobs import ests_text
from elastane_cli.views.slots import status_lines
from elastane_cli.views.text import local_time
from elastane_common.job_words import phase_words, progress_words, working
from elastane_proto.event_filter import EVERYTHING
from elastane_proto.folding import folded
from elastane_proto.message_codec import enum_word
from elastane_proto.short_names import short, short_names
from elastane_proto.v1 import job_pb2, ring_pb2, shard_pb2

PHASE_STYLES = {"waiting": "yellow", "running": "green", "doing tasks": "green", "tasks done": "bold green",
                "suspended": "yellow", "succeeded": "bold green",
                "failed": "bold red", "cancelled": "red"}  # fmt: skip
STATE_STYLES = {"member": "green", "standby": "cyan", "draining": "yellow", "awaited": "yellow"}
CURVE_ROWS = 10
_WORKER_CHARACTERS = 24
_EST_WORKER_CHARACTERS = 28
_DATASET_CHARACTERS = 16


def body_of(view: View, news: News, columns: int, now: float) -> Body:
    """Return all rows of the view's page, in their own order.

    columns: width of curves. now: seconds since the Unix epoch.
    """
    if view.page == "jobs":
        return _jobs(news)
    detail = news.detail
    if detail is None or detail.job is None:
        return Body([], empty="waiting for the master ...")
    if view.page == "worker":
        return _worker(view.worker, detail)
    if view.tab == "workers":
        return _workers(detail, detail.job, now)
    if view.tab == "ests":
        return _ests(detail, detail.job, now)
    if view.tab == "tasks":
        return _tasks(detail, now)
    if view.tab == "events":
        return _events(detail, view)
    return _curves(detail, columns)


def state_word(worker: job_pb2.WorkerInfo) -> str:
    return enum_word(job_pb2.WorkerState.DESCRIPTOR, worker.state)


def heard_seconds(worker: job_pb2.WorkerInfo, now: float) -> float | None:
    """Return how long ago the master heard from a worker; None: never."""
    if not worker.HasField("last_heard"):
        return None
    return now - worker.last_heard.seconds - worker.last_heard.nanos / 1e9


def _jobs(news: News) -> Body:
    entries = []
    for job in news.jobs or ():
        phase, progress, workers = phase_words(job), progress_words(job), working(job)
        cells: Cells = {
            "job": short(job.name, 24),
            "phase": Text(phase, PHASE_STYLES.get(phase, "")),
            "progress": progress,
            "workers": str(workers),
            "ests": str(job.settings.ests),
            "reason": job.reason,
        }
        total = job.steps_per_epoch * job.epochs
        part = job.step / total if total else job.tasks.done / job.tasks.total if job.tasks.total else 0.0
        values: dict[str, float | str] = {
            "job": job.name,
            "phase": phase,
            "progress": part,
            "workers": workers,
            "ests": job.settings.ests,
            "reason": job.reason,
        }
        words = f"{job.name} {phase} {job.reason}"
        entries.append(Entry(Row(job.name, job.name), _known(cells), job.reason, words, values))
    longest = {"job": _longest(entry.row.id for entry in entries)}
    empty = "no jobs: start one with `elastane run`" if news.jobs is not None else "waiting ..."
    return Body(entries, "jobs", longest, empty)


def _workers(detail: JobNews, job: job_pb2.Job, now: float) -> Body:
    names = short_names([worker.worker_id for worker in job.workers], _WORKER_CHARACTERS)
    entries = []
    for worker in job.workers:
        state, heard = state_word(worker), heard_seconds(worker, now)
        figures = detail.figures.get(worker.worker_id)
        values: dict[str, float | str] = {
            "worker": worker.worker_id,
            "state": state,
            "ests": worker.ests.start if worker.ests.end > worker.ests.start else job.settings.ests,
            "applied": worker.applied_step,
            "reason": worker.reason,
        }
        if heard is not None:
            values["heard"] = heard
        if figures is not None and figures.ring_steps:
            values["step"] = figures.ring_step_seconds
        if figures is not None and figures.usual_steps:
            values["data_wait"] = figures.usual_data_wait_seconds
            values["reduce_wait"] = figures.usual_all_reduce_wait_seconds
        cells: Cells = {
            "worker": names[worker.worker_id],
            "state": Text(state, STATE_STYLES.get(state, "")),
            "ests": ests_text(worker.ests.start, worker.ests.end),
            "applied": str(worker.applied_step),
            "heard": age(heard) if heard is not None else "-",
            **{name: _brief(values.get(name)) for name in ("step", "data_wait", "reduce_wait")},
            "reason": worker.reason,
        }
        where = f"{worker.worker_id} on {worker.host} pid {worker.pid}: {worker.reason}"
        row = Row(worker.worker_id, worker.worker_id)
        entries.append(Entry(row, _known(cells), where, f"{state} {where}", values))
    return Body(entries, "workers", {"worker": _longest(names.values())}, "no workers")


def _ests(detail: JobNews, job: job_pb2.Job, now: float) -> Body:
    held: dict[str, list[tuple[int, float]]] = {}
    for item in detail.datasets:
        if item.dataset == "train":
            for task in item.holders:
                since = detail.held_since.get(held_key(item.dataset, task), now)
                held.setdefault(task.worker_id, []).append((task.index, since))
    hosts = {rank: worker for worker in job.workers for rank in range(worker.ests.start, worker.ests.end)}
    names = short_names([worker.worker_id for worker in job.workers], _EST_WORKER_CHARACTERS)
    entries = []
    for rank in range(job.settings.ests):
        worker = hosts.get(rank)
        cells: dict[str, Text | str]
        values: dict[str, float | str] = {"est": rank}
        if worker is None:
            nobody = "no worker hosts it now"
            cells = {"est": Text(str(rank), "yellow"), "worker": Text("nobody", "yellow")}
            entries.append(Entry(Row(str(rank)), _known(cells), nobody, f"{rank} nobody", values))
            continue
        state = state_word(worker)
        values |= {"worker": worker.worker_id, "state": state}
        cells = {
            "est": str(rank),
            "worker": names[worker.worker_id],
            "doing": "-",
            "for": "-",
            "state": state,
        }
        if of_worker := held.get(worker.worker_id):
            step, since = min(of_worker, key=lambda one: one[1])
            values |= {"doing": step, "for": now - since}
            cells |= {"doing": str(step), "for": age(now - since)}
        words = f"{rank} {worker.worker_id} {state}"
        row = Row(str(rank), worker.worker_id)
        entries.append(Entry(row, _known(cells), worker.reason, words, values))
    return Body(entries, "ests", {"worker": _longest(names.values())})


def _tasks(detail: JobNews, now: float) -> Body:
    entries = []
    for number, text in enumerate(status_lines(detail.slots) if detail.slots is not None else ()):
        # Above every dataset: an empty name is none of a dataset.
        line = Text(text, style="cyan")
        entries.append(Entry(Row(f"slots {number}"), _known(line), text, text, head=True))
    for item in detail.datasets:
        counts = f"todo {item.todo}  doing {item.doing}  done {item.done}/{item.total}"
        counts += f"  failed {item.failed}" if item.failed else ""
        counts += f"  re-queued {item.requeued}  timed out {item.timed_out}"
        name = f"{short(item.dataset, _DATASET_CHARACTERS):<{_DATASET_CHARACTERS}}"
        line = Text(f"{name} {counts}", style="bold red" if item.failed else "bold")
        entries.append(
            Entry(Row(item.dataset), _known(line), counts, item.dataset, group=item.dataset, head=True)
        )
        entries += [_task(detail, item.dataset, task, now) for task in item.holders]
        if (more := item.doing - len(item.holders)) > 0:
            text = f"and {more} more that are reported or not listed"
            line = Text(f"{'':<{_DATASET_CHARACTERS}} {text}", style="dim")
            entries.append(Entry(Row(f"{item.dataset} more"), _known(line), words=text, group=item.dataset))
    return Body(entries, "tasks", empty="no dataset yet")


def _task(detail: JobNews, dataset: str, task: shard_pb2.TaskInfo, now: float) -> Entry:
    key = held_key(dataset, task)
    held = now - detail.held_since.get(key, now)
    values: dict[str, float | str] = {
        "task": task.index,
        "attempt": task.attempt,
        "positions": task.range.start,
        "held": held,
        "worker": task.worker_id,
    }
    if task.HasField("deadline"):
        values["left"] = task.deadline.seconds + task.deadline.nanos / 1e9 - now
    left = values.get("left")
    cells: Cells = {
        "task": str(task.index),
        "attempt": str(task.attempt),
        "positions": f"{task.range.start}-{task.range.end - 1}",
        "held": age(held),
        "left": age(left) if isinstance(left, float) else "-",
        "worker": task.worker_id,
    }
    errors = "; ".join(error.error for error in task.errors)
    words = f"{dataset} {task.index} {task.worker_id} {errors}"
    return Entry(
        Row(repr(key), task.worker_id),
        _known(cells),
        errors or f"by {task.worker_id}",
        words,
        values,
        dataset,
    )


def _events(detail: JobNews, view: View) -> Body:
    wanted = view.wanted
    result = [event for event in list(detail.events) if wanted == EVERYTHING or is_wanted(event, wanted)]
    one_by_one = view.unfolded or wanted.kinds
    runs = [(event,) for event in result] if one_by_one else list(folded(result, lambda event: event.kind))
    entries, worker_characters = [], 0
    for run in runs:
        first, last = run[0], run[-1]
        worker_characters = max(worker_characters, len(last.worker_id) if len(run) == 1 else 0)
        values: dict[str, float | str] = {
            "number": last.sequence,
            "time": moment_of(last),
            "kind": last.kind,
            "at": last.step,
            "worker": last.worker_id,
            "reason": last.reason,
        }
        words = f"{last.sequence} {last.kind} {last.worker_id} {last.reason}"
        # Identified by its first event, so that a growing run keeps its place.
        row = Row(str(first.sequence), last.worker_id)
        entries.append(Entry(row, partial(_event_cells, run), last.reason, words, values))
    at = _longest(_at(run[-1]) for run in runs[-1:]) + 1
    time = _longest(local_time(moment_of(run[0])) for run in (runs[:1] + runs[-1:]))
    empty = "no events yet" if not detail.events else "none of the events is wanted"
    return Body(entries, "events", {"worker": worker_characters, "time": time, "at": at}, empty)


def moment_of(event: ring_pb2.Event) -> float:
    """Return when an event happened, in seconds since the Unix epoch."""
    return event.time.seconds + event.time.nanos / 1e9


def _at(event: ring_pb2.Event) -> str:
    return f"g{event.generation} s{event.step}"


def _event_cells(run: Sequence[ring_pb2.Event]) -> Cells:
    event = folded_event(run)
    return {
        "number": Text(str(event.sequence), "dim"),
        "time": Text(local_time(moment_of(event)), "cyan"),
        "kind": Text(event.kind, "bold red" if is_alarming(event) else "bold"),
        "at": Text(_at(event), "dim"),
        "worker": Text(event.worker_id, "green"),
        "reason": reason_beside_worker(event),
    }


def _curves(detail: JobNews, columns: int) -> Body:
    entries = []
    for series in detail.series:
        for number, line in enumerate(curve_lines(series, columns, CURVE_ROWS)):
            style = "bold" if number == 0 else "cyan"
            row = Row(f"{series.name}/{number}")
            entries.append(Entry(row, _known(Text(line, style=style)), words=series.name))
    return Body(entries, empty="nothing logged: scripts log with job.log(name=value)", marks=False)


def _worker(name: str, detail: JobNews) -> Body:
    assert detail.job is not None
    result = explain(name, detail.job, list(detail.events))
    entries = []
    for number, line in enumerate(explanation_lines(result) if result is not None else ()):
        assert isinstance(line, Text) and result is not None
        reason = result.chain[number - 1].reason if 0 < number <= len(result.chain) else result.sentence
        entries.append(Entry(Row(str(number)), _known(line), reason, line.plain))
    return Body(entries, empty=f"{name}: not known (any more)")


def _known(content: Text | Cells) -> Callable[[], Text | Cells]:
    return lambda: content


def _brief(seconds: float | str | None) -> str:
    return brief(seconds) if isinstance(seconds, float) else "-"


def _longest(texts: Iterable[str]) -> int:
    return max((len(text) for text in texts), default=0)
