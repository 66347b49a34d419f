"""Text of numbers, times and tables, common to both formats of a report. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from elastane_cli.explain import ranks_text
from elastane_cli.report.facts import Facts

CHECKPOINTS_NEWEST = 5


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text. columns: their names."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def moment(seconds: float | None) -> str:
    """Format seconds since the Unix epoch as "2026-05-04 10:11:12 UTC"; None as "-"."""
    if seconds is None:
        return "-"
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration(seconds: float | None) -> str:
    """Format a duration as "0.41 s", "12.3 s", "3 min 10 s" or "2 h 05 min"; None as "-"."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def money(micros: int, currency: str) -> str:
    return f"{micros / 1e6:,.4f} {currency}"


def summary(facts: Facts) -> Table:
    """Return the key figures of the job."""
    steps = facts.steps
    seconds = facts.train_seconds
    rows = [
        ("phase", facts.phase + (f": {facts.reason}" if facts.reason else "")),
        ("created", moment(facts.created)),
        ("ended", moment(facts.ended)),
        ("steps committed", f"{steps.next_step}" + (f" of {facts.step_total}" if facts.step_total else "")),
        ("from the first commit to the last", duration(seconds)),
        ("a step, median", duration(steps.step_seconds)),
        ("samples a second, all in all", f"{steps.samples / seconds:,.1f}" if seconds > 0 else "-"),
        ("logical workers (ESTs)", str(facts.settings.get("ests", "-"))),
        ("workers that took part", str(len(facts.workers))),
        ("rings", str(len(facts.rings))),
        ("committed steps done again", str(steps.replayed)),
        ("lost to incidents", _share(facts.lost_seconds, seconds)),
    ]
    return Table(("", ""), rows)


def cost(facts: Facts) -> Table:
    """Return the cost of the job; empty without prices."""
    cost = facts.cost
    if not cost or not (cost.get("spent_micros") or cost.get("on_demand_micros")):
        return Table((), ())
    currency = str(cost.get("currency", ""))
    rows = [
        ("spent", money(cost["spent_micros"], currency)),
        ("the same work on demand", money(cost["on_demand_micros"], currency)),
        ("saved", money(cost["saved_micros"], currency)),
        ("worker time", duration(cost["worker_seconds"])),
        (
            "of it replayed",
            f"{duration(cost['replayed_seconds'])}, {money(cost['replayed_micros'], currency)}",
        ),
        ("of it idle", f"{duration(cost['idle_seconds'])}, {money(cost['idle_micros'], currency)}"),
    ]
    return Table(("", ""), rows)


def incidents(facts: Facts) -> Table:
    rows = []
    for one in facts.incidents:
        wait = "with the one above" if one.shared else duration(one.cost_seconds)
        how = "planned" if one.planned else "not planned"
        rows.append((moment(one.time), f"{one.kind} ({how})", f"{one.step}", one.reason, wait))
    return Table(("time", "what", "step", "why", "cost"), rows)


def rings(facts: Facts) -> Table:
    rows = []
    for ring in facts.rings:
        members = ", ".join(f"{name}: {ranks_text(*ranks)}" for name, ranks in ring.members.items())
        span = duration(ring.ended - ring.began)
        rows.append((str(ring.generation), moment(ring.began), span, members, ring.reason))
    return Table(("generation", "from", "for", "members", "because"), rows)


def checkpoints(facts: Facts) -> Table:
    """Return the first checkpoint and the newest ones; all others are summarized in one row."""
    rows = [
        (saved.name, str(saved.step), f"{saved.size:,}", saved.sha256 or "-", moment(saved.time))
        for saved in facts.checkpoints
    ]
    if (between := facts.checkpoints[1:-CHECKPOINTS_NEWEST])[1:]:
        steps = f"{between[0].step} to {between[-1].step}"
        size = f"{sum(saved.size for saved in between):,}"
        fold = (f"{len(between)} between them", steps, size, "-", f"until {moment(between[-1].time)}")
        rows[1:-CHECKPOINTS_NEWEST] = [fold]
    return Table(("checkpoint", "step", "bytes", "sha256 of its shards", "complete"), rows)


def pairs(values: dict[str, object]) -> Table:
    return Table(("", ""), [(name, str(value)) for name, value in values.items() if value not in ("", 0)])


def _share(part: float, whole: float) -> str:
    return f"{duration(part)} ({100 * part / whole:.1f} %)" if whole > 0 else duration(part)
