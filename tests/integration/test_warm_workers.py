"""`elastane run --warm` with real processes."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

from integration.test_agent import Run
from slow import slow

SCRIPT = Path(__file__).parent / "scripts" / "gated_training.py"


def trained(run: Run) -> str:
    """The sha256 that the script printed."""
    assert run.end() == 0, run.said()
    [line] = [line["line"] for line in run.lines if str(line.get("line")).startswith("weights ")]
    return str(line).split()[-1]


@slow
def test_a_killed_worker_is_replaced_by_a_preloaded_one_with_the_same_bits(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run = Run("--ests", "2", "--workers", "2", "--warm", "1", str(SCRIPT), str(lock))
        warm = run.until("warm_worker_started")["pid"]
        [cold] = [line["pid"] for line in run.of("worker_started") if line["worker"] == "w1"]
        os.kill(cold, signal.SIGKILL)
        replaced = run.until("worker_started", worker="w1")
        assert (replaced["pid"], replaced["preloaded"]) == (warm, True)
        # It has joined: the next one is preloaded. That one dies before it is needed.
        last = run.until("warm_worker_started")["pid"]
        os.kill(last, signal.SIGKILL)
        assert "0 preloaded workers are kept" in run.until("warm_worker_lost")["message"]
    bits = trained(run)
    assert bits == trained(Run("--ests", "2", "--workers", "1", str(SCRIPT), str(lock)))
