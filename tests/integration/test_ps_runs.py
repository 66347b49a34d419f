"""`elastane run --ps` with real processes: its parameter servers come, die, are drained and leave."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import torch
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_proto.v1 import ps_pb2, ring_pb2, ring_pb2_grpc
from integration.ps_support import SPEC, WAIT_SECONDS, PushingJob
from integration.test_agent import PATH, Line, Run
from slow import further, slow

PUSHER = Path(__file__).parent / "scripts" / "ps_pusher.py"
TASKS = 12

Start = Callable[..., Run]


@pytest.fixture(autouse=True)
def python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "locked"
    path.touch()
    return path


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Tasks wait inside the block."""
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def start(tmp_path: Path, lock: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def begin(*options: str, state: str = "state", ps: int = 2) -> Run:
        run = Run(
            *("--ests", "1", "--job", "j", "--ps", str(ps), "--slots", str(SPEC.slots)),
            *("--ps-return", "0.2", "--ps-snapshot", "0.3"),
            *(("--state-dir", str(tmp_path / state)) if state else ()),
            *options,
            str(PUSHER),
            str(TASKS),
            str(lock),
            environment={"PYTHONPATH": PATH},
        )
        runs.append(run)
        return run

    yield begin
    for run in runs:
        run.close()


def address(run: Run) -> str:
    if not run.of("master_started"):
        run.until("master_started")
    return str(run.of("master_started")[0]["address"])


@contextlib.contextmanager
def job_of(run: Run) -> Iterator[PushingJob]:
    job = PushingJob(address(run), "j")
    try:
        yield job
    finally:
        job.close()


def pushing(run: Run) -> None:
    """Wait until the worker pushes."""
    while run.until("output", worker="w0")["line"] != "pushing":
        pass


def applied(run: Run) -> list[list[int]]:
    lines = [line["line"] for line in run.of("output") if line.get("worker") == "w0"]
    (text,) = [line.removeprefix("applied ") for line in lines if line.startswith("applied ")]
    found: list[list[int]] = json.loads(text)
    return found


def processes(run: Run) -> list[psutil.Process]:
    return run.running("elastane_ps")


def gone(found: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(found, timeout=WAIT_SECONDS)
    assert not alive


@further  # the order of leaving: unit/agent/test_ps_policy.py; the end: every test here
def test_to_the_end(start: Start, tmp_path: Path) -> None:
    run = start()
    assert run.until("ps_started", ps="ps-0")["pid"]
    run.until("ps_started", ps="ps-1")
    pushing(run)
    there = run.descendants()
    assert run.end() == 0, run.said()
    assert applied(run) == [list(range(TASKS))] * SPEC.slots
    # They leave after the workers, have saved, and nothing is left.
    order = [line["event"] for line in run.lines]
    assert order.index("worker_finished") < order.index("ps_left")
    assert len(run.of("ps_left")) == 2 and not run.of("killing")
    gone(there)
    assert sorted(path.name for path in (tmp_path / "state" / "model" / "slots").iterdir()) == sorted(
        str(slot) for slot in range(SPEC.slots)
    )


def test_one_that_is_killed_is_restarted_and_every_task_is_applied_once(start: Start, lock: Path) -> None:
    with held(lock), job_of(run := start()) as job:
        pushing(run)
        job.settled()
        os.kill(run.of("ps_started")[0]["pid"], signal.SIGKILL)
        run.until("ps_died", ps="ps-0")
        run.until("ps_started", ps="ps-0")
        job.until(lambda found: {place.owner for place in found.map.places} == {"ps-0", "ps-1"})
        job.settled()
    assert run.end() == 0, run.said()
    assert applied(run) == [list(range(TASKS))] * SPEC.slots


@slow
def test_with_backups_nothing_goes_back(start: Start, lock: Path) -> None:
    with held(lock), job_of(run := start("--ps-replicas", "1")) as job:
        pushing(run)
        job.settled(copies=2)
        os.kill(run.of("ps_started")[1]["pid"], signal.SIGKILL)
        run.until("ps_died", ps="ps-1")
        run.until("ps_started", ps="ps-1")
        job.until(lambda found: len(found.processes) == 2)
        job.settled(copies=2)
        assert not any(place.life for place in job.get().map.places)
    assert run.end() == 0, run.said()
    assert applied(run) == [list(range(TASKS))] * SPEC.slots


@slow
def test_one_that_an_operator_drains_stays_away(start: Start, lock: Path) -> None:
    with held(lock), job_of(run := start()) as job:
        pushing(run)
        job.until(lambda found: {place.owner for place in found.map.places} == {"ps-0", "ps-1"})
        job.settled()
        job.slots.DrainPs(ps_pb2.DrainPsRequest(job="j", ps_id="ps-1"))
        assert run.until("ps_left")["ps"] == "ps-1"
        assert {place.owner for place in job.get().map.places} == {"ps-0"}
    assert run.end() == 0, run.said()
    assert len(run.of("ps_started")) == 2
    assert applied(run) == [list(range(TASKS))] * SPEC.slots


@slow
def test_an_interrupt_saves_and_the_same_command_continues(start: Start, lock: Path) -> None:
    with held(lock):
        run = start()
        pushing(run)
        there = run.descendants()
        with job_of(run) as job:
            job.settled()
        run.signal(signal.SIGINT)
        # The script knows nothing of SIGTERM: it ends by it, and parameter servers leave after it.
        assert run.end() == 130, run.said()
        gone(there)
        assert len(run.of("ps_left")) == 2 and not run.of("killing")
        assert "kept: the slots of the model" in run.said()
    again = start()
    assert again.end() == 0, again.said()
    assert applied(again) == [list(range(TASKS))] * SPEC.slots


@further  # test_agent has it with workers
def test_a_second_interrupt_leaves_nothing_behind(start: Start, lock: Path) -> None:
    with held(lock):
        run = start()
        pushing(run)
        there = run.descendants()
        for process in processes(run):
            process.suspend()  # they cannot leave by themselves
        run.signal(signal.SIGINT)
        run.until("stopping")
        run.signal(signal.SIGINT)
        assert run.end() == 130, run.said()
        gone(there)


@slow
def test_they_stay_for_workers_of_other_agents(start: Start, lock: Path, tmp_path: Path) -> None:
    leave = threading.Event()
    with held(lock):
        run = start()
        pushing(run)
        channel = grpc.insecure_channel(address(run))

        def attend() -> Iterator[ring_pb2.AttendRequest]:
            hello = ring_pb2.Hello(
                job="j", worker_id="other", role=ring_pb2.WORKER_ROLE_TASKS, host="there", pid=1
            )
            yield ring_pb2.AttendRequest(hello=hello)
            while not leave.wait(0.5):
                yield ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat())

        call = ring_pb2_grpc.RingServiceStub(channel).Attend(attend())
        assert next(iter(call)).HasField("welcome")
    stay: Line = run.until("ps_stay")
    assert "other" in stay["message"] and not run.of("ps_left")
    run.wait(0.5)
    looked_at(address(run), tmp_path)
    leave.set()
    assert run.end() == 0, run.said()
    channel.close()
    assert len(run.of("ps_left")) == 2


def looked_at(master: str, folder: Path) -> None:
    """`elastane ps` of a job whose tasks are all DONE."""

    def ps(*arguments: str) -> Any:
        done = CliRunner().invoke(build_app(), ["ps", *arguments, "--master", master, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    shown = ps("j", "--slots")
    assert {one["ps_id"] for one in shown["processes"]} == {"ps-0", "ps-1"}
    assert shown["datasets"] == ["clicks"] and len(shown["map"]["places"]) == SPEC.slots
    audited = ps("audit", "j")
    assert audited["ok"] and audited["tasks"] == TASKS
    assert [slot["version"] for slot in audited["slots"]] == [TASKS] * SPEC.slots
    saved = ps("checkpoint", "j")
    assert saved["tasks"] == TASKS and not saved["surplus"]
    exported = ps("export", "j", str(folder / "model.pt"), "--checkpoint", saved["checkpoint"])
    state = torch.load(folder / "model.pt")
    assert exported["parameters"] == len(state) == len(SPEC.tensors) + len(SPEC.tables)
    assert {name: tuple(values.shape) for name, values in state.items()} == {
        **{tensor.name: tensor.shape for tensor in SPEC.tensors},
        **{f"{table.name}.weight": (table.rows, table.width) for table in SPEC.tables},
    }
    assert all(values.abs().sum() > 0 for values in state.values())
    status = CliRunner().invoke(build_app(), ["status", "j", "--master", master]).stdout
    assert "tasks done" in status and f"{TASKS}/{TASKS} tasks" in status and "of 8 slots served" in status
    plain = CliRunner().invoke(build_app(), ["ps", "--master", master])
    assert plain.exit_code == 0 and "ps-0" in plain.stdout and "staleness" in plain.stdout


@further  # the policy: unit/agent/test_ps_policy.py; refusals of a session: unit/ps/test_process.py
def test_a_parameter_server_that_is_refused_stops_everything(start: Start, lock: Path) -> None:
    with held(lock):
        run = start(ps=1)
        pushing(run)
        is_refused(run)


def is_refused(run: Run) -> None:
    # Another process under its name: the older one is refused, and its agent must not fight for the name.
    environment = {**os.environ, "PYTHONPATH": PATH, "ELASTANE_MASTER": address(run), "ELASTANE_JOB": "j"}
    other = subprocess.Popen(
        [sys.executable, "-m", "elastane_ps"],
        env=environment | {"ELASTANE_PS_ID": "ps-0"},
        stderr=subprocess.DEVNULL,
    )
    try:
        assert run.end() == 3, run.said()
        assert "ps-0 was refused" in run.said()
    finally:
        other.kill()
        other.wait()
