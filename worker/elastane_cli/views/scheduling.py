"""Decisions about runs and changes of rings as text. now: seconds since the Unix epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from elastane_cli.views.runs import (
    STATE_STYLES,
    earliest_text,
    holders_text,
    is_waiting,
    state_name,
    state_text,
)
from elastane_cli.views.text import harmless, local_time

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from elastane_cli.explain import RingChange
    from elastane_proto.v1 import job_pb2, training_pb2

FAIR_SHARE: Final = "fair-share"
_KIND_STYLES: Final = {"granted": "green", "taken": "yellow", "declined": "red", "waits": "yellow"}
_REJECTED_SHOWN: Final = 12


def run_parts(
    run: training_pb2.Run, scheduling: training_pb2.TrainingServiceGetSchedulingResponse, now: float
) -> list[RenderableType]:
    """Return the output of `elastane why` for a run."""
    from rich.text import Text

    state = Text.assemble(
        (f"run {run.run_id}", "bold"), "  ", (state_text(run), STATE_STYLES.get(state_name(run), "default"))
    )
    if run.reason:
        state.append(f": {_flat(run.reason)}")
    parts: list[RenderableType] = [state]
    if is_waiting(run):
        holders = holders_text(run, now)
        parts.append(
            Text(f"earliest start: {earliest_text(run, now)}" + (f"; behind {holders}" if holders else ""))
        )
    if not scheduling.decisions:
        return [*parts, Text(_nothing(run, scheduling.policy), style="dim")]
    parts.append(_decision_table(scheduling.decisions))
    newest = scheduling.decisions[-1]
    parts.append(Text(f"the last decision of {_flat(newest.policy)}: {_flat(newest.choice)}"))
    if newest.rejected:
        shown = newest.rejected[:_REJECTED_SHOWN]
        parts.append(Text("rejected:\n" + "\n".join(f"  {_flat(one)}" for one in shown)))
        if more := len(newest.rejected) - len(shown):
            parts.append(Text(f"  and {more} more: --json has them", style="dim"))
    return parts


def _nothing(run: training_pb2.Run, policy: str) -> str:
    if policy in ("", FAIR_SHARE):
        return (
            f"the service's policy is {FAIR_SHARE}, which keeps no list of decisions: `elastane status "
            f"{run.run_id}` has the run's changes with their reasons, `elastane queue` its place; other "
            "policies are set with `elastane master --scheduling-policy`"
        )
    return f"{_flat(policy)} has decided nothing about this run yet, or it was forgotten"


def _decision_table(decisions: Sequence[training_pb2.SchedulingDecision]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from elastane_proto.message_codec import enum_word
    from elastane_proto.v1 import training_pb2

    table = Table(box=None, header_style="bold")
    for column in ("TIME", "POLICY", "DECISION", "SLOTS"):
        table.add_column(column, no_wrap=True)
    table.add_column("REASON")
    for one in decisions:
        kind = enum_word(training_pb2.SchedulingDecision.Kind.DESCRIPTOR, one.kind)
        same = one.slots_before == one.slots_after
        table.add_row(
            local_time(one.time.seconds + one.time.nanos / 1e9),
            Text(_flat(one.policy)),
            Text(kind, style=_KIND_STYLES.get(kind, "default")),
            str(one.slots_after) if same else f"{one.slots_before} to {one.slots_after}",
            Text(_flat(one.reason)),
        )
    return table


def job_parts(job: job_pb2.Job, changes: Sequence[RingChange], *, complete: bool) -> list[RenderableType]:
    """Return the output of `elastane why` for a job. complete: the changes go back to its beginning."""
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble((f"job {harmless(job.name)}", "bold"))
    if job.reason:
        head.append(f": {_flat(job.reason)}")
    if not changes:
        hint = "it has had no ring yet: `elastane status` says what it waits for"
        return [head, Text(hint, style="dim")]
    table = Table(box=None, header_style="bold")
    for column in ("TIME", "GENERATION", "STEP"):
        table.add_column(column, no_wrap=True)
    table.add_column("WORKERS AND THEIR ESTS")
    table.add_column("REASON")
    for change in changes:
        table.add_row(
            local_time(change.time),
            str(change.generation),
            str(change.step),
            Text(harmless(", ".join(f"{name} {ests}" for name, ests in change.workers.items())) or "-"),
            Text(_flat(change.reason)),
        )
    left_out = (
        [] if complete else [Text("earlier changes are not shown: --last, or no longer kept", style="dim")]
    )
    return [head, table, *left_out]


def _flat(text: str) -> str:
    return harmless(" ".join(text.split()))
