"""The fork server of the tests: its children are like freshly started processes, and end like them."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.processes.child import ChildProcess, ExitStatus
from integration.forkserver import ForkedProcess, ForkServers
from slow import further

SCRIPTS = Path(__file__).parent / "scripts"
PROBE = str(SCRIPTS / "probe_process.py")
#: Further, all of them: tests of the tests, whose other processes are started by it.
pytestmark = [pytest.mark.usefixtures("fresh_processes"), further]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PROBE": "here"}


def run_probe(launch: Callable[..., ChildProcess], folder: Path, what: str) -> tuple[Any, ...]:
    """(what it says of itself, its further stdout, its stderr, how it ended)"""
    lines: list[tuple[str, str]] = []
    process = launch(
        "probe",
        [sys.executable, PROBE, what],
        environment=ENVIRONMENT,
        directory=folder,
        on_line=lambda _, stream, text: lines.append((stream, text)),
    )
    process.start()
    status = process.wait(60)
    out = [text for stream, text in lines if stream == "stdout"]
    return json.loads(out[0]), out[1:], [text for stream, text in lines if stream == "stderr"], status


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("exit", 7),
        ("raise", 1),
        ("kill", -signal.SIGKILL),
    ],
)
def test_is_like_a_fresh_process(servers: ForkServers, tmp_path: Path, what: str, status: int) -> None:
    forked, fresh = (run_probe(launch, tmp_path, what) for launch in (servers.launch, ChildProcess))
    for seen, more, errors, ended in (forked, fresh):
        assert ended == ExitStatus(status)
        assert more == []
        assert errors[0] == "to stderr"
        assert (errors[-1] == "RuntimeError: as asked") == (what == "raise")
        assert seen["arguments"] == [PROBE, what]
        assert (seen["name"], seen["module"], seen["group"]) == ("__main__", True, True)
        assert (seen["path"], seen["directory"]) == (str(SCRIPTS), str(tmp_path))
        assert seen["variable"] == "here"


def test_two_children_differ_where_two_processes_do(servers: ForkServers, tmp_path: Path) -> None:
    first, second = (run_probe(servers.launch, tmp_path, "end")[0] for _ in range(2))
    for unseeded in ("python", "numpy", "torch"):
        assert first[unseeded] != second[unseeded]
    assert first["hash"] != second["hash"]  # they are of two servers


def test_output_goes_to_a_log(servers: ForkServers, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = servers.launch("probe", [sys.executable, PROBE, "end"], environment=ENVIRONMENT, log=log)
    process.start()
    assert process.wait(60) == ExitStatus(0)
    assert log.read_text().splitlines()[1] == "to stderr"


def started_with_child(launch: Callable[..., ChildProcess]) -> tuple[ChildProcess, psutil.Process]:
    lines: queue.Queue[str] = queue.Queue()
    process = launch(
        "probe",
        [sys.executable, PROBE, "child"],
        environment=ENVIRONMENT,
        on_line=lambda _, stream, text: lines.put(text) if stream == "stdout" else None,
    )
    process.start()
    lines.get(timeout=60)
    return process, psutil.Process(int(lines.get(timeout=60)))


def test_kill_group_ends_what_it_started(servers: ForkServers) -> None:
    process, grandchild = started_with_child(servers.launch)
    assert isinstance(process, ForkedProcess)
    process.kill_group()
    assert process.wait(60) == ExitStatus(-signal.SIGKILL)
    with pytest.raises(psutil.NoSuchProcess):
        grandchild.wait(60)
        psutil.Process(grandchild.pid)


def test_signal_reaches_the_child_alone(servers: ForkServers) -> None:
    process, _ = started_with_child(servers.launch)
    process.signal(signal.SIGTERM)
    assert process.wait(60) == ExitStatus(-signal.SIGTERM)


def test_nothing_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    """SIGKILL of the test run: its servers end, and their children with them."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from integration.test_forkserver import *\n"
        "servers = ForkServers(); process, _ = started_with_child(servers.launch)\n"
        "print(process.pid, flush=True); signal.pause()\n"
    )
    outer = subprocess.Popen(
        [sys.executable, "-c", program, str(Path(__file__).parents[1])], stdout=subprocess.PIPE, text=True
    )
    assert outer.stdout is not None
    child = psutil.Process(int(outer.stdout.readline()))
    server = child.parent()
    assert server is not None
    outer.kill()
    outer.wait()
    psutil.wait_procs([server, child], timeout=60)
    assert not psutil.pid_exists(server.pid) or server.status() == psutil.STATUS_ZOMBIE
    assert not psutil.pid_exists(child.pid) or child.status() == psutil.STATUS_ZOMBIE


def test_training_has_the_same_bits(servers: ForkServers, tmp_path: Path) -> None:
    script = [str(SCRIPTS / "train_matrix.py"), "--size", "40", "--epochs", "1", "--data-workers", "1"]
    results = []
    for name, launch in (("fresh", ChildProcess), ("forked", servers.launch)):
        reports = run_stock_ddp(tmp_path / name, script, processes=2, launch=launch)
        results.append([(reports / f"ddp-{rank}.json").read_text() for rank in range(2)])
    assert results[0] == results[1]
