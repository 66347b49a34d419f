"""The stages of a running pipeline as text and as plain values (`elastane status`, `elastane plan JOB`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastane_cli.views.text import harmless

if TYPE_CHECKING:
    from rich.console import RenderableType

    from elastane_proto.v1 import job_pb2


def stages_to_plain(job: job_pb2.Job) -> dict[str, Any] | None:
    """Return the pipeline for JSON; None for a job whose model is not cut."""
    from elastane_cli.views.plain import to_plain

    return to_plain(job.pipeline) if job.HasField("pipeline") else None


def stage_parts(job: job_pb2.Job) -> list[RenderableType]:
    """Return the lines and the table of a pipeline's stages; none for a job whose model is not cut."""
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    from elastane_proto.v1 import pipeline_pb2

    if not job.HasField("pipeline"):
        return []
    told = job.pipeline
    count = len(told.stages)
    line = f"a pipeline of {count} {'stage' if count == 1 else 'stages'}, {told.units} units"
    if told.step_seconds:
        line += (
            f": {told.step_seconds:.3g} s a step are predicted, {told.bubble:.0%} of it waiting for blocks"
        )
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("STAGE", "UNITS", "WORKERS", "SHADOWS", "MEMORY", "LOAD"):
        table.add_column(column, justify="right" if column in ("STAGE", "LOAD") else "left")
    for number, stage in enumerate(told.stages):
        last = stage.end_unit - 1
        units = f"{stage.first_unit}-{last}" if last > stage.first_unit else str(last)
        memory = pipeline_pb2.StageMemory.Name(stage.memory).removeprefix("STAGE_MEMORY_").lower()
        table.add_row(
            str(number),
            units,
            Text(harmless(", ".join(stage.replicas))),
            Text(harmless(", ".join(stage.shadows)) or "-"),
            memory,
            f"{stage.load_seconds:.3g} s" if stage.load_seconds else "?",
        )
    parts: list[RenderableType] = [line, table]
    if told.slowest_stage >= 0 and told.slowest_reason:
        parts.append(escape(harmless(f"stage {told.slowest_stage} is the slowest: {told.slowest_reason}")))
    parts += [escape(harmless(text)) for text in (told.risk, f"why: {told.reason}") if text]
    return parts
