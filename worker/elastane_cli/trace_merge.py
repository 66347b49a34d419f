"""Brings the traces of a job's workers together in one file of Chrome's format. Pure.

Each worker's trace has the times of its own clock, and marks where it applied its steps. All workers apply a
step when the master says so, within a message's way of each other; thus the clocks are aligned by the median
difference at the steps that a worker has in common with the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from elastane_common.trace_names import MARK


@dataclass(frozen=True)
class WorkerTrace:
    """One worker's trace: Chrome's JSON. It hosts virtual ranks [first_est, end_est)."""

    worker: str
    first_est: int
    end_est: int
    document: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The worker with its ESTs: "w1, ESTs 2-3"."""
        last = self.end_est - 1
        if self.first_est >= self.end_est:
            return self.worker
        return (
            f"{self.worker}, EST {last}"
            if self.first_est == last
            else f"{self.worker}, ESTs {self.first_est}-{last}"
        )


def marks(document: Mapping[str, Any]) -> dict[int, float]:
    """Return when the worker had applied each step, in microseconds of its trace."""
    found = {}
    for event in document.get("traceEvents", ()):
        name = event.get("name", "")
        if event.get("ph") == "X" and isinstance(name, str) and name.startswith(MARK):
            found[int(name.removeprefix(MARK))] = float(event["ts"])
    return found


def offsets(traces: Sequence[WorkerTrace]) -> list[float]:
    """Return what to add to each worker's times so that they are those of the first one's clock.

    0 where the differences do not agree on a sign, as on one machine: the clocks are then closer than the way
    of a message, by which they would be aligned. Also 0 for a worker without a step in common with the first.
    """
    all_marks = [marks(trace.document) for trace in traces]
    first = all_marks[0] if all_marks else {}
    found = []
    for own in all_marks:
        differences = [first[step] - own[step] for step in own.keys() & first.keys()]
        is_apart = bool(differences) and (min(differences) > 0 or max(differences) < 0)
        found.append(median(differences) if is_apart else 0.0)
    return found


def merged(traces: Sequence[WorkerTrace]) -> dict[str, Any]:
    """Return one document in which each worker's processes and flows are its own, with its name."""
    events: list[dict[str, Any]] = []
    numbers: dict[tuple[int, Any], int] = {}
    shifts = offsets(traces)
    for place, (trace, shift) in enumerate(zip(traces, shifts, strict=True)):
        for event in trace.document.get("traceEvents", ()):
            copy = dict(event)
            if "ts" in copy:
                copy["ts"] = copy["ts"] + shift
            process = copy.get("pid")
            copy["pid"] = numbers.setdefault((place, process), len(numbers) + 1)
            if "id" in copy:
                copy["id"] = f"{place}:{copy['id']}"
            if copy.get("ph") == "M" and copy.get("name") == "process_name":
                copy["args"] = {**copy.get("args", {}), "name": f"{trace.label}: {process}"}
            elif copy.get("ph") == "M" and copy.get("name") == "process_sort_index":
                copy["args"] = {"sort_index": place}
            events.append(copy)
    steps = sorted(set.intersection(*(set(marks(trace.document)) for trace in traces))) if traces else []
    return {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "elastane": {
            "steps": steps,
            "workers": {trace.worker: [trace.first_est, trace.end_est] for trace in traces},
            "clock_offsets_us": {trace.worker: shift for trace, shift in zip(traces, shifts, strict=True)},
        },
    }
