"""The embedded master's process, with a stand-in for its program."""

from __future__ import annotations

import errno
import os
import queue
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from elastane_agent.supervisor.first_checks import room_fault
from elastane_agent.supervisor.master_process import EmbeddedMaster, MasterStartError
from elastane_common.processes.child import ExitStatus

WAIT_SECONDS = 30.0

# Listens, writes the port file, keeps a "store" that outlives it and holds the lock, as the real one does.
PROGRAM = """
import argparse, fcntl, os, pathlib, signal, socket, subprocess, sys
parser = argparse.ArgumentParser()
for name in ("--listen", "--state-dir", "--port-file", "--fail"):
    parser.add_argument(name, default="")
arguments = parser.parse_args()
print("starting", arguments.listen)
if arguments.fail:
    sys.exit("it fails: " + arguments.fail)
host, _, port = arguments.listen.rpartition(":")
listener = socket.create_server((host, int(port)))
store = pathlib.Path(arguments.state_dir) / "store"
store.mkdir(exist_ok=True)
lock = os.open(store / "lock", os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    pass
else:
    server = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.pause()"], pass_fds=(lock,), start_new_session=True)
    (store / "server.pid").write_text(str(server.pid))
os.close(lock)
def stop(*_):
    os.kill(int((store / "server.pid").read_text()), 9)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
temporary = pathlib.Path(arguments.port_file + ".new")
temporary.write_text(str(listener.getsockname()[1]) + "\\n")
temporary.rename(arguments.port_file)
while True:
    signal.pause()
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "program" / "elastane_master"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


def store_pid(master: EmbeddedMaster) -> int:
    return int((master.state_dir / "store" / "server.pid").read_text())


def wait_gone(pid: int) -> None:
    try:
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            process.wait(WAIT_SECONDS)
    except psutil.NoSuchProcess:
        pass


def test_starts_again_on_the_same_port_and_state(tmp_path: Path) -> None:
    ends: queue.SimpleQueue[ExitStatus] = queue.SimpleQueue()
    master = EmbeddedMaster(tmp_path / "state", on_exit=ends.put)
    address = master.start()
    first, store = master.pid, store_pid(master)
    assert address.startswith("127.0.0.1:") and master.running
    master.sigkill()
    assert ends.get(timeout=WAIT_SECONDS).signal_name == "SIGKILL"
    assert master.start() == address and master.pid != first
    assert store_pid(master) == store and psutil.pid_exists(store)
    master.stop()
    assert not master.running
    wait_gone(store)
    assert ends.empty(), "an end that was asked for is not told"
    master.stop()


def test_stop_ends_the_store_that_a_killed_master_left(tmp_path: Path) -> None:
    master = EmbeddedMaster(tmp_path / "state")
    master.start()
    store = store_pid(master)
    master.sigkill()
    master.wait(WAIT_SECONDS)
    assert psutil.Process(store).is_running()
    master.stop()
    wait_gone(store)


def test_a_foreign_process_with_the_stores_number_is_left_alone(tmp_path: Path) -> None:
    master = EmbeddedMaster(tmp_path / "state")
    master.start()
    master.stop()
    wait_gone(store_pid(master))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (master.state_dir / "store" / "server.pid").write_text(str(stranger.pid))
        master.stop()
        assert stranger.poll() is None
        stranger.communicate(b"\n")
        assert stranger.returncode == 0


def test_a_start_that_fails_says_what_the_log_says(tmp_path: Path) -> None:
    master = EmbeddedMaster(tmp_path / "state", arguments=["--fail", "no store"])
    with pytest.raises(MasterStartError, match="it fails: no store") as caught:
        master.start()
    assert "exit code 1" in str(caught.value) and "master.log" in caught.value.hint
    assert not master.running
    master.stop()


def test_the_master_s_own_last_word_is_the_whole_error(tmp_path: Path) -> None:
    master = EmbeddedMaster(
        tmp_path / "state", arguments=["--fail", "old\nelastane master: it is full [ELA215]"]
    )
    with pytest.raises(MasterStartError) as caught:
        master.start()
    assert str(caught.value) == "the embedded master cannot start: it is full [ELA215]"
    master._arguments = ["--fail", "another reason"]
    with pytest.raises(MasterStartError, match="it fails: another reason") as caught:
        master.start()
    assert "it is full" not in str(caught.value), "that was said by the start before"
    master.stop()


def test_a_full_disk_is_named_where_the_log_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    master = EmbeddedMaster(tmp_path / "state", arguments=["--fail", "x"])
    monkeypatch.setattr(master, "log_tail", lambda: "(nothing logged)")
    assert room_fault(tmp_path) == ""
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(MasterStartError, match="No space left on device") as caught:
        master.start()
    assert str(tmp_path / "state") in str(caught.value) and caught.value.log is None
    master.stop()


def test_a_stale_port_file_is_not_believed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "port").write_text("1\n")
    master = EmbeddedMaster(state)
    try:
        assert master.start() != "127.0.0.1:1"
    finally:
        master.stop()


def started_by(code: str, tmp_path: Path) -> subprocess.Popen[str]:
    roots = os.pathsep.join(str(Path(__file__).parents[3] / name) for name in ("common", "worker"))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "state")],
        env={**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{roots}"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_it_and_its_store_end_when_their_starter_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, sys, pathlib\n"
        "from elastane_agent.supervisor.master_process import EmbeddedMaster\n"
        "master = EmbeddedMaster(pathlib.Path(sys.argv[1]))\n"
        "master.start()\n"
        "print(master.pid, flush=True)\n"
        "signal.pause()\n"
    )
    with started_by(code, tmp_path) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        store = int((tmp_path / "state" / "store" / "server.pid").read_text())
        starter.kill()
    wait_gone(pid)
    wait_gone(store)


def test_the_store_of_a_dead_master_ends_when_the_starter_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, sys, pathlib\n"
        "from elastane_agent.supervisor.master_process import EmbeddedMaster\n"
        "master = EmbeddedMaster(pathlib.Path(sys.argv[1]))\n"
        "master.start()\n"
        "master.sigkill()\n"
        "master.wait()\n"
        "print('dead', flush=True)\n"
        "signal.pause()\n"
    )
    with started_by(code, tmp_path) as starter:
        assert starter.stdout is not None and starter.stdout.readline() == "dead\n"
        store = int((tmp_path / "state" / "store" / "server.pid").read_text())
        assert psutil.Process(store).is_running()
        starter.kill()
    wait_gone(store)
