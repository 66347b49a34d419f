"""`elastane run --hosts`: hosts come and go while it trains, and the bits are those of stock DDP.

Other hosts are other addresses of loopback, and the remote shell is one here: what is started there is the
real agent of a node with a real worker.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from test_agent import Run
from test_matrix import Config, reference

from elastane.client import MasterClient
from elastane.demo.compare import PARTS, leader_report
from elastane_proto.v1 import job_pb2

CONFIG = Config(4, "adamw", data_workers=0, epochs=3)
TOTAL = CONFIG.epochs * CONFIG.steps_per_epoch


class Hosts:
    """Hosts by a file, which a discovery script prints; and the way to them."""

    def __init__(self, folder: Path) -> None:
        self.script, self._found, self._down = folder / "hosts.sh", folder / "hosts", folder / "down"
        self.script.write_text(f"#!/bin/sh\nexec cat {self._found}\n")
        self.script.chmod(0o755)
        self._shell = folder / "shell.sh"
        # As ssh does it: 255 where there is no way.
        self._shell.write_text(
            "#!/bin/sh\n"
            f'down() {{ grep -qx "$1" {self._down} 2>/dev/null; }}\n'
            'down "$1" && exit 255\nsh -c "$2"\ncode=$?\ndown "$1" && exit 255\nexit $code\n'
        )
        self._shell.chmod(0o755)
        self.template = f"{self._shell} {{host}} {{command}}"

    def are(self, *hosts: str) -> None:
        fresh = self._found.with_suffix(".new")
        fresh.write_text("".join(f"{host}\n" for host in hosts))
        fresh.replace(self._found)

    def fail(self) -> None:
        """The script fails from now on."""
        self._found.unlink()

    def unreachable(self, *hosts: str) -> None:
        self._down.write_text("".join(f"{host}\n" for host in hosts))


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


@pytest.fixture
def start(tmp_path: Path, hosts: Hosts) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def run(*options: str, busy_seconds: float = 0.05) -> Run:
        begun = Run(
            *("--ests", "4", "--job", "j", "--hosts", str(hosts.script), "--hosts-interval", "0.1"),
            *("--remote", hosts.template, "--spot", "none", "--join-window", "0.05", *options),
            *(*CONFIG.arguments, "--busy-seconds", str(busy_seconds)),
            environment={"ELASTANE_REPORT_DIR": str(tmp_path / "reports")},
        )
        runs.append(begun)
        return begun

    yield run
    for begun in runs:
        begun.close()


def client_of(run: Run) -> MasterClient:
    return MasterClient(run.until("master_started")["address"], timeout_seconds=60.0)


def wait_for(client: MasterClient, *members: str, step: int = 0) -> job_pb2.Job:
    """Until just these workers are in the ring, and so many steps are committed."""
    for job in client.watch_job("j"):
        ring = {worker.worker_id for worker in job.workers if worker.state == job_pb2.WORKER_STATE_MEMBER}
        if ring == set(members) and job.step >= step:
            return job
    raise AssertionError("the watch ended")


def assert_same_bits(run: Run, reports: Path) -> None:
    assert run.end() == 0, run.said()
    stock = json.loads((reference(CONFIG) / "ddp-0.json").read_text())
    leader = leader_report(reports)
    assert leader["step"] == TOTAL
    assert [part for part in PARTS if leader["fingerprint"][part] != stock["fingerprint"][part]] == []


def test_hosts_come_and_go_and_the_others_stay(
    start: Callable[..., Run], hosts: Hosts, tmp_path: Path
) -> None:
    hosts.are("127.0.0.2", "127.0.0.9:0")
    run = start()
    with client_of(run) as client:
        wait_for(client, "127.0.0.2-0", step=random.randrange(1, 4))
        hosts.are("127.0.0.2", "127.0.0.3", "127.0.0.3")  # listed twice: the slots of both lines
        wait_for(client, "127.0.0.2-0", "127.0.0.3-0", "127.0.0.3-1", step=random.randrange(4, 8))
        hosts.fail()
        run.until("discovery_failed")
        hosts.are("127.0.0.3:2", "127.0.0.4")
        wait_for(client, "127.0.0.3-0", "127.0.0.3-1", "127.0.0.4-0", step=random.randrange(8, 12))
        run.until("worker_drained", worker="127.0.0.2-0")
        hosts.are("127.0.0.3:1", "127.0.0.4")
        job = wait_for(client, "127.0.0.3-0", "127.0.0.4-0", step=random.randrange(12, 16))
        assert job.step < TOTAL - 2
        history = list(client.audit_log("j"))
        lost = [event for event in client.events("j") if event.kind in ("worker_lost", "worker_evicted")]
    assert_same_bits(run, tmp_path / "reports")
    started = [line["worker"] for line in run.of("worker_started")]
    assert len(started) == len(set(started)) == 4, "nobody was started twice"
    assert lost == [] and not run.of("killing"), "who leaves drains: no step is lost"
    assert len(history) == len({(entry.step, entry.virtual_rank) for entry in history}), "none was done twice"


def node_of(run: Run, worker: str) -> psutil.Process:
    """The agent of a worker on another host."""
    (found,) = [
        process
        for process in run.descendants()
        if "elastane.agent.node" in process.cmdline() and process.environ()["ELASTANE_WORKER_ID"] == worker
    ]
    return found


def test_a_worker_dies_and_a_host_is_cut_off(start: Callable[..., Run], hosts: Hosts, tmp_path: Path) -> None:
    hosts.are("127.0.0.2", "127.0.0.3", "127.0.0.4")
    hosts.unreachable("127.0.0.4")
    run = start("--workers", "1:2", "--max-restarts", "1")
    with client_of(run) as client:
        wait_for(client, "127.0.0.2-0", "127.0.0.3-0", step=2)
        (worker,) = node_of(run, "127.0.0.3-0").children()
        worker.send_signal(signal.SIGKILL)
        assert "SIGKILL" in run.until("worker_died", worker="127.0.0.3-0")["message"]
        wait_for(client, "127.0.0.2-0", "127.0.0.3-0", step=4)
        # A host that is in use is cut off, and the one whose turn it is then is out of reach as well.
        hosts.unreachable("127.0.0.2", "127.0.0.4")
        node = node_of(run, "127.0.0.2-0")
        for process in (*node.children(), node):
            process.send_signal(signal.SIGKILL)
        wait_for(client, "127.0.0.3-0", step=6)
    assert_same_bits(run, tmp_path / "reports")
    unreachable = {line["worker"] for line in run.of("host_unreachable")}
    assert unreachable == {"127.0.0.2-0", "127.0.0.4-0"}, run.said()
    assert len(run.of("worker_died")) == 1, "hosts cost nothing of the restart budget"


def test_nothing_is_left_behind(start: Callable[..., Run], hosts: Hosts) -> None:
    hosts.are("127.0.0.2", "localhost")
    run = start("--workers", "1:2")
    with client_of(run) as client:
        wait_for(client, "127.0.0.2-0", "localhost-0", step=1)
    processes = run.descendants()
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.said()
    assert psutil.wait_procs(processes, timeout=20)[1] == []
    assert not run.of("killing") and not run.of("worker_died"), run.said()


def test_what_cannot_work_is_refused_before_anything_starts(
    start: Callable[..., Run], hosts: Hosts, tmp_path: Path
) -> None:
    hosts.are("gpu7.example:4")
    far = start()
    assert far.end() == 3
    assert far.lines == [] and not (tmp_path / "reports").exists()
    assert start("--listen", "0.0.0.0").end() == 2
    assert start("--listen", "h:1", "--master", "m:1").end() == 2
    hosts.fail()
    assert start().end() == 1
