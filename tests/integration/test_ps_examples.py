"""The examples with parameter servers reach their lines while parameter servers and workers die."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from elastane_common.client import MasterClient
from integration.test_agent import Run
from integration.test_ps_runs import address
from slow import further

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES = {
    "digits_tokens.py": r"accuracy (0\.\d+)",
    "wide_deep.py": r"AUC 0\.\d+, (\d\.\d+) of the best possible",
}
LEAST = {"digits_tokens.py": 0.95, "wide_deep.py": 0.98}


@further  # test_ps_training kills the same processes, and knows what each weight must be
@pytest.mark.parametrize("example", LINES)
def test_an_example_reaches_its_line_although_processes_die(example: str) -> None:
    options = ("--ests", "1", "--ps", "2", "--workers", "1:2", "--ps-return", "0.2", "--ps-snapshot", "0.5")
    run = Run(*options, str(EXAMPLES / example))
    try:
        with MasterClient(address(run), timeout_seconds=60) as client:
            job = Path(example).stem
            run.until("worker_started", worker="w1")
            for part, what, number in ((0.2, "ps", 0), (0.4, "worker", 0), (0.6, "ps", 1)):
                _until_done(client, job, part)
                os.kill(run.of(f"{what}_started")[number]["pid"], signal.SIGKILL)
                run.until(f"{what}_died")
        assert run.end() == 0, run.said()
        printed = [re.match(LINES[example], str(line["line"])) for line in run.of("output")]
        found = [float(match[1]) for match in printed if match]
        assert found and min(found) >= LEAST[example], run.said()
    finally:
        run.close()


def _until_done(client: MasterClient, job: str, part: float) -> None:
    while not any(
        each.epoch + each.done / each.total >= part * each.epochs for each in client.get_progress(job)
    ):
        threading.Event().wait(0.05)
