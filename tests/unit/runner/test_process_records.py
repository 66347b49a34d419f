"""Records of ranks are whole or not there; a process is known by its pid and start time, not by its pid."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastane_runner.process_records import (
    MARK,
    identity_of,
    lock,
    marked,
    open_process,
    parents,
    read_identity,
    read_record,
    write_record,
)


@pytest.fixture
def child() -> subprocess.Popen[bytes]:
    """A process that lives until its stdin is closed; its name has what a parser may stumble over."""
    code = "import sys, ctypes; ctypes.CDLL(None).prctl(15, b') S 1 (x'); print(flush=True); sys.stdin.read()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, MARK: f"token-{os.getpid()}/3"},
    )


def end(child: subprocess.Popen[bytes]) -> None:
    child.communicate()


def test_a_process_is_known_by_pid_and_start_time(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None and child.stdout.readline()
    identity = identity_of(child.pid)
    assert identity is not None and identity.pid == child.pid
    handle = open_process(identity)
    assert handle is not None
    os.close(handle)
    for other in (
        identity._replace(started=identity.started + 1),
        identity._replace(boot="another"),
        identity._replace(pid=os.getpid()),
    ):
        assert open_process(other) is None
    assert parents()[child.pid] == os.getpid()
    end(child)
    assert open_process(identity) is None and identity_of(child.pid) is None


def test_processes_are_found_by_their_whole_mark(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None and child.stdout.readline()
    assert marked(f"token-{os.getpid()}/3") == [child.pid]
    assert marked(f"token-{os.getpid()}/") == [] == marked("")
    end(child)
    assert marked(f"token-{os.getpid()}/3") == []


def test_a_record_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert read_record(path) is None
    write_record(path, {"a": 1})
    with pytest.raises(TypeError):
        write_record(path, {"a": object()})
    assert read_record(path) == {"a": 1}
    for damaged in (b"", b'{"a"', b"[1]", b"\xff"):
        path.write_bytes(damaged)
        assert read_record(path) is None


def test_an_identity_goes_through_a_record(tmp_path: Path) -> None:
    identity = identity_of(os.getpid())
    write_record(tmp_path / "a.json", {"shim": identity})
    assert read_identity(read_record(tmp_path / "a.json"), "shim") == identity
    assert read_identity(None, "shim") is None
    assert read_identity({"shim": [1]}, "shim") is None


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    held = lock(tmp_path)
    assert held is not None and lock(tmp_path) is None
    os.close(held)
    again = lock(tmp_path)
    assert again is not None
    os.close(again)
