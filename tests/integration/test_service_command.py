"""`elastane service` and `elastane submit` as a user runs them: submitted, killed, taken over, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import patience
from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_proto.v1 import shard_pb2
from slow import slow

ELASTANE = [sys.executable, "-m", "elastane_cli"]
SCRIPT = """
import os, pathlib, sys, time
rank = os.environ["RANK"]
print("rank", rank, "of", os.environ["WORLD_SIZE"], "lr", os.environ["LR"], flush=True)
pathlib.Path(os.environ["SEEN"], f"{rank}-{os.getpid()}").touch()
while not pathlib.Path(os.environ["SEEN"], "go").exists():
    time.sleep(0.02)
print("done", flush=True)
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A service with four slots, and its address."""
    folder = tmp_path / "service"
    command = [*ELASTANE, "service", "--state-dir", str(folder), "--listen", "127.0.0.1:0", "--slots", "4"]
    with (tmp_path / "service.log").open("wb") as log:
        process = subprocess.Popen([*command, "--on-stop", "stop"], stdout=log, stderr=log)
    try:
        address = folder / "address"
        while not address.exists():  # the test's own time limit ends it
            assert process.poll() is None, (tmp_path / "service.log").read_text()
            time.sleep(0.05)
        yield address.read_text().strip(), process
    finally:
        process.terminate()
        patience.wait(process.wait, 60)


def elastane(address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*ELASTANE, arguments[0], "--master", address, *arguments[1:]]
    return patience.run(command, capture_output=True, text=True, timeout=100)


def child_of(process: subprocess.Popen[bytes], words: str) -> psutil.Process:
    [found] = [one for one in psutil.Process(process.pid).children() if words in " ".join(one.cmdline())]
    return found


def run_of(address: str) -> dict[str, object]:
    return dict(json.loads(elastane(address, "status", "1", "--json").stdout))


def wait_for(address: str, state: str, ranks: Path, count: int) -> None:
    while len(list(ranks.glob("[0-9]-*"))) < count or state not in str(run_of(address)["state"]).lower():
        time.sleep(0.1)


def test_a_run_survives_the_death_of_master_and_runner(
    tmp_path: Path, service: tuple[str, subprocess.Popen[bytes]]
) -> None:
    address, process = service
    seen, code = tmp_path / "seen", tmp_path / "code"
    seen.mkdir()
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    options = ["--framework", "pytorch", "--instances", "2", "--model", "m", "--detach"]
    parameters = ["--param", "LR=0.1", "--param", f"SEEN={seen}"]
    submitted = elastane(address, "submit", *options, *parameters, str(code / "train.py"))
    assert submitted.returncode == 0, submitted.stderr
    wait_for(address, "running", seen, 2)
    # Both are looked up first: a killed one has no command line until it is reaped.
    for victim in (child_of(process, "elastane_master"), child_of(process, "elastane_cli runner")):
        os.kill(victim.pid, signal.SIGKILL)
    wait_for(address, "running", seen, 2)
    (seen / "go").touch()
    logs = elastane(address, "logs", "1", "--rank", "1", "--follow")
    assert "rank 1 of 2 lr 0.1" in logs.stdout and "done" in logs.stdout, logs.stderr
    wait_for(address, "succeeded", seen, 2)
    assert len(list(seen.glob("[0-9]-*"))) == 2  # none was started again
    process.send_signal(signal.SIGTERM)
    assert patience.wait(process.wait, 60) == 0
    said = (tmp_path / "service.log").read_text()
    assert said.count("is started again") == 2, "as often as one was killed, and not at the end"


@slow
def test_a_run_with_parameter_servers_ends_in_its_model_although_one_is_killed(
    tmp_path: Path, service: tuple[str, subprocess.Popen[bytes]]
) -> None:
    address, _ = service
    roles = ["--instances", "3", "--parameter-servers", "2", "--ps-replicas", "1"]
    size = ["--samples", "20000", "--task-size", "1024", "--epochs", "6"]
    example = str(Path(__file__).parents[2] / "examples" / "wide_deep.py")
    command = [*ELASTANE, "submit", "--master", address, "--model", "clicks", *roles, example, *size]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as submitted:
        with MasterClient(address, timeout_seconds=60) as client:
            while sum(one.epoch + one.done for one in _progress(client)) < 3:
                assert submitted.poll() is None, submitted.communicate()[0]
                time.sleep(0.1)
        _of_the_run(address, "elastane_ps")[0].kill()
        said, _ = submitted.communicate()
    assert submitted.returncode == 0, said
    assert "of the best possible" in said and "all tasks are done, and all workers ended with 0" in said
    run = run_of(address)
    assert run["ranks"][0]["exit_code"] == 0, run
    assert "weights.pt" in elastane(address, "artifacts", "1").stdout
    assert _of_the_run(address, "elastane_ps") == []


def _progress(client: MasterClient) -> list[shard_pb2.Progress]:
    with contextlib.suppress(RequestRefusedError):  # the job is not there yet
        return client.get_progress("run-1-1")
    return []


def _of_the_run(address: str, word: str) -> list[psutil.Process]:
    """Processes of the run that have a word in their command line, without agents and runners."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if word in line and "elastane_cli" not in line:
            with contextlib.suppress(psutil.Error):
                if process.environ().get("ELASTANE_MASTER") == address:
                    found.append(process)
    return found
