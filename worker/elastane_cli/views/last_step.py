"""The last step of a running pipeline, as its workers measured it: as text, and as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from elastane_cli.views.text import harmless
from elastane_planner.amounts import seconds_text
from elastane_planner.last_step import BLOCKS_TOLD_MAX, is_too_long, measured_timeline
from elastane_planner.plan import Plan, Stage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from elastane_planner.simulate import Timeline
    from elastane_proto.v1 import job_pb2, ring_pb2

    Figures = Mapping[str, ring_pb2.WorkerFigures]

#: Number of characters of a row, each for an equal time.
COLUMNS: Final = 72
ROWS_MAX: Final = 64
_IDLE: Final = "·"
_TOO_LONG: Final = f"a worker has more than {BLOCKS_TOLD_MAX} blocks in each, which are not told"


class LastStep(NamedTuple):
    """A measured step. workers: by device of the timeline and the plan."""

    step: int
    plan: Plan
    workers: tuple[str, ...]
    timeline: Timeline


def last_step(job: job_pb2.Job, figures: Figures) -> LastStep | None:
    """Return the newest step that all workers of a pipeline have reported; None if there is none."""
    plan, workers = _plan_of(job)
    place = {worker: index for index, worker in enumerate(workers)}
    told = {worker: figures[worker] for worker in workers if worker in figures}
    steps = {one.blocks_step for one in told.values() if one.block_seconds}
    if len(told) < len(workers) or len(steps) != 1:
        return None
    found = {
        place[worker]: (
            one.blocks_began,
            list(zip(one.block_seconds[::2], one.block_seconds[1::2], strict=False)),
        )
        for worker, one in told.items()
    }
    timeline = measured_timeline(plan, job.settings.ests, found)
    return None if timeline is None else LastStep(steps.pop(), plan, workers, timeline)


def _plan_of(job: job_pb2.Job) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan of a pipeline, and its workers by device."""
    stages = job.pipeline.stages
    workers = tuple(dict.fromkeys(worker for stage in stages for worker in stage.replicas))
    place = {worker: index for index, worker in enumerate(workers)}
    made = (Stage(s.first_unit, s.end_unit, tuple(place[w] for w in s.replicas)) for s in stages)
    return Plan(tuple(made)), workers


def last_step_to_plain(job: job_pb2.Job, figures: Figures) -> dict[str, Any] | None:
    """Return the last step for JSON; None if it is not known."""
    found = last_step(job, figures)
    if found is None:
        return None
    return {
        "step": found.step,
        "step_seconds": found.timeline.step_seconds,
        "bubble": found.timeline.bubble,
        "blocks": [
            {
                "worker": found.workers[span.device],
                "kind": "forward" if span.block.kind == "F" else "backward",
                "stage": span.block.stage,
                "micro_batch": span.block.micro_batch,
                "start_seconds": span.start_seconds,
                "end_seconds": span.end_seconds,
            }
            for span in found.timeline.spans
        ],
    }


def last_step_parts(job: job_pb2.Job, figures: Figures) -> list[RenderableType]:
    """Return a line and a row for each worker: when it ran forwards (F), backwards (B), and waited.

    If steps are too long to be reported, a line that says so.
    """
    from rich.table import Table
    from rich.text import Text

    found = last_step(job, figures)
    if found is None:
        is_too_long_to_tell = is_too_long(_plan_of(job)[0], job.settings.ests)
        return [f"no step is shown: {_TOO_LONG}"] if is_too_long_to_tell else []
    whole = found.timeline.step_seconds
    line = (
        f"step {found.step} as measured: {seconds_text(whole)} from the first block to the last, "
        f"{found.timeline.bubble:.0%} of it idle"
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    rows = [(index, device) for index, stage in enumerate(found.plan.stages) for device in stage.devices]
    for index, device in rows[:ROWS_MAX]:
        blocks = [
            (span.block.kind, span.start_seconds, span.end_seconds)
            for span in found.timeline.spans
            if span.device == device
        ]
        table.add_row(str(index), Text(harmless(found.workers[device])), Text(_row(blocks, whole)))
    return [line, table]


def _row(blocks: Sequence[tuple[str, float, float]], whole: float) -> str:
    """Return a worker's step as characters, each for the activity that took most of its interval."""
    if whole <= 0:
        return ""
    shares = [dict.fromkeys("FB", 0.0) for _ in range(COLUMNS)]
    width = whole / COLUMNS
    for kind, start, end in blocks:
        for column in range(int(start / width), min(COLUMNS - 1, int(end / width)) + 1):
            inside = min(end, (column + 1) * width) - max(start, column * width)
            shares[column][kind] += max(0.0, inside)
    text = ""
    for share in shares:
        kind = max(share, key=lambda one: share[one])
        text += kind if share[kind] >= width * 0.4 else _IDLE
    return text
