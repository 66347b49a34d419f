"""`elastane launch`: a stock gloo script on hosts that come and go, by a discovery script and a template."""

from __future__ import annotations

import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from test_agent import Run

SCRIPT = Path(__file__).parent / "scripts" / "black_box.py"
#: The same without torch, whose import takes longer than all that happens here.
QUICK_SCRIPT = SCRIPT.with_name("sums_by_sockets.py")
# Other hosts are other addresses of loopback, and the remote shell is one here.
TEMPLATE = "env FAKE_HOST={host} sh -c {command}"


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(*options: str, script: Path = SCRIPT) -> Run:
        run = Run("--grace", "10", *options, str(script), str(tmp_path), command="launch")
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.close()


@pytest.fixture
def hosts(tmp_path: Path) -> Callable[[str], str]:
    """Writes what the discovery script prints from now on; returns the script."""
    script, found = tmp_path / "hosts.sh", tmp_path / "hosts"
    script.write_text(f"#!/bin/sh\nexec cat {found}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def change(text: str) -> str:
        fresh = tmp_path / "hosts.new"
        fresh.write_text(text)
        fresh.replace(found)
        return str(script)

    return change


def lives(folder: Path) -> dict[int, list[tuple[int, int, int, str]]]:
    """By round: rank, world size, sum of ranks, and host of each process that has begun."""
    found: dict[int, list[tuple[int, int, int, str]]] = {}
    log = folder / "log"
    for line in log.read_text().splitlines() if log.exists() else []:
        life, rank, size, total, host = line.split()
        found.setdefault(int(life), []).append((int(rank), int(size), int(total), host))
    return {life: sorted(ranks) for life, ranks in found.items()}


def test_hosts_come_and_go(launch: Callable[..., Run], hosts: Callable[[str], str], tmp_path: Path) -> None:
    script = hosts("127.0.0.2:1\n127.0.0.3:1\n")
    run = launch(
        *("--workers", "2:3", "--hosts", script, "--hosts-interval", "0.1", "--settle", "0.3"),
        *("--remote", TEMPLATE, "--max-restarts", "3"),
        script=QUICK_SCRIPT,
    )
    wait_for_life(run, tmp_path, 0, 2)
    hosts("127.0.0.2:1\n127.0.0.3:2\n")
    wait_for_life(run, tmp_path, 1, 3)
    hosts("127.0.0.3:2\n")
    wait_for_life(run, tmp_path, 2, 2)
    (tmp_path / "stop").touch()
    assert run.end() == 0, run.said()
    found = lives(tmp_path)
    assert found[0] == [(0, 2, 1, "127.0.0.2"), (1, 2, 1, "127.0.0.3")]
    assert found[1] == [(0, 3, 3, "127.0.0.2"), (1, 3, 3, "127.0.0.3"), (2, 3, 3, "127.0.0.3")]
    assert found[2] == [(0, 2, 1, "127.0.0.3"), (1, 2, 1, "127.0.0.3")]


def test_a_killed_process_starts_all_again_and_a_signal_ends_them(
    launch: Callable[..., Run], tmp_path: Path
) -> None:
    run = launch("--workers", "2")
    wait_for_life(run, tmp_path, 0, 2)
    victim = run.running(str(SCRIPT))[0]
    victim.send_signal(signal.SIGKILL)
    wait_for_life(run, tmp_path, 1, 2)
    processes = run.descendants()
    assert len(processes) >= 2
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.said()
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    assert [len(ranks) for ranks in lives(tmp_path).values()] == [2, 2]


def test_a_launch_under_nohup_outlives_its_terminal(launch: Callable[..., Run], tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which the launch inherits, as from nohup
    try:
        run = launch("--workers", "1", script=QUICK_SCRIPT)
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for_life(run, tmp_path, 0, 1)
    run.signal(signal.SIGHUP)
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.said()
    assert "SIGTERM" in run.said() and "SIGHUP" not in run.said()


def test_bad_input_is_refused_before_anything_starts(
    launch: Callable[..., Run], hosts: Callable[[str], str], tmp_path: Path
) -> None:
    script = hosts("-oProxyCommand=touch pwned:1\n")
    assert launch("--hosts", script).end() == 3
    assert launch("--remote", "ssh {host}").end() == 3
    assert launch("--hosts", str(tmp_path / "none")).end() == 2
    assert launch("--workers", "0").end() == 2
    assert not (tmp_path / "log").exists()


def wait_for_life(run: Run, folder: Path, life: int, count: int) -> None:
    """Until so many processes of that round have summed."""
    run.until("round_started")
    while len(lives(folder).get(life, [])) < count:
        run.wait(0.05)
