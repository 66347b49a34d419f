"""The benchmark of the training service: its rows, and that it leaves no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from harness import Report
from training_service import PEER, Figures, queue_rows
from training_services import end_all, marked, seconds_until_gone, timed_run, written

IGNORES_SIGTERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


def figures(**changed: list[float]) -> Figures:
    """Figures of a run in which every target is met; names have _ for spaces."""
    found = Figures()
    cases = {
        "rate_1": [800.0, 900.0],
        "rate_8": [2100.0, 2200.0],
        "p99_1": [2.0],
        "p99_8": [8.0],
        "stream_rate_1": [1800.0],
        "stream_rate_8": [3000.0],
        "stream_p99_8": [50.0],
        "sweep_rate_1": [2500.0],
        "sweep_rate_8": [3700.0],
        "sweep_p99_8": [40.0],
        "echo_1": [1700.0, 1800.0],
        "echo_8": [4000.0, 4100.0],
        "get": [3.0],
        "restart_False": [1.5],
        "restart_True": [1.6],
        "kept_False": [100.0],
        "kept_True": [100.0],
        "watched": [800.0],
        "unwatched": [820.0],
        "ray_rate": [30.0, 20.0],
        "ray_queued": [150.0, 100.0],
        "ray_status": [25.0],
        "ray_restart": [10.0],
        "ray_kept": [0.0],
    }
    found.values = {name.replace("_", " "): values for name, values in {**cases, **changed}.items()}
    return found


def test_each_row_has_a_name_of_its_own_and_targets_are_bounds_on_our_figures() -> None:
    rows = queue_rows(figures())
    assert Report("training_service", "", rows).as_dict()["rows"]
    assert all(row.met is not False for row in rows)
    assert {row.aim() for row in rows if row.peer_name == PEER} == {">= 500 runs/s"}


@pytest.mark.parametrize(
    ("changed", "aim"),
    [
        ({"rate_1": [499.0]}, ">= 500 runs/s"),
        ({"rate_8": [1999.0]}, ">= 2,000 runs/s"),
        ({"stream_rate_8": [1999.0]}, ">= 2,000 runs/s"),
        ({"sweep_rate_8": [1999.0]}, ">= 2,000 runs/s"),
        ({"get": [10.1]}, "<= 10 ms"),
        ({"restart_False": [2.1]}, "<= 2 s"),
        ({"kept_True": [99.9]}, ">= 100 %"),
    ],
)
def test_a_missed_target_says_how_busy_the_machine_was(changed: dict[str, list[float]], aim: str) -> None:
    (missed,) = [row for row in queue_rows(figures(**changed)) if row.met is False]
    assert missed.aim() == aim and "bare echo answered 1,750 [1,700-1,800] calls/s" in missed.note


def test_all_processes_with_a_mark_are_ended_in_whatever_session_they_are(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    script = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {IGNORES_SIGTERM!r}]," \
        " start_new_session=True); " + IGNORES_SIGTERM  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "MARK": mark}) as process:
        deadline = time.monotonic() + 30
        while len(pids := marked(f"MARK={mark}".encode(), "environ")) < 2:
            assert time.monotonic() < deadline, pids
        end_all(f"MARK={mark}".encode(), "environ")
        assert process.wait(30) == -9
    assert seconds_until_gone(pids, time.monotonic(), 30.0) < 30.0


def test_the_end_of_processes_is_waited_for_and_what_is_left_is_said(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    with subprocess.Popen(timed_run("stubborn", path), start_new_session=True) as process:
        pids = [int(pid) for pid in written(path)]
        process.terminate()
        with pytest.raises(TimeoutError, match="2 processes are left"):
            seconds_until_gone(pids, time.monotonic(), 0.2)
        os.killpg(process.pid, 9)
        assert seconds_until_gone(pids, time.monotonic(), 30.0) < 30.0
