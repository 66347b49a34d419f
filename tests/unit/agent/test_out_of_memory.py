"""Evidence of a kill for memory, from the kernel's counters."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from elastane_cli.chaos.machine import MemoryCage
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.processes.out_of_memory import LOOK_SECONDS, OomCounter

V1 = "9:name=systemd:/\n4:memory:/jobs/a\n0::/\n"
V2 = "0::/jobs/a\n"


class Clock:
    """A clock that each look finds a while later."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


def counter(tmp_path: Path, lines: str) -> OomCounter:
    (tmp_path / "7").mkdir(exist_ok=True)
    (tmp_path / "7" / "cgroup").write_text(lines)
    return OomCounter(7, proc=tmp_path, cgroups=tmp_path / "cg", clock=Clock())


def write(tmp_path: Path, file: str, kills: int) -> None:
    path = tmp_path / "cg" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"under_oom 0\noom_kill {kills}\n")


@pytest.mark.parametrize(
    ("lines", "file"),
    [
        (V1, "memory/jobs/a/memory.oom_control"),
        (V1, "memory/memory.oom_control"),  # in a container, whose own cgroup is the root
        (V2, "jobs/a/memory.events"),
        (V2, "memory.events"),
    ],
)
def test_only_a_count_that_has_risen_is_evidence(tmp_path: Path, lines: str, file: str) -> None:
    write(tmp_path, file, 2)
    watched = counter(tmp_path, lines)
    assert watched.evidence() == ""
    write(tmp_path, file, 3)
    assert "rose from 2 to 3" in watched.evidence()


def test_a_look_just_after_the_end_does_not_hide_the_kill(tmp_path: Path) -> None:
    write(tmp_path, "jobs/a/memory.events", 2)
    watched = counter(tmp_path, V2)
    watched.look()
    write(tmp_path, "jobs/a/memory.events", 3)
    watched.look()
    assert "rose from 2 to 3" in watched.evidence()


def test_the_kill_of_another_process_in_the_same_cgroup_is_no_evidence_later(tmp_path: Path) -> None:
    write(tmp_path, "jobs/a/memory.events", 2)
    watched = counter(tmp_path, V2)
    write(tmp_path, "jobs/a/memory.events", 3)  # of a DataLoader's worker, say
    watched.look()
    watched.look()
    assert watched.evidence() == ""


def test_a_process_that_was_moved_to_another_cgroup(tmp_path: Path) -> None:
    write(tmp_path, "jobs/a/memory.events", 5)
    write(tmp_path, "jobs/b/memory.events", 1)
    watched = counter(tmp_path, V2)
    (tmp_path / "7" / "cgroup").write_text("0::/jobs/b\n")
    watched.look()
    assert watched.evidence() == "", "kills of before are not its own"
    write(tmp_path, "jobs/b/memory.events", 2)
    assert watched.evidence() == "oom_kill of its cgroup /jobs/b rose from 1 to 2"


@pytest.mark.parametrize("lines", ["", "nonsense", "0::/elsewhere\n"])
def test_without_a_counter_there_is_no_evidence(tmp_path: Path, lines: str) -> None:
    assert counter(tmp_path, lines).evidence() == ""
    assert OomCounter(99, proc=tmp_path, cgroups=tmp_path).evidence() == ""


def ended(code: str, on_line: Callable[[str], None] = lambda line: None) -> ExitStatus:
    child = ChildProcess("w0", [sys.executable, "-c", code], on_line=lambda name, stream, line: on_line(line))
    child.start()
    status = child.wait(60)
    assert status is not None
    return status


def test_a_kill_by_somebody_else_is_none() -> None:
    status = ended("import os; os.kill(os.getpid(), 9)")
    assert (status.returncode, status.out_of_memory) == (-signal.SIGKILL, "")
    assert str(status) == "ended by SIGKILL"


def test_a_process_that_the_kernel_kills_for_its_memory(tmp_path: Path) -> None:
    cage = MemoryCage(f"elastane-test-{uuid.uuid4().hex[:8]}", 64)
    if cage.missing:
        pytest.skip(cage.missing)
    ready = tmp_path / "ready"
    os.mkfifo(ready)

    def seen(line: str) -> None:
        if line.isdigit():
            cage.put_in(int(line))
        else:  # its cgroup was looked at before this line was passed on
            ready.write_text("go")

    script = f"""
import os, time
print(os.getpid(), flush=True)
while "elastane-test-" not in open("/proc/self/cgroup").read():
    time.sleep(0.01)
time.sleep({LOOK_SECONDS})
print("moved", flush=True)
open({str(ready)!r}).read()
bytearray(b"x") * (512 << 20)
"""
    try:
        status = ended(script, seen)
    finally:
        cage.close()
    assert status.returncode == -signal.SIGKILL
    assert "rose from 0 to 1" in status.out_of_memory
    assert str(status) == "ended by SIGKILL, out of memory"
