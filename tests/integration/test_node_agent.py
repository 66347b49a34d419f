"""The agent of one worker on another host, as the remote shell meets it; the worker trains nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parents[2]
PATH = os.pathsep.join(str(SOURCES / root) for root in ("common", "proto", "worker"))

#: Drains as a worker does, and says what it was told of the node.
WORKER = """
import json, os, pathlib, signal, sys, time
def leave(*_):
    notice = pathlib.Path(os.environ["ELASTANE_NOTICE_FILE"])
    left = json.loads(notice.read_text())["at"] - time.time() if notice.exists() else -1
    print("left", round(left), pathlib.Path(os.environ["ELASTANE_CAPACITY_FILE"]).exists(), flush=True)
    sys.exit(80)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
signal.pause()
"""


class Node:
    """One node's agent with that worker. prefix: of its command line."""

    def __init__(
        self, *options: str, worker: str = WORKER, prefix: Sequence[str] = (), **variables: str
    ) -> None:
        command = [
            sys.executable,
            "-m",
            "elastane_agent.supervisor.node",
            *options,
            "--",
            sys.executable,
            "-c",
            worker,
        ]
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup themselves
        try:
            self.process = subprocess.Popen(
                [*prefix, *command],
                env={**os.environ, "PYTHONPATH": PATH, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        finally:
            signal.signal(signal.SIGHUP, before)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def node() -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def start(*options: str, **given: Any) -> Node:
        nodes.append(Node(*options, **given))
        return nodes[-1]

    yield start
    for one in nodes:
        one.close()


def test_a_notice_of_the_node_drains_its_worker(node: Callable[..., Node], tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    started = node("--spot", f"none,file:{notice}", "--spot-poll", "0.02")
    assert started.line() == "up"
    beside = tmp_path / "beside"
    beside.write_text('{"seconds": 15}')
    beside.rename(notice)  # whole at once: an empty file is a notice, too
    assert started.line() in ("left 15 True", "left 14 True")
    assert started.process.wait(30) == 81


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_hang_up_drains_the_worker(node: Callable[..., Node], number: int) -> None:
    started = node("--spot", "none")
    assert started.line() == "up"
    started.process.send_signal(number)
    assert started.line() == "left -1 False"
    assert started.process.wait(30) == 80


def test_under_nohup_a_hang_up_ends_nothing(node: Callable[..., Node]) -> None:
    started = node("--spot", "none", prefix=("nohup",))
    assert started.line() == "up"
    started.process.send_signal(signal.SIGHUP)
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(30) == 80
    assert started.process.stderr is not None
    said = started.process.stderr.read()
    assert "SIGTERM: the worker drains" in said and "SIGHUP" not in said


def test_who_does_not_leave_in_time_is_killed(node: Callable[..., Node]) -> None:
    deaf = WORKER.replace("signal.SIGTERM, leave", "signal.SIGTERM, signal.SIG_IGN")
    started = node("--spot", "none", "--grace", "0.2", worker=deaf)
    assert started.line() == "up"
    started.process.send_signal(signal.SIGHUP)
    assert started.process.wait(30) == 128 + signal.SIGKILL


def test_each_slot_of_a_host_has_a_gpu_of_its_own(node: Callable[..., Node]) -> None:
    shows = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)"
    workers = [node(worker=shows, ELASTANE_HOST_SLOT=slot, CUDA_VISIBLE_DEVICES="4,7") for slot in "012"]
    assert [worker.line() for worker in workers] == ["4", "7", "4"]
