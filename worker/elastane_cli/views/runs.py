"""Runs of the training service as text: lines, tables and headlines. now: seconds since the Unix epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from elastane_cli.views.text import counted, harmless, local_time

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp
    from rich.table import Table

    from elastane_proto.v1 import training_pb2

STATE_STYLES: Final = {
    "waiting_data": "yellow",
    "queued": "yellow",
    "launching": "cyan",
    "running": "green",
    "suspended": "yellow",
    "succeeded": "bold green",
    "failed": "bold red",
    "cancelled": "red",
}
_OVER: Final = frozenset({"succeeded", "failed", "cancelled"})
_WAITING: Final = frozenset({"waiting_data", "queued", "suspended"})
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def state_name(run: training_pb2.Run) -> str:
    """Return the state in lower case, such as "waiting_data"."""
    from elastane_proto.message_codec import enum_word
    from elastane_proto.v1 import training_pb2

    return enum_word(training_pb2.RunState.DESCRIPTOR, run.state)


def is_over(run: training_pb2.Run) -> bool:
    """True if the run has succeeded, failed or was cancelled."""
    return state_name(run) in _OVER


def state_text(run: training_pb2.Run) -> str:
    """Return the state in words: "waiting for data", "running, cancelling"."""
    name = state_name(run)
    words = "waiting for data" if name == "waiting_data" else name
    return f"{words}, cancelling" if run.cancelling and name not in _OVER else words


def run_name(run: training_pb2.Run) -> str:
    """Return the run's name for people: the one it was given, or its algorithm."""
    return harmless(run.spec.name or run.spec.algorithm)


def age_text(seconds: float) -> str:
    """Format a duration in two units at most: "42s", "12m", "3h05m", "2d04h"."""
    whole = max(int(seconds), 0)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"


def change_line(run: training_pb2.Run) -> str:
    """Describe the run's state on one line, with its place in the queue, attempt and reason."""
    words = f"run {run.run_id}: {state_text(run)}"
    place = f"{run.position} of {run.queue_length}" if run.position and is_waiting(run) else ""
    if place and not run.reason.endswith(f" of {run.queue_length}"):  # the reason tells its place already
        words += f", {place}"
    if run.attempt > 1:
        words += f", attempt {run.attempt}"
    return words + (f": {_flat(run.reason)}" if run.reason else "")


def going_on(run_id: int) -> str:
    """Return how to follow and how to end a run that continues without this command."""
    return (
        f"run {run_id} goes on; follow it with `elastane logs -f {run_id}`, "
        f"end it with `elastane cancel {run_id}`"
    )


def headline(run: training_pb2.Run, now: float) -> str:
    """Return name, state, reason, place, sizes and addresses of a run, in rich's markup."""
    from rich.markup import escape

    style = STATE_STYLES.get(state_name(run), "default")
    reason = f": {escape(harmless(run.reason))}" if run.reason else ""
    lines = [
        f"[bold]run {run.run_id}[/]  {escape(run_name(run))}  [{style}]{state_text(run)}[/]{reason}",
        escape(", ".join(_sizes(run))),
        escape(", ".join(_times(run, now))),
    ]
    lines += [escape(f"{label}: {harmless(value)}") for label, value in _addresses(run) if value]
    return "\n".join(line for line in lines if line)


def rank_table(run: training_pb2.Run, now: float) -> Table:
    """Return a table with one row for each rank of the current attempt."""
    from rich.text import Text

    from elastane_proto.message_codec import enum_word
    from elastane_proto.v1 import training_pb2

    table = _table("RANK", "STATE", "EXIT", "TIME", "HOST", "RUNNER", wide="LAST LINE")
    servers = len(run.ranks) - run.spec.parameter_servers
    for rank in run.ranks:
        state = enum_word(training_pb2.RankStatus.State.DESCRIPTOR, rank.state)
        until = _seconds(rank.ended) if rank.HasField("ended") else now
        table.add_row(
            f"{rank.rank}{' ps' * (rank.rank >= servers)}",
            state,
            str(rank.exit_code) if rank.state == training_pb2.RankStatus.STATE_EXITED else "-",
            age_text(until - _seconds(rank.started)) if rank.HasField("started") else "-",
            Text(harmless(rank.host) or "-"),
            Text(harmless(rank.runner_id) or "-"),
            Text(_flat(rank.last_line)),
        )
    return table


def history_table(run: training_pb2.Run) -> Table:
    """Return a table of the run's changes of state, the newest last."""
    from rich.text import Text

    from elastane_proto.message_codec import enum_word
    from elastane_proto.v1 import training_pb2

    table = _table("TIME", "STATE", "ATTEMPT", wide="REASON")
    for change in run.history:
        name = enum_word(training_pb2.RunState.DESCRIPTOR, change.state)
        table.add_row(
            local_time(_seconds(change.time)),
            f"[{STATE_STYLES.get(name, 'default')}]{name.replace('_', ' ')}[/]",
            str(change.attempt or "-"),
            Text(_flat(change.reason)),
        )
    return table


def run_table(runs: Iterable[training_pb2.Run], now: float) -> Table:
    """Return a table of runs, as `elastane jobs` lists them."""
    from rich.text import Text

    table = _table("RUN", "NAME", "STATE", "MODEL", "OWNER", "ATTEMPT", "AGE", wide="REASON")
    for run in runs:
        table.add_row(
            str(run.run_id),
            Text(run_name(run)),
            f"[{STATE_STYLES.get(state_name(run), 'default')}]{state_text(run)}[/]",
            Text(harmless(run.spec.output_model_name)),
            Text(harmless(run.spec.owner) or "-"),
            str(run.attempt or "-"),
            age_text(now - _seconds(run.created)),
            Text(_flat(run.reason)),
        )
    return table


def is_waiting(run: training_pb2.Run) -> bool:
    """True if the run waits for its data, for slots, or for its next attempt."""
    return state_name(run) in _WAITING


def queued_in_order(runs: Iterable[training_pb2.Run]) -> list[training_pb2.Run]:
    """Return the waiting runs by place in the queue; those without a place after them, the oldest first."""
    waiting = [run for run in runs if is_waiting(run)]
    return sorted(waiting, key=lambda run: (run.position == 0, run.position, run.run_id))


def queue_table(runs: Iterable[training_pb2.Run], now: float) -> Table:
    """Return a table of the queue: places, owners, priorities, ages, slots, starts, and reasons.

    EARLIEST: forecast of its start, without new submissions.
    """
    from rich.text import Text

    runs = list(runs)
    queues = ("QUEUE",) if any(run.queue for run in runs) else ()
    columns = ("PRIORITY", "STATE", "SLOTS", "AGE", "EARLIEST", "BEHIND")
    table = _table("PLACE", "RUN", "NAME", "OWNER", *queues, *columns, wide="REASON")
    for run in runs:
        table.add_row(
            str(run.position or "-"),
            str(run.run_id),
            Text(run_name(run)),
            Text(harmless(run.spec.owner) or "-"),
            *([Text(harmless(run.queue))] if queues else []),
            str(run.priority),
            f"[{STATE_STYLES.get(state_name(run), 'default')}]{state_text(run)}[/]",
            _slots(run.spec),
            age_text(now - _seconds(run.created)),
            earliest_text(run, now),
            Text(holders_text(run, now) or "-"),
            Text(_flat(run.reason)),
        )
    return table


def earliest_text(run: training_pb2.Run, now: float) -> str:
    """Return when a waiting run could start at the earliest: "in 12m", "now", or "unknown"."""
    if not run.HasField("earliest_start"):
        return "unknown"
    seconds = _seconds(run.earliest_start) - now
    return f"in {age_text(seconds)}" if seconds >= 1 else "now"


def holders_text(run: training_pb2.Run, now: float) -> str:
    """Return the holders of slots that a run waits for: "run 3 (2, 12m), run 5 (1, unknown)"; "": none."""
    return ", ".join(
        f"run {one.run_id} ({one.slots}, "
        f"{age_text(_seconds(one.until) - now) if one.HasField('until') else 'unknown'})"
        for one in run.holders
    )


def service_line(service: training_pb2.TrainingServiceGetServiceResponse) -> str:
    """Summarize the service on one line: waiting runs, slots, runners and their problems."""
    attending = [runner for runner in service.runners if runner.attends]
    words = [
        f"{counted(service.runs_waiting, 'run')} waiting",
        f"{service.slots_used} of {counted(service.slots, 'slot')} in use",
        counted(len(attending), "runner"),
    ]
    if lost := len(service.runners) - len(attending):
        words.append(f"{lost} not attending")
    words += [
        f"{harmless(runner.runner_id)} paused" + (f" ({_flat(runner.reason)})" if runner.reason else "")
        for runner in attending
        if runner.paused
    ]
    return ", ".join(words)


def queue_lines(service: training_pb2.TrainingServiceGetServiceResponse) -> list[str]:
    """Describe each queue on a line: its weight, guarantee and slots, and how many runs it has."""
    lines = []
    for queue in service.queues:
        words = [f"weight {queue.weight:g}"]
        if queue.guaranteed:
            words.append(f"guaranteed {_slots_by_type(queue.guaranteed)}")
        words.append(f"has {_slots_by_type(queue.slots_used)}")
        words.append(f"{counted(queue.runs_running, 'run')} running, {queue.runs_waiting} waiting")
        lines.append(f"queue {harmless(queue.name)}: {'; '.join(words)}")
    return lines


def _slots_by_type(slots: Mapping[str, int]) -> str:
    """Write slots by device type: "4 cpu + 2 gpu", or "no slots"."""
    return (
        " + ".join(f"{slots[name]} {harmless(name)}" for name in sorted(slots) if slots[name]) or "no slots"
    )


def artifact_table(artifacts: Iterable[training_pb2.Artifact]) -> Table:
    """Return a table of a run's artifacts."""
    from rich.text import Text

    table = _table("KIND", "BYTES", "SHA256", wide="PATH")
    for artifact in artifacts:
        table.add_row(
            Text(harmless(artifact.kind) or "-"),
            str(artifact.size_bytes),
            Text(harmless(artifact.sha256) or "-"),
            Text(harmless(artifact.path)),
        )
    return table


def _table(*columns: str, wide: str) -> Table:
    """Return a table without lines. wide: the last column, which alone may be wrapped."""
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    table.add_column(wide)
    return table


def _sizes(run: training_pb2.Run) -> list[str]:
    from elastane_proto.message_codec import enum_word
    from elastane_proto.v1 import training_pb2

    spec = run.spec
    framework = enum_word(training_pb2.Framework.DESCRIPTOR, spec.framework)
    instances = counted(spec.instances or 1, "instance")
    if spec.parameter_servers:
        instances += f", {spec.parameter_servers} of them parameter servers"
    if 0 < spec.instances_min < spec.instances:
        instances += f" (at least {spec.instances_min})"
    words = [instances, "elastane" if framework == "unspecified" else framework]
    if run.position:
        words.append(f"place {run.position} of {run.queue_length}")
    words += [f"priority {run.priority}", f"attempt {run.attempt}" if run.attempt else "no attempt yet"]
    if spec.owner:
        words.append(f"owner {harmless(spec.owner)}")
    return words


def _times(run: training_pb2.Run, now: float) -> list[str]:
    words = [f"created {local_time(_seconds(run.created))}"] if run.HasField("created") else []
    if run.HasField("started"):
        until = _seconds(run.ended) if run.HasField("ended") else now
        running = "ran" if run.HasField("ended") else "running for"
        words.append(f"{running} {age_text(until - _seconds(run.started))}")
    if run.HasField("next_attempt"):
        words.append(f"next attempt in {age_text(_seconds(run.next_attempt) - now)}")
    if run.slot_seconds:
        words.append(f"{run.slot_seconds:.0f} slot-seconds")
    return words


def _addresses(run: training_pb2.Run) -> list[tuple[str, str]]:
    dataset = run.spec.dataset
    return [
        ("model", run.spec.output_model_name),
        ("dataset", f"{dataset.id}@{dataset.version_hash}" if dataset.id else ""),
        ("job", run.job),
        ("artifacts", run.artifact_url),
    ]


def _slots(spec: training_pb2.RunSpec) -> str:
    """Return the slots of a run: "4", or "1-4" for an elastic run that may start with fewer."""
    each, most = spec.slots_per_instance or 1, spec.instances or 1
    least = min(spec.instances_min or most, most)
    return str(each * most) if least == most else f"{each * least}-{each * most}"


def _seconds(time: Timestamp) -> float:
    return time.seconds + time.nanos / 1e9


def _flat(text: str) -> str:
    """Return the text on one line without control characters."""
    return harmless(" ".join(text.split()))
