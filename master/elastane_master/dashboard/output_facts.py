"""The last lines of one worker as a page shows them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from elastane_master.jobs.worker_output import WorkerOutputs
from elastane_master.servers.translate import shown

LINES_SHOWN: Final = 200
WORKERS_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A line; or what happened between two lines: some were left out, the process ended."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """Contents of the page. workers: those with output, among which worker is the one that is shown."""

    workers: tuple[str, ...]
    worker: str
    lines: tuple[ShownLine, ...]


def workers_with_output(outputs: WorkerOutputs) -> tuple[str, ...]:
    """Return the workers whose output can be shown, also dead ones; at most `WORKERS_SHOWN`."""
    return tuple(outputs.workers[:WORKERS_SHOWN])


def output_facts(outputs: WorkerOutputs, worker: str) -> OutputFacts:
    """Return the last lines of a worker; of the first one if it has none."""
    known = outputs.workers
    chosen = worker if worker in known else (known[0] if known else "")
    lines: list[ShownLine] = []
    for piece in outputs.pieces(chosen, outputs.begin(chosen, LINES_SHOWN)):
        if piece.left_out:
            lines.append(ShownLine(f"[{piece.left_out} lines were left out here]", "note"))
        for line in piece.lines:
            cut = f" [{line.cut_bytes} bytes left out]" if line.cut_bytes else ""
            lines.append(ShownLine(shown(line.text) + cut, "stderr" if line.is_stderr else ""))
        if (ended := piece.ended) is not None:
            why = f", out of memory ({ended.out_of_memory})" if ended.out_of_memory else ""
            lines.append(ShownLine(f"[{ended.how}{why}]", "note"))
    return OutputFacts(workers_with_output(outputs), chosen, tuple(lines))
