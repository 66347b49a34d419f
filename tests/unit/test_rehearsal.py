"""Rehearsals: gates hold real processes, kills are real, and nothing happens without the variable."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import patience
from elastane.runtime.rehearsal import VARIABLE, Gate, Rehearsal, give_order
from elastane_common.errors import RefusedError

# Says where it is before each point, so that the test knows how far it came.
WORKER = """
import os
import sys
from pathlib import Path
from elastane.runtime import probes, rehearsal
lost = Path(sys.argv[1])
print("started", flush=True)
rehearsal.install()
print("entered", flush=True)
for step in range(4):
    prepared = "ahead" if os.environ.get("GOES_AHEAD") and step < 3 else "prepared"
    for point in ("forward", "all_reduce", prepared, "applied"):
        print(point, step, flush=True)
        if point == "all_reduce":
            probes.all_reducing(step, lambda: lost.exists())
        else:
            probes.reached(point, step)
print("end", flush=True)
"""


def start(rehearsal: Rehearsal, lost: Path = Path("/nowhere")) -> subprocess.Popen[str]:
    """lost: a file that is there when the worker's ring is lost."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **rehearsal.environment()}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(lost)], env=environment, stdout=subprocess.PIPE, text=True
    )


def read_until(process: subprocess.Popen[str], line: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for text in process.stdout:
        lines.append(text.rstrip("\n"))
        if lines[-1] == line:
            return lines
    raise AssertionError(f"{line!r} never came: {lines}")


@pytest.mark.parametrize("point", ["forward", "all_reduce", "prepared", "applied"])
def test_a_kill_is_at_its_point_and_step(point: str) -> None:
    process = start(Rehearsal(kill=f"{point}:2"))
    assert patience.communicate(process, 60)[0].splitlines()[-1] == f"{point} 2"
    assert process.returncode == -signal.SIGKILL


def test_a_step_that_is_applied_ahead_is_killed_where_it_would_be_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOES_AHEAD", "1")
    process = start(Rehearsal(kill="prepared:1"))
    assert patience.communicate(process, 60)[0].splitlines()[-1] == "ahead 1"
    assert process.returncode == -signal.SIGKILL


def test_gates_hold_after_the_report_until_they_are_opened(tmp_path: Path) -> None:
    first, third = (Gate(tmp_path / "gates" / str(step)) for step in (1, 3))
    process = start(Rehearsal(gates=str(tmp_path / "gates")))
    read_until(process, "all_reduce 1")
    assert comes_to_wait_at(process.pid, tmp_path / "gates" / "1")
    first.open()
    read_until(process, "all_reduce 3")
    assert comes_to_wait_at(process.pid, tmp_path / "gates" / "3")
    third.open()
    third.open()
    assert patience.communicate(process, 60)[0].splitlines()[-1] == "end"
    assert process.returncode == 0


def test_who_is_held_goes_on_once_its_ring_is_lost(tmp_path: Path) -> None:
    gate, lost = Gate(tmp_path / "gates" / "1"), tmp_path / "lost"
    process = start(Rehearsal(gates=str(tmp_path / "gates")), lost)
    read_until(process, "all_reduce 1")
    assert comes_to_wait_at(process.pid, tmp_path / "gates" / "1")
    lost.touch()
    assert patience.communicate(process, 60)[0].splitlines()[-1] == "end"
    gate.open()


def test_a_newcomer_waits_at_its_gate(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gates" / "w4")
    process = start(Rehearsal(enter=str(tmp_path / "gates" / "w4")))
    read_until(process, "started")
    assert is_waiting_for_a_lock(process.pid)
    gate.open()
    assert patience.communicate(process, 60)[0].splitlines()[0] == "entered"


def test_nothing_is_installed_without_the_variable(tmp_path: Path) -> None:
    assert Rehearsal().environment() == {}
    process = start(Rehearsal())
    assert patience.communicate(process, 60)[0].splitlines()[-1] == "end"


def comes_to_wait_at(pid: int, gate: Path) -> bool:
    """Whether the process comes to open the gate's file, which it closes when it may pass."""
    while (files := Path(f"/proc/{pid}/fd")).exists():
        with contextlib.suppress(FileNotFoundError):
            if any(file.readlink() == gate for file in files.iterdir()):
                return True
        os.sched_yield()
    return False


def is_waiting_for_a_lock(pid: int) -> bool:
    """Whether the process comes to wait for a lock; as the kernel lists it."""
    while Path(f"/proc/{pid}/stat").exists():
        locks = Path("/proc/locks").read_text().splitlines()
        if any("-> FLOCK " in line and f" {pid} " in line for line in locks):
            return True
        os.sched_yield()
    return False


def test_the_variable_there_and_back() -> None:
    rehearsal = Rehearsal("/gates/w1", "/gates", "hand_over:0")
    assert Rehearsal.parse(rehearsal.environment()[VARIABLE]) == rehearsal
    for text in ("", "7", "[]", '{"kill": "lunch:2"}', '{"kill": "forward"}', '{"what": "?"}', "{"):
        with pytest.raises(RefusedError, match=VARIABLE):
            Rehearsal.parse(text)


def test_orders_are_obeyed_while_they_stand(tmp_path: Path) -> None:
    orders = tmp_path / "w1"
    give_order(orders, "hang")
    process = start(Rehearsal(orders=str(orders)))
    read_until(process, "forward 0")
    assert process.poll() is None
    give_order(orders, "slow 0.01")
    assert patience.communicate(process, 60)[0].splitlines()[-1] == "end"
    assert process.returncode == 0


def test_orders_that_do_not_exist_are_none(tmp_path: Path) -> None:
    process = start(Rehearsal(orders=str(tmp_path / "nobody")))
    assert patience.communicate(process, 60)[0].splitlines()[-1] == "end"
