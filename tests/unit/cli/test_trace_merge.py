"""Traces of several workers in one file."""

from __future__ import annotations

from typing import Any

from elastane_cli.trace_merge import WorkerTrace, marks, merged, offsets
from elastane_common.trace_names import MARK


def trace(worker: str, first: int, end: int, clock_us: float, *late_us: float, steps: int = 3) -> WorkerTrace:
    """A trace of steps that end every 100 us; late_us: when a step's mark comes after that."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "ts": 0.0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_sort_index", "pid": 7, "ts": 0.0, "args": {"sort_index": 9}},
        {"ph": "s", "name": "fwdbwd", "id": 1, "pid": 7, "ts": clock_us},
        {"ph": "i", "name": f"{MARK}99", "pid": 7, "ts": clock_us},
    ]
    for step in range(steps):
        late = late_us[step] if step < len(late_us) else 0.0
        at = clock_us + 100.0 * step + late
        events.append({"ph": "X", "name": f"{MARK}{step}", "pid": 7, "ts": at, "dur": 1.0})
    return WorkerTrace(worker, first, end, {"traceEvents": events})


def test_clocks_are_aligned_at_the_steps_that_both_have_applied() -> None:
    traces = [trace("w0", 0, 1, 1000.0, steps=2), trace("w1", 1, 3, 9000.0, 1.0, 2.0, 3.0)]
    assert offsets(traces) == [0.0, -8001.5]
    at = {event["name"]: event["ts"] for event in merged(traces)["traceEvents"] if event["pid"] == 2}
    assert at[f"{MARK}1"] == 9000.0 + 100.0 + 2.0 - 8001.5


def test_one_clock_is_left_alone() -> None:
    assert offsets([trace("w0", 0, 1, 0.0), trace("w1", 1, 2, 0.0, 5.0, -4.0)]) == [0.0, 0.0]


def test_workers_without_a_common_step_keep_their_times() -> None:
    traces = [trace("w0", 0, 1, 0.0), trace("w1", 1, 2, 500.0, steps=0)]
    assert offsets(traces) == [0.0, 0.0] and merged(traces)["elastane"]["steps"] == []
    assert merged([]) == {
        "displayTimeUnit": "ms",
        "traceEvents": [],
        "elastane": {"steps": [], "workers": {}, "clock_offsets_us": {}},
    }


def test_each_workers_processes_and_flows_are_its_own() -> None:
    document = merged([trace("w0", 0, 1, 0.0), trace("w1", 1, 3, 0.0), trace("w2", 0, 0, 0.0)])
    events = document["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["w0, EST 0: 7", "w1, ESTs 1-2: 7", "w2: 7"]
    assert sorted({event["pid"] for event in events}) == [1, 2, 3]
    assert [event["id"] for event in events if "id" in event] == ["0:1", "1:1", "2:1"]
    order = [event["args"]["sort_index"] for event in events if event["name"] == "process_sort_index"]
    assert order == [0, 1, 2]
    assert document["elastane"]["steps"] == [0, 1, 2]


def test_only_whole_spans_are_marks() -> None:
    assert marks(trace("w0", 0, 1, 0.0).document) == {0: 0.0, 1: 100.0, 2: 200.0}
