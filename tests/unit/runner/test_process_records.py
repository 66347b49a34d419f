"""Records of ranks are whole or not there; a process is known by its pid and start time, not by its pid."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elastane_runner.process_records import (
    MARK,
    Marked,
    has_mark,
    identity_of,
    lock,
    open_process,
    parents,
    read_identity,
    read_record,
    survey,
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
    assert survey(f"token-{os.getpid()}/3").found == [child.pid]
    assert survey(f"token-{os.getpid()}/").found == [] == survey("").found
    end(child)
    assert survey(f"token-{os.getpid()}/3").found == []


def test_a_process_is_known_by_its_mark_while_it_executes_another_program() -> None:
    """Its variables are not there for a moment, in each exec."""
    again = 'exec sh -c "$0" "$0"'
    busy = subprocess.Popen(["sh", "-c", again, again], env={**os.environ, MARK: "busy/0"})
    try:
        looks = {has_mark(busy.pid, "busy/0") for _ in range(5000)}
    finally:
        busy.kill()
        busy.wait()
    assert Marked.YES in looks and looks <= {Marked.YES, Marked.UNKNOWN}


KERNEL_THREAD = 0x208040


def add(
    proc: Path, pid: int, variables: bytes = b"", *, state: str = "R", flags: int = 0, code: int = 0
) -> None:
    """Add a process to a /proc; without variables and code it is in an exec."""
    fields = [state, *"12345", str(flags), *["7"] * 17, str(code), *["7"] * 25]
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} (sh) {' '.join(fields)}\n")
    (proc / str(pid) / "environ").write_bytes(variables)


@pytest.mark.parametrize(
    ("doubtful", "is_over"),
    [
        (lambda proc: add(proc, 13), False),
        (lambda proc: add(proc, 13, state="Z"), True),
        (lambda proc: add(proc, 13, flags=KERNEL_THREAD), True),
        (lambda proc: (proc / "13").mkdir(), True),
    ],
    ids=["in an exec", "zombie", "of the kernel", "gone since it was listed"],
)
def test_a_look_is_whole_once_every_process_has_shown_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doubtful: Callable[[Path], None], is_over: bool
) -> None:
    monkeypatch.setattr("elastane_runner.process_records._PROC", tmp_path)
    mark = f"{MARK}=m/0".encode()
    add(tmp_path, 10, b"A=1\0" + mark)
    add(tmp_path, 11, b"A=1\0" + mark + b"1\0")
    add(tmp_path, 12, code=4096)  # it has none
    assert survey("m/0") == ([10], frozenset({11, 12}), True)
    doubtful(tmp_path)
    look = survey("m/0", frozenset({11, 12}))
    assert (look.found, look.is_whole, 13 in look.others) == ([10], False, is_over)
    assert survey("m/0", look.others).is_whole is is_over, "it had ended before all were listed again"


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
