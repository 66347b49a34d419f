"""`elastane run --hosts`: hosts come and go while it trains, and the bits are those of stock DDP.

Other hosts are other addresses of loopback, and the remote shell is one here: what is started there is the
real agent of a node with a real worker.
"""

from __future__ import annotations

import fcntl
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_agent import Run
from test_matrix import Config, reference

from elastane.runtime.rehearsal import Gate, Rehearsal
from elastane_cli.rehearse.results import PARTS, leader_report
from elastane_common.client import MasterClient
from elastane_proto.v1 import job_pb2
from patience import Patience
from slow import further, slow

CONFIG = Config(4, "adamw", data_workers=0, epochs=3)
#: Trains nothing, for what is not about bits.
FAKE = (str(Path(__file__).parent / "scripts" / "fake_trainer.py"), "100000", "0.01")
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

    def run(*options: str, script: Sequence[str] = CONFIG.arguments) -> Run:
        begun = Run(
            *("--ests", "4", "--job", "j", "--hosts", str(hosts.script), "--hosts-interval", "0.1"),
            *(
                "--remote",
                hosts.template,
                "--spot",
                "none",
                "--join-window",
                "0.05",
                "--lease",
                "300",
                *options,
            ),
            *script,
            environment={
                "ELASTANE_REPORT_DIR": str(tmp_path / "reports"),
                **Rehearsal(gates=str(tmp_path / "gates")).environment(),
            },
        )
        runs.append(begun)
        return begun

    yield run
    for begun in runs:
        begun.close()


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Callable[[int, int], Gate]]:
    """Gates that the ring stands at in a random step of a span, until they are opened."""
    held: list[Gate] = []

    def gate(low: int, high: int) -> Gate:
        held.append(Gate(tmp_path / "gates" / str(random.randrange(low, high))))
        return held[-1]

    yield gate
    for one in held:
        one.open()


class Watched:
    """The job of a run, as its master tells it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._address = run.until("master_started")["address"]
        run.until("job_created")
        self.client = MasterClient(self._address, timeout_seconds=60.0)

    def until(self, condition: Callable[[job_pb2.Job], bool]) -> None:
        with MasterClient(self._address, timeout_seconds=60.0) as client:
            timer = threading.Timer(60.0, client.close)
            timer.start()
            try:
                for job in client.watch_job("j"):
                    if condition(job):
                        return
            finally:
                timer.cancel()
        pytest.fail(f"it did not come to that; said:\n{self.run.said()}")

    def until_there(self, *workers: str) -> None:
        """Until these workers attend."""
        self.until(lambda job: set(workers) <= {worker.worker_id for worker in job.workers})

    def until_leaving(self, *workers: str) -> None:
        """Until these workers are about to leave, or have left."""
        staying = job_pb2.WORKER_STATE_MEMBER, job_pb2.WORKER_STATE_STANDBY
        self.until(
            lambda job: not set(workers) & {one.worker_id for one in job.workers if one.state in staying}
        )


def assert_same_bits(run: Run, reports: Path) -> None:
    assert run.end() == 0, run.said()
    stock = json.loads((reference(CONFIG) / "ddp-0.json").read_text())
    leader = leader_report(reports)
    assert leader["step"] == TOTAL
    assert [part for part in PARTS if leader["fingerprint"][part] != stock["fingerprint"][part]] == []


def assert_figures(run: Run, workers: set[str], step: int) -> None:
    """The agent serves those of workers on other hosts; not of those that left, with their hosts."""
    (served,) = run.of("metrics_served")
    limit = Patience(30.0)
    found: dict[str, float] = {}
    while limit.left():
        with urlopen(f"http://{served['address']}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        found = {one.labels["worker"]: one.value for one in samples if one.name == "elastane_worker_step"}
        if set(found) == workers and min(found.values()) >= step:
            values = {one.name: one.value for one in samples if not one.labels}
            assert values["elastane_agent_workers_running"] == 2
            sent = [one for one in samples if one.name == "elastane_worker_handover_bytes_total"]
            assert {one.labels["worker"] for one in sent} == workers and any(one.value for one in sent)
            return
        time.sleep(0.05)  # a port tells nobody that it has news
    pytest.fail(f"told of {found}, not of {workers} at step {step}")


@slow
def test_hosts_come_and_go_and_the_others_stay(
    start: Callable[..., Run], hosts: Hosts, gates: Callable[[int, int], Gate], tmp_path: Path
) -> None:
    first, second, third, last = gates(1, 5), gates(6, 11), gates(12, 18), gates(20, TOTAL - 1)
    hosts.are("127.0.0.2", "127.0.0.9:0")
    job = Watched(run := start("--metrics", "127.0.0.1:0"))
    job.until_there("127.0.0.2-0")
    hosts.are("127.0.0.2", "127.0.0.3", "127.0.0.3")  # listed twice: the slots of both lines
    job.until_there("127.0.0.3-0", "127.0.0.3-1")
    first.open()
    hosts.fail()
    run.until("discovery_failed")
    hosts.are("127.0.0.3:2", "127.0.0.4")
    job.until_there("127.0.0.4-0")
    job.until_leaving("127.0.0.2-0")
    second.open()
    run.until("worker_drained", worker="127.0.0.2-0")
    hosts.are("127.0.0.3:1", "127.0.0.4")
    job.until_leaving("127.0.0.3-1")
    third.open()
    run.until("worker_drained", worker="127.0.0.3-1")
    ring = job.client.get_ring("j").members
    assert {member.worker_id for member in ring} == {"127.0.0.3-0", "127.0.0.4-0"}
    job.until(lambda found: found.step >= 19)
    lost = [event for event in job.client.events("j") if event.kind in ("worker_lost", "worker_evicted")]
    done = [(entry.step, entry.virtual_rank) for entry in job.client.audit_log("j")]
    job.client.close()
    assert_figures(run, {"127.0.0.3-0", "127.0.0.4-0"}, step=19)
    last.open()
    assert_same_bits(run, tmp_path / "reports")
    started = [line["worker"] for line in run.of("worker_started")]
    assert len(started) == len(set(started)) == 4, "nobody was started twice"
    assert lost == [] and not run.of("killing"), "who leaves drains: no step is lost"
    assert len(done) == len(set(done)), "none was done twice"


def node_of(run: Run, worker: str) -> psutil.Process:
    """The agent of a worker on another host."""
    nodes = run.running("elastane_agent.supervisor.node")
    (found,) = [process for process in nodes if process.environ()["ELASTANE_WORKER_ID"] == worker]
    return found


@slow
def test_a_worker_dies_and_a_host_is_cut_off(start: Callable[..., Run], hosts: Hosts) -> None:
    hosts.are("127.0.0.2", "127.0.0.3", "127.0.0.4")
    hosts.unreachable("127.0.0.4")
    job = Watched(run := start("--workers", "1:2", "--max-restarts", "1", script=FAKE))
    job.until_there("127.0.0.2-0", "127.0.0.3-0")
    (worker,) = node_of(run, "127.0.0.3-0").children()
    worker.send_signal(signal.SIGKILL)
    assert "SIGKILL" in run.until("worker_died", worker="127.0.0.3-0")["message"]
    run.until("worker_started", worker="127.0.0.3-0")
    job.until_there("127.0.0.2-0", "127.0.0.3-0")
    # A host that is in use is cut off, and the one whose turn it is then is out of reach as well.
    hosts.unreachable("127.0.0.2", "127.0.0.4")
    node = node_of(run, "127.0.0.2-0")
    for process in (*node.children(), node):
        process.send_signal(signal.SIGKILL)
    run.until("host_unreachable", worker="127.0.0.2-0")
    run.until("host_unreachable", worker="127.0.0.4-0")
    step = job.client.get_job("j").step
    job.until(lambda found: found.step > step + 3)
    job.client.cancel_job("j")
    job.client.close()
    assert run.end() == 0, run.said()
    assert len(run.of("worker_died")) == 1, "hosts cost nothing of the restart budget"


@further  # test_agent: a second signal, and a killed agent
def test_nothing_is_left_behind(start: Callable[..., Run], hosts: Hosts) -> None:
    hosts.are("127.0.0.2", "localhost")
    job = Watched(run := start("--workers", "1:2", "--listen", "127.0.0.1", script=FAKE))
    job.until_there("127.0.0.2-0", "localhost-0")
    job.client.close()
    processes = run.descendants()
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.said()
    assert psutil.wait_procs(processes, timeout=20)[1] == []
    assert not run.of("killing") and not run.of("worker_died"), run.said()


def test_parameter_servers_are_spread_over_the_hosts(
    start: Callable[..., Run], hosts: Hosts, tmp_path: Path
) -> None:
    hosts.are("127.0.0.2", "127.0.0.3")
    lock = tmp_path / "locked"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        options = ("--ps", "2", "--slots", "8", "--ps-return", "0.2", "--ps-snapshot", "0.3")
        kept = ("--checkpoint", str(tmp_path / "kept"), "--workers", "1:1")
        pusher = str(Path(__file__).parent / "scripts" / "ps_pusher.py")
        run = start(*options, *kept, script=(pusher, "12", str(lock)))
        first = run.until("ps_started", ps="ps0")["message"], run.until("ps_started", ps="ps1")["message"]
        assert "on 127.0.0.2," in first[0] and "on 127.0.0.3," in first[1]
        while run.until("output", worker="127.0.0.2-0")["line"] != "pushing":
            pass
        (server,) = node_of(run, "ps0").children()
        server.kill()
        assert "SIGKILL" in run.until("ps_died", ps="ps0")["message"]
        assert "on 127.0.0.2," in run.until("ps_started", ps="ps0")["message"]
        hosts.are("127.0.0.2")
        run.until("host_gone", ps="ps1")
        assert "on 127.0.0.2," in run.until("ps_started", ps="ps1")["message"]
        there = run.descendants()
    assert run.end() == 0, run.said()
    (applied,) = [one["line"] for one in run.of("output") if str(one.get("line")).startswith("applied")]
    assert json.loads(applied.removeprefix("applied ")) == [list(range(12))] * 8
    assert len(run.of("ps_died")) == 1 and not run.of("killing"), "who leaves its host drains"
    assert psutil.wait_procs(there, timeout=20)[1] == []


def test_what_cannot_work_is_refused_before_anything_starts(
    start: Callable[..., Run], hosts: Hosts, tmp_path: Path
) -> None:
    hosts.are("gpu7.example:4")
    far = start()
    assert far.end() == 3
    assert far.lines == [] and not (tmp_path / "reports").exists()
    assert start("--listen", "0.0.0.0").end() == 2
    assert start("--listen", "h:1", "--master", "m:1").end() == 2
    assert start("--local-workers", "2").end() == 2
    assert start("--ps", "1").end() == 2, "other hosts do not reach this one's folder for slots"
    hosts.fail()
    assert start().end() == 1
