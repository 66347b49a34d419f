"""Two jobs side by side: their figures, and their curves on common axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastane_master.dashboard.facts import JobFacts
from elastane_master.dashboard.words import age, moment, number
from elastane_master.decisions.amounts import NANOS
from elastane_master.jobs.curves import Bucket
from elastane_planner.amounts import seconds_text
from elastane_proto.amounts import money_text
from elastane_proto.history.events import RingFormed


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table. differs: the two jobs do not have the same."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


def figures(jobs: Sequence[JobFacts]) -> list[Figure]:
    """Return the figures of jobs, then the settings in which they differ."""
    columns = [_figures(one) for one in jobs]
    found = [Figure(name, tuple(column[name] for column in columns)) for name in columns[0]]
    settings = [one.view.settings for one in jobs]
    for name in settings[0].__struct_fields__:
        row = Figure(name.replace("_", " "), tuple(str(getattr(one, name)) for one in settings))
        if row.differs:
            found.append(row)
    return found


def common_series(jobs: Sequence[JobFacts]) -> dict[str, Mapping[str, Sequence[Bucket]]]:
    """Return the curves of each logged name by job: first the names that all of them have."""
    names = {name for one in jobs for name in one.curves}
    ordered = sorted(names, key=lambda name: (not all(name in one.curves for one in jobs), name))
    return {name: {one.view.name: one.curves[name] for one in jobs if name in one.curves} for name in ordered}


def _figures(job: JobFacts) -> dict[str, str]:
    view, cost = job.view, job.view.cost
    total = view.steps_per_epoch * view.epochs
    train = next((one.view.progress for one in job.queues if one.view.dataset == "train"), None)
    left = train.eta_seconds if train is not None and view.phase == "running" else None
    waits = [one.formed_seconds for one in job.incidents if one.formed_seconds is not None]
    return {
        "state": view.phase.replace("_", " "),
        "created": f"{moment(view.created_at)} UTC",
        "step": f"{view.step} of {total}" if total else str(view.step),
        "epoch": f"{view.epoch + 1} of {view.epochs}" if view.epochs else "-",
        "samples a second": number(train.samples_per_second) if train is not None else "-",
        "time left": age(left) if left is not None else "-",
        "ESTs on workers": f"{view.settings.ests} on {sum(one.place == 'member' for one in view.workers)}",
        "rings formed, of the events shown": str(
            sum(isinstance(one.note.event, RingFormed) for one in job.notes)
        ),
        "incidents": str(len(job.incidents) + job.incidents_left_out),
        "rings formed again after, in all": seconds_text(sum(waits)),
        "worker time": age(cost.worker_nanos / NANOS),
        "of it useful": age(cost.useful_nanos / NANOS),
        "of it replayed": age(cost.replayed_nanos / NANOS),
        "of it idle": age(cost.idle_nanos / NANOS),
        "spent": money_text(cost.spent_micros, cost.currency) if cost.spent_micros else "-",
        "saved up to step": str(view.saved_step) if view.saved_step >= 0 else "-",
    }
