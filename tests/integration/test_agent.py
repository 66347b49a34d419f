"""`elastane run` as its users meet it: real master, real store, real signals; workers that train nothing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import patience
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_cli.audit import audit
from elastane_cli.explain import explain
from elastane_common.client import MasterClient
from elastane_proto.v1 import job_pb2
from integration.forked_cli import ForkedCommands
from slow import further, slow

SOURCES = Path(__file__).parents[2]
TRAINER = Path(__file__).parent / "scripts" / "fake_trainer.py"
PATH = os.pathsep.join(
    str(SOURCES / root) for root in ("common", "proto", "shard_service", "scheduler", "master", "worker")
)
ENVIRONMENT = {**os.environ, "PYTHONPATH": PATH}
WAIT_SECONDS = 60.0

Line = dict[str, Any]


class Run:
    """One `elastane run --json`, or another command, and what it said.

    forked: has its workers forked. They are no descendants then, and outlive a command that is killed.
    """

    def __init__(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        command: str = "run",
        forked: ForkedCommands | None = None,
    ) -> None:
        self.lines: list[Line] = []
        self._news: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        if forked is not None:
            self._process = forked.popen(
                command, "--json", *arguments, environment=environment, stdout=subprocess.PIPE
            )
        else:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "elastane_cli", command, "--json", *arguments],
                env=ENVIRONMENT | (environment or {}),
                stdout=subprocess.PIPE,
                text=True,
            )
        self.pid = self._process.pid
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self._news.put(json.loads(text))
        self._news.put(None)

    def _next(self) -> Line | None:
        return patience.wait(lambda seconds: self._news.get(timeout=seconds), WAIT_SECONDS)

    def until(self, event: str, **facts: object) -> Line:
        """The next line of that event with those facts."""
        while (line := self._next()) is not None:
            self.lines.append(line)
            if line["event"] == event and all(line.get(name) == value for name, value in facts.items()):
                return line
        pytest.fail(f"no {event} {facts}; said:\n{self.said()}")

    def end(self) -> int:
        """The exit code, once it has ended."""
        while (line := self._next()) is not None:
            self.lines.append(line)
        return patience.wait(self._process.wait, WAIT_SECONDS)

    def wait(self, seconds: float) -> None:
        """A moment, for what shows elsewhere; fails when the command has ended meanwhile."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        pytest.fail(f"it ended with {code}; said:\n{self.said()}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def of(self, event: str) -> list[Line]:
        return [line for line in self.lines if line["event"] == event]

    def said(self) -> str:
        return "\n".join(str(line.get("message", line)) for line in self.lines)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def running(self, argument: str) -> list[psutil.Process]:
        """Those with this in their command line."""
        found = []
        for process in self.descendants():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended while we looked
                found += [process] if argument in process.cmdline() else []
        return found

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@pytest.fixture(autouse=True)
def python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start_run(
        *options: str,
        steps: int = 40,
        step_seconds: float = 0.01,
        script: str = "",
        locked: str = "",
        environment: dict[str, str] | None = None,
    ) -> Run:
        command = [script] if script else [str(TRAINER), str(steps), str(step_seconds)]
        command += [locked] if locked else []
        state = [] if "--state-dir" in options else ["--state-dir", str(tmp_path / "state")]
        run = Run("--ests", "4", "--job", "j", *state, *options, *command, environment=environment)
        runs.append(run)
        return run

    yield start_run
    for run in runs:
        run.close()


def client_of(run: Run) -> MasterClient:
    """To the master of a run whose job exists."""
    if not run.of("job_created"):
        run.until("job_created")
    started = run.of("master_started")
    return MasterClient(started[0]["address"], timeout_seconds=WAIT_SECONDS)


def wait_for_step(client: MasterClient, step: int, members: int = 1) -> job_pb2.Job:
    """The job once `step` steps are committed and the ring has that many members."""
    for job in client.watch_job("j"):
        ring = [worker for worker in job.workers if worker.ests.end > worker.ests.start]
        if job.step >= step and len(ring) >= members:
            return job
    raise AssertionError("the watch ended")


def variables_of(pid: int) -> dict[str, str]:
    """The environment of a process, which the kernel shows as empty while its program is being loaded."""
    process = psutil.Process(pid)
    while not (found := process.environ()):
        os.sched_yield()
    return found


def gpu_of(pid: int) -> str:
    return variables_of(pid)["CUDA_VISIBLE_DEVICES"]


def check_history(tmp_path: Path, steps: int) -> None:
    """What stands in the store has every sample once."""
    master = EmbeddedMaster(tmp_path / "state")
    with MasterClient(master.start(), timeout_seconds=WAIT_SECONDS) as client:
        try:
            entries = list(client.audit_log("j"))
        finally:
            master.stop()
    result = audit(
        entries, ests=4, steps_per_epoch=steps, dataset_sizes={entry.dataset: steps * 8 for entry in entries}
    )
    assert result.ok, result.violations
    assert sum(epoch.samples for epoch in result.epochs) == steps * 8


def test_to_the_end(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start("--workers", "1:2")
    run.until("worker_started", worker="w1")
    processes = run.descendants()
    assert run.end() == 0, run.said()
    assert run.of("job_succeeded")
    assert {line["line"] for line in run.of("output")} == {"ended at step 40"}
    assert not any(process.is_running() for process in processes), "nothing is left behind"
    check_history(tmp_path, 40)
    again = start("--workers", "1:2")
    assert again.end() == 0
    assert again.of("job_succeeded") and not again.of("worker_started")


def test_a_killed_worker_comes_back(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start("--workers", "1:3", steps=100, environment={"CUDA_VISIBLE_DEVICES": "4,5,7"})
    pids = [run.until("worker_started", worker=worker)["pid"] for worker in ("w0", "w1", "w2")]
    with client_of(run) as client:
        wait_for_step(client, 10, members=3)
        assert [gpu_of(pid) for pid in pids] == ["4", "5", "7"], "a GPU of its own for each worker"
        os.kill(pids[1], signal.SIGKILL)
        assert "SIGKILL" in run.until("worker_died", worker="w1")["message"]
        again = run.until("worker_started", worker="w1")["pid"]
        assert again != pids[1]
        assert gpu_of(again) == "5"
    assert run.end() == 0, run.said()
    check_history(tmp_path, 100)


@slow
def test_an_agent_that_was_stopped_holds_nobody_up_and_does_its_part_when_it_wakes(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start("--workers", "1:3", steps=600)
    pids = {worker: run.until("worker_started", worker=worker)["pid"] for worker in ("w0", "w1", "w2")}
    with client_of(run) as client:
        step = wait_for_step(client, 10, members=3).step
        run.signal(signal.SIGSTOP)
        try:
            os.kill(pids["w1"], signal.SIGKILL)
            wait_for_step(client, step + 100, members=2)
            assert psutil.Process(run.pid).status() == psutil.STATUS_STOPPED
        finally:
            run.signal(signal.SIGCONT)
        assert "SIGKILL" in run.until("worker_died", worker="w1")["message"]
        assert run.until("worker_started", worker="w1")["pid"] != pids["w1"]
    assert run.end() == 0, run.said()
    assert len(run.of("worker_died")) == 1 and not run.of("master_restarted")
    check_history(tmp_path, 600)


def test_a_killed_master_comes_back_where_it_was(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start("--workers", "1:2", steps=300)
    with client_of(run) as client:
        wait_for_step(client, 10, members=2)
        (master,) = run.running("elastane_master")
        generation = client.get_job("j").generation
        master.kill()
        run.until("master_restarted")
        assert wait_for_step(client, 30).generation == generation
    assert run.end() == 0, run.said()
    assert not run.of("worker_died")
    check_history(tmp_path, 300)


@slow
def test_scale_in_and_out(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start("--workers", "1:3", steps=600)
    with client_of(run) as client:
        wait_for_step(client, 5, members=3)
        client.scale_job("j", 1, 1)
        gone = {run.until("worker_drained")["worker"], run.until("worker_drained")["worker"]}
        client.scale_job("j", 1, 3)
        gone_last = sorted(gone)[-1]
        asked = [event for event in client.events("j") if event.kind == "worker_draining"]
        assert {(event.worker_id, event.reason) for event in asked} == {
            (worker, f"{worker}: asked for by its agent: the job wants 1 worker") for worker in gone
        }
        told = explain(gone_last, client.get_job("j"), list(client.events("j")))
        assert told is not None and "asked for by its agent: the job wants 1 worker" in told.sentence
        back = {run.until("worker_started")["worker"], run.until("worker_started")["worker"]}
        assert back == gone
    assert run.end() == 0, run.said()
    check_history(tmp_path, 600)


@slow
def test_a_worker_drained_by_an_operator_stays_away(start: Callable[..., Run]) -> None:
    run = start("--workers", "1:2", steps=100)
    with client_of(run) as client:
        wait_for_step(client, 5, members=2)
        client.drain_worker("j", "w1")
        run.until("worker_drained", worker="w1")
    assert run.end() == 0, run.said()
    assert len(run.of("worker_started")) == 2


@further  # test_node_agent drains on a notice, test_scale_in_and_out starts again what has left
def test_a_worker_that_leaves_on_a_notice_comes_back(start: Callable[..., Run]) -> None:
    run = start("--workers", "1:2", steps=300)
    pid = run.until("worker_started", worker="w1")["pid"]
    with client_of(run) as client:
        wait_for_step(client, 5, members=2)
        os.kill(pid, signal.SIGTERM)
        assert "preemption notice" in run.until("worker_died", worker="w1")["message"]
        run.until("worker_started", worker="w1")
    assert run.end() == 0, run.said()


def test_sigterm_drains_and_the_same_command_goes_on(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start("--workers", "1:2", steps=100)
    with client_of(run) as client:
        wait_for_step(client, 10)
    processes = run.descendants()
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.said()
    assert "not kept: the training of all" in run.of("what_was_kept")[0]["message"]
    assert not [line for line in run.lines if "code 8" in str(line.get("message"))]
    assert not any(process.is_running() for process in processes)
    again = start("--workers", "1:2", steps=100)
    assert again.end() == 0, again.said()
    assert again.of("job_found")
    check_history(tmp_path, 100)


@slow
def test_a_second_signal_kills(start: Callable[..., Run], tmp_path: Path) -> None:
    script = tmp_path / "deaf.py"
    script.write_text(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf')\n"
        "while True: signal.pause()\n"
    )
    run = start("--workers", "1:1", script=str(script))
    run.until("output", line="deaf")
    run.signal(signal.SIGINT)
    run.until("stopping")
    run.signal(signal.SIGINT)
    assert run.end() == 130, run.said()


def test_nothing_outlives_a_killed_agent(start: Callable[..., Run]) -> None:
    run = start("--workers", "1:2", steps=100_000)
    with client_of(run) as client:
        wait_for_step(client, 5, members=2)
    processes = run.descendants()
    assert len(processes) >= 4, "two workers, the master, its store"
    run.signal(signal.SIGKILL)
    run.end()
    _, alive = psutil.wait_procs(processes, timeout=WAIT_SECONDS)
    assert alive == []


@further  # test_sigterm_drains_and_the_same_command_goes_on; test_resume suspends
def test_suspend_ends_well_and_the_same_command_resumes(start: Callable[..., Run], tmp_path: Path) -> None:
    options = ("--workers", "1:2", "--checkpoint", str(tmp_path / "saved"))
    run = start(*options, steps=100)
    with client_of(run) as client:
        wait_for_step(client, 10)
        client.suspend_job("j")
    assert run.end() == 0, run.said()
    assert run.of("job_suspended") and not run.of("worker_died")
    again = start(*options, steps=100)
    assert again.end() == 0, again.said()
    assert again.of("job_succeeded")


@slow
def test_cancel(start: Callable[..., Run]) -> None:
    run = start("--workers", "1:2", steps=100_000)
    with client_of(run) as client:
        wait_for_step(client, 5)
        client.cancel_job("j")
    assert run.end() == 0, run.said()
    assert "cancelled by an operator" in run.of("job_cancelled")[0]["message"]


@slow
def test_two_agents_at_one_master(start: Callable[..., Run], tmp_path: Path) -> None:
    master = EmbeddedMaster(tmp_path / "shared")
    try:
        options = ("--master", master.start(), "--workers", "1:4", "--local-workers", "2")
        first, second = start(*options, steps=100), start(*options, steps=100)
        assert first.end() == 0, first.said()
        assert second.end() == 0, second.said()
        with MasterClient(master.address) as client:
            workers = {entry.worker_id for entry in client.audit_log("j")}
        names = {line["worker"] for run in (first, second) for line in run.of("worker_started")}
        assert len(names) == 4 and workers <= names
    finally:
        master.stop()


def test_looking_at_a_job(start: Callable[..., Run], tmp_path: Path) -> None:
    lock = (tmp_path / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    run = start("--workers", "2:2", locked=lock.name)
    with client_of(run) as client:
        wait_for_step(client, 10, members=2)
        address = client.addresses[0]

    def elastane(*arguments: str) -> str:
        done = patience.run(
            [sys.executable, "-m", "elastane_cli", *arguments, "--master", address],
            env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    status = elastane("status")
    assert "running" in status and "w0" in status and "member" in status
    assert json.loads(elastane("status", "j", "--json"))["settings"]["ests"] == 4
    assert "worker_joined" in elastane("events")
    assert json.loads(elastane("jobs", "--json"))[0]["name"] == "j"
    assert json.loads(elastane("audit", "--json"))["ok"] is True
    with contextlib.closing(Run("--watch", "--master", address, command="progress")) as watch:
        first = watch._next()
        assert first is not None and not first["datasets"][0]["complete"]
        lock.close()
        assert watch.end() == 0
        assert watch.lines[-1]["datasets"][0]["complete"] is True
    assert run.end() == 0, run.said()


def test_workers_behind_a_relay_outlive_it_and_a_master(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start("--workers", "1:2", "--relay", steps=300)
    relay = run.until("relay_started")["address"]
    pids = [run.until("worker_started", worker=worker)["pid"] for worker in ("w0", "w1")]
    for pid in pids:
        assert variables_of(pid)["ELASTANE_MASTER"].startswith(f"{relay},")
    with client_of(run) as client:
        wait_for_step(client, 10, members=2)
        (process,) = run.running("elastane_agent.relay")
        process.kill()
        assert "SIGKILL" in run.until("relay_died")["message"]
        wait_for_step(client, 60, members=2)
        (master,) = run.running("elastane_master")
        master.kill()
        run.until("master_restarted")
        wait_for_step(client, 90)
    assert run.end() == 0, run.said()
    assert not run.of("worker_died")
    check_history(tmp_path, 300)
