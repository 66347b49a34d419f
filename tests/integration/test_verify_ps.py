"""`elastane verify --ps` with real processes: a script is proven, one that depends on its worker is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from integration.ps_runs import SCRIPT
from slow import further, slow


def verify(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Verify a script of 16 tasks. arguments: options, --, arguments of the script."""
    at = arguments.index("--")
    command = [sys.executable, "-m", "elastane_cli", "verify", "--json", "--ps", "1", *arguments[:at]]
    command += [str(SCRIPT), "--out", str(folder), "--model", "deep", "--tasks", "16", *arguments[at + 1 :]]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ELASTANE_")}
    done = subprocess.run(command, capture_output=True, text=True, env=inherited, cwd=folder)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@slow
def test_one_worker_has_the_bits_of_the_script_alone_whatever_parameter_servers_do(tmp_path: Path) -> None:
    code, found = verify(tmp_path, "--kills", "1", "--seed", "5", "--")
    (run,) = found["runs"]
    assert code == 0 and found["equal"] and not run["differing"], found
    assert [act.partition(" ")[2].split()[-1] for act in run["acts"]] == ["joins", "killed", "drained"]


@further  # test_ps_replay finds another script, too
def test_a_script_that_depends_on_its_worker_is_found(tmp_path: Path) -> None:
    code, found = verify(tmp_path, "--kills", "0", "--", "--worker-scale", "1.5")
    assert code == 1 and not found["equal"] and found["runs"][0]["differing"]


@further  # test_ps_replay compares such runs
def test_several_workers_are_compared_with_the_same_run_again(tmp_path: Path) -> None:
    code, found = verify(
        tmp_path, "--workers", "2", "--kills", "1", "--", "--busy-seconds", "0.2", "--epochs", "2"
    )
    assert code == 0 and found["equal"] and found["runs"][0]["acts"], found
