"""`elastane demo service` as a user runs it: every line of its table says yes, and nothing of it is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil

import patience
from slow import slow

DEMO = [sys.executable, "-m", "elastane_cli", "demo", "service", "--epochs", "6"]


def left(folder: Path) -> list[psutil.Process]:
    """Processes whose command line names the folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or ()):
            found.append(process)
    return found


@slow
def test_every_line_says_yes(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [*DEMO, "--json", str(result), "--keep", str(tmp_path / "kept")]
    done = patience.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every line says yes" in done.stdout and "NO" not in done.stdout
    found = json.loads(result.read_text())
    weights = {name: run["weights_sha256"] for name, run in found["runs"].items()}
    assert found["ok"] and weights["digits, elastic"] == weights["digits, stock DDP"] != ""
    assert found["runs"]["digits, elastic"]["metrics"]["loss"] > 0
    assert not left(tmp_path / "kept")


@slow
def test_ctrl_c_ends_all_that_it_has_started(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with subprocess.Popen([*DEMO, "--keep", str(kept)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "running" in line:
                break
        assert left(kept)
        process.send_signal(signal.SIGINT)
        assert patience.wait(process.wait, 100) == 130
    assert not left(kept)
