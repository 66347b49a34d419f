"""The stages of a running pipeline as text and as plain values (`elastane status`, `elastane plan JOB`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from elastane_cli.views.text import counted, harmless
from elastane_planner.amounts import seconds_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from elastane_planner.cluster import Cluster
    from elastane_proto.v1 import job_pb2


STASHES: Final = {"plain": "kept", "checkpoint": "recomputed", "swap": "swapped"}
"""Text for each way in which a stage keeps the activations for its backward."""


def units_text(first_unit: int, end_unit: int) -> str:
    """Return units as "0-4", or "3" where there is one."""
    return f"{first_unit}-{end_unit - 1}" if end_unit > first_unit + 1 else str(first_unit)


def cluster_of(job: job_pb2.Job) -> tuple[Cluster, int, int]:
    """Return a pipeline's workers and links, the number of measured links, and of all links.

    Unmeasured links are filled in as the master does.
    """
    from elastane_planner.cluster import Cluster, Device
    from elastane_planner.links import bandwidth_matrix

    told = job.pipeline
    known = {(link.source, link.target): link.bytes_per_second for link in told.links}
    hosts = [device.host for device in told.devices]
    pairs = [(a, b) for one, a in enumerate(hosts) for other, b in enumerate(hosts) if one != other]
    devices = [Device(one.worker_id, one.speed or 1.0, one.memory_bytes or None) for one in told.devices]
    cluster = Cluster(tuple(devices), bandwidth_matrix(hosts, known))
    return cluster, sum(pair in known for pair in pairs), len(pairs)


def stages_to_plain(job: job_pb2.Job) -> dict[str, Any] | None:
    """Return the pipeline for JSON; None for a job without one."""
    from elastane_cli.views.plain import to_plain

    return to_plain(job.pipeline) if job.HasField("pipeline") else None


def stage_parts(job: job_pb2.Job) -> list[RenderableType]:
    """Return the lines and the table of a pipeline's stages; empty for a job without one."""
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    from elastane_proto.v1 import pipeline_pb2

    if not job.HasField("pipeline"):
        return []
    told = job.pipeline
    line = f"a pipeline of {counted(len(told.stages), 'stage')}, {counted(told.units, 'unit')}"
    if told.step_seconds:
        line += f": {seconds_text(told.step_seconds)} per step predicted, {told.bubble:.0%} of it idle"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("STAGE", "UNITS", "WORKERS", "SHADOWS", "STASH", "LOAD"):
        table.add_column(column, justify="right" if column in ("STAGE", "LOAD") else "left")
    for number, stage in enumerate(told.stages):
        memory = pipeline_pb2.StageMemory.Name(stage.memory).removeprefix("STAGE_MEMORY_").lower()
        table.add_row(
            str(number),
            units_text(stage.first_unit, stage.end_unit),
            Text(harmless(", ".join(stage.replicas))),
            Text(harmless(", ".join(stage.shadows)) or "-"),
            STASHES.get(memory, "?"),
            seconds_text(stage.load_seconds) if stage.load_seconds else "?",
        )
    parts: list[RenderableType] = [line, table]
    if told.slowest_stage >= 0 and told.slowest_reason:
        parts.append(escape(harmless(f"stage {told.slowest_stage} is the slowest: {told.slowest_reason}")))
    parts += [escape(harmless(text)) for text in (told.risk, f"why: {told.reason}") if text]
    return parts
