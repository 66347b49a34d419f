"""The supervisor with real worker processes and a master of canned answers."""

from __future__ import annotations

import ast
import fcntl
import io
import json
import os
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from elastane_agent.supervisor.agent import Agent
from elastane_agent.supervisor.agent_events import JobNews, MasterAway
from elastane_agent.supervisor.budget import RestartBudget
from elastane_agent.supervisor.job_reading import is_undecided, job_view, sent_away
from elastane_agent.supervisor.policy import RAISES_BEFORE_JOIN_MAX
from elastane_agent.supervisor.settings import AgentSettings, HostSettings
from elastane_agent.supervisor.worker_command import remote_start
from elastane_common.client_errors import RequestRefusedError
from elastane_common.determinism import Level, process_environment
from elastane_common.processes.output import Output
from elastane_proto.v1 import common_pb2, job_pb2, ring_pb2
from unit.cli.fake_master import FakeMaster, serving


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    fake = FakeMaster()
    fake.jobs.clear()
    with serving(fake) as address:
        fake.address = address
        yield fake


class Lines(io.StringIO):
    """What the agent writes, with actions of the test that follow on certain lines."""

    def __init__(self, reactions: dict[str, Callable[[], None]]) -> None:
        super().__init__()
        self._reactions = dict(reactions)
        self.failures: list[BaseException] = []

    def write(self, text: str) -> int:
        count = super().write(text)
        for word in [word for word in self._reactions if word in text]:
            reaction = self._reactions.pop(word)
            threading.Thread(target=self._react, args=(reaction,)).start()
        return count

    def _react(self, reaction: Callable[[], None]) -> None:
        try:
            reaction()
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            self.failures.append(error)


def run_agent(
    master: FakeMaster,
    tmp_path: Path,
    script: str,
    *,
    workers: int = 2,
    workers_max: int = 2,
    reactions: dict[str, Callable[[], None]] | None = None,
    budget: RestartBudget | None = None,
) -> tuple[int, list[dict[str, object]]]:
    """Exit code, and what was said as JSON."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    settings = AgentSettings(
        command=(str(path), "argument"),
        job="j",
        settings=job_pb2.JobSettings(ests=4, workers_min=1, workers_max=workers_max, seed=5),
        local_workers=workers,
        master=master.address,
        master_timeout_seconds=30.0,
        grace_seconds=20.0,
        budget=budget or RestartBudget(delay_min_seconds=0.01),
    )
    out = Lines(reactions or {})
    code = Agent(settings, Output(as_json=True, stdout=out, stderr=io.StringIO())).run()
    assert out.failures == []
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


def of_kind(said: list[dict[str, object]], event: str) -> list[dict[str, object]]:
    return [line for line in said if line["event"] == event]


def succeed(master: FakeMaster) -> Callable[[], None]:
    return lambda: master.change("j", phase=job_pb2.JOB_PHASE_SUCCEEDED, reason="done")


def test_workers_get_their_environment_and_the_end_of_the_job_ends_the_agent(
    master: FakeMaster, tmp_path: Path
) -> None:
    script = """
        import os, sys
        print(sys.argv[1], os.environ["OMP_NUM_THREADS"], os.environ["PYTHONUNBUFFERED"])
        print({k: v for k, v in os.environ.items() if k.startswith("ELASTANE_")})
    """
    code, said = run_agent(master, tmp_path, script, workers=1, reactions={"w0 finished": succeed(master)})
    assert code == 0
    lines = [str(line["line"]) for line in of_kind(said, "output")]
    assert lines[0] == "argument 1 1"
    found = ast.literal_eval(lines[1])
    environment = {name: value for name, value in found.items() if os.environ.get(name) != value}
    for name in ("ELASTANE_NOTICE_FILE", "ELASTANE_CAPACITY_FILE"):
        assert not Path(environment.pop(name)).parent.exists()  # it goes with the agent
    assert environment == {
        "ELASTANE_MODE": "elastic",
        "ELASTANE_MASTER": master.address,
        "ELASTANE_JOB": "j",
        "ELASTANE_WORKER_ID": "w0",
        "ELASTANE_ESTS": "4",
        "ELASTANE_SEED": "5",
        "ELASTANE_TORCH_THREADS": "1",
        "ELASTANE_DETERMINISM": "d1",
        "ELASTANE_MASTER_TIMEOUT_SECONDS": "30.0",
        "ELASTANE_NOTICE_SECONDS": "20.0",
        "ELASTANE_DRAIN_EXIT_CODE": "80",
    }
    assert of_kind(said, "job_succeeded")


def test_a_killed_worker_is_started_again(master: FakeMaster, tmp_path: Path) -> None:
    script = f"""
        import os, pathlib, signal
        first = pathlib.Path({str(tmp_path)!r}) / "died"
        if os.environ["ELASTANE_WORKER_ID"] == "w1" and not first.exists():
            first.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    """

    code, said = run_agent(master, tmp_path, script, reactions={"w1 finished": succeed(master)})
    assert code == 0
    assert len(of_kind(said, "worker_started")) == 3
    (died,) = of_kind(said, "worker_died")
    assert died["worker"] == "w1" and "SIGKILL" in str(died["message"])


def test_a_refused_worker_stops_the_others(master: FakeMaster, tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        if os.environ["ELASTANE_WORKER_ID"] == "w0":
            print("model differs", file=sys.stderr)
            sys.exit(82)
        signal.pause()
    """
    code, said = run_agent(master, tmp_path, script)
    assert code == 3
    assert of_kind(said, "worker_refused")
    assert any(
        line["line"] == "model differs" and line["stream"] == "stderr" for line in of_kind(said, "output")
    )


def test_a_broken_script_is_given_up(master: FakeMaster, tmp_path: Path) -> None:
    code, said = run_agent(master, tmp_path, "raise ValueError('broken')")
    assert code == 1
    starts = Counter(line["worker"] for line in of_kind(said, "worker_started"))
    assert min(starts.values()) == RAISES_BEFORE_JOIN_MAX, "given up with the slower one's last failure"
    assert "without a step in between" in str(of_kind(said, "worker_died")[-1]["message"])


def test_scaling_out_starts_workers_and_the_end_waits_for_them(master: FakeMaster, tmp_path: Path) -> None:
    gate = os.open(tmp_path / "gate", os.O_RDWR | os.O_CREAT)
    fcntl.flock(gate, fcntl.LOCK_EX)
    script = f"""
        import fcntl, os
        print("up", os.environ["ELASTANE_WORKER_ID"])
        fcntl.flock(os.open({str(tmp_path / "gate")!r}, os.O_RDONLY), fcntl.LOCK_SH)
    """
    reactions = {
        "up w0": lambda: master.change("j", workers_max=3),
        "up w2": lambda: master.change("j", phase=job_pb2.JOB_PHASE_FAILED, reason="poisoned"),
        "job_failed": lambda: os.close(gate),
    }
    code, said = run_agent(master, tmp_path, script, workers=3, workers_max=1, reactions=reactions)
    assert code == 1
    assert [line["worker"] for line in of_kind(said, "worker_started")] == ["w0", "w1", "w2"]
    assert "poisoned" in str(of_kind(said, "job_failed")[0]["message"])
    assert len(of_kind(said, "worker_exited")) == 3


def test_a_drained_worker_stays_away_if_it_was_asked_to_leave(master: FakeMaster, tmp_path: Path) -> None:
    master.events = [
        ring_pb2.Event(sequence=1, kind="worker_joined", worker_id="w1", reason="w1 joined"),
        ring_pb2.Event(sequence=2, kind="worker_draining", worker_id="w1", reason="asked for by an operator"),
        ring_pb2.Event(sequence=3, kind="worker_joined", worker_id="w0", reason="w0 joined"),
    ]
    script = """
        import os, sys
        sys.exit(80 if os.environ["ELASTANE_WORKER_ID"] == "w1" else 0)
    """
    code, said = run_agent(master, tmp_path, script, reactions={"w1 was drained": succeed(master)})
    assert code == 0
    assert len(of_kind(said, "worker_started")) == 2 and of_kind(said, "worker_drained")


@pytest.mark.parametrize(
    ("history", "away"),
    [
        ([("worker_joined", "w1 joined"), ("worker_draining", "asked for by an operator")], True),
        ([("worker_joined", "w1 joined"), ("worker_draining", "SIGTERM")], False),
        ([("worker_draining", "asked for by an operator"), ("worker_joined", "w1 joined")], False),
        ([], False),
    ],
)
def test_sent_away(history: list[tuple[str, str]], away: bool) -> None:
    events = [ring_pb2.Event(kind=kind, worker_id="w1", reason=reason) for kind, reason in history]
    assert sent_away("w1", events) is away
    assert sent_away("w2", events) is False


@pytest.mark.parametrize(
    ("kinds", "undecided"),
    [
        (["sentinel_difference", "sentinel_undecided", "job_suspended"], True),
        (["sentinel_undecided", "job_suspended", "job_resumed", "job_suspended"], False),
        (["job_suspended"], False),
    ],
)
def test_who_suspended_the_job_is_in_its_events(kinds: list[str], undecided: bool) -> None:
    assert is_undecided(ring_pb2.Event(kind=kind) for kind in kinds) is undecided


def test_a_job_that_vanishes_is_told(master: FakeMaster, tmp_path: Path) -> None:
    script = "import signal; print('up'); signal.pause()"

    def vanish() -> None:
        with master._changed:
            job = master.jobs.pop("j")
            job.revision += 1
            master._changed.notify_all()

    code, said = run_agent(master, tmp_path, script, workers=1, reactions={"up": vanish})
    assert code == 3
    assert "the job is lost" in str(of_kind(said, "failed")[0]["message"])


def test_a_master_that_refuses_the_job(master: FakeMaster, tmp_path: Path) -> None:
    master.fail_next = [lambda context: context.abort(grpc.StatusCode.INVALID_ARGUMENT, "ests is 0")]
    with pytest.raises(RequestRefusedError, match="ests is 0"):
        run_agent(master, tmp_path, "")


def test_the_level_of_the_job_goes_over_what_the_shell_says(
    master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = process_environment(Level.D2, 2)
    for name in wanted:
        monkeypatch.setenv(name, "of the shell")
    master.jobs["j"] = job_pb2.Job(
        name="j",
        phase=job_pb2.JOB_PHASE_RUNNING,
        settings=job_pb2.JobSettings(
            ests=4, workers_min=1, workers_max=1, torch_threads=2, determinism=Level.D2.to_proto()
        ),
    )
    script = f"import os; print({{name: os.environ[name] for name in {list(wanted)}}})"
    code, said = run_agent(master, tmp_path, script, reactions={"w0 finished": succeed(master)})
    assert code == 0
    assert [ast.literal_eval(str(line["line"])) for line in of_kind(said, "output")] == [wanted]


def test_settings_of_the_job_as_found_count(master: FakeMaster, tmp_path: Path) -> None:
    master.jobs["j"] = job_pb2.Job(
        name="j",
        phase=job_pb2.JOB_PHASE_RUNNING,
        settings=job_pb2.JobSettings(ests=4, workers_min=1, workers_max=1, torch_threads=3),
    )
    script = "import os; print(os.environ['OMP_NUM_THREADS'], 'ELASTANE_SEED' in os.environ)"
    code, said = run_agent(master, tmp_path, script, reactions={"w0 finished": succeed(master)})
    assert code == 0 and len(of_kind(said, "worker_started")) == 1
    assert [line["line"] for line in of_kind(said, "output")] == ["3 False"]


def test_a_master_that_is_away_while_workers_run_is_said_once() -> None:
    err = io.StringIO()
    settings = AgentSettings(("train.py",), "j", None, 1, master="m:1", master_timeout_seconds=30.0)
    watching = Agent(settings, Output(stdout=io.StringIO(), stderr=err, color=True))
    watching._address = "m:1"
    for at in (100.0, 101.0):
        watching._handle(at, MasterAway("Connection refused"))
    assert err.getvalue() == "", "it may be but a moment"
    for at in (103.0, 105.0, 110.0):
        watching._handle(at, MasterAway("Connection refused"))
    watching._handle(111.0, JobNews(job_pb2.Job(name="j")))
    watching._handle(112.0, JobNews(job_pb2.Job(name="j")))
    said = err.getvalue()
    assert (
        said.count("m:1 does not answer (Connection refused); workers wait up to 30 s (--master-timeout)")
        == 1
    )
    assert [left in said for left in ("27 s left", "25 s left", "20 s left")] == [True] * 3
    assert said.count("the master answers again") == 1


def test_what_an_agent_reads_of_a_job_that_scales_by_itself() -> None:
    member, standby, draining = (
        getattr(job_pb2, f"WORKER_STATE_{state}") for state in ("MEMBER", "STANDBY", "DRAINING")
    )
    on_demand = common_pb2.CAPACITY_TYPE_ON_DEMAND
    job = job_pb2.Job(
        phase=job_pb2.JOB_PHASE_RUNNING,
        settings=job_pb2.JobSettings(ests=8, workers_max=6),
        workers=[
            job_pb2.WorkerInfo(worker_id="a", state=member, capacity=on_demand),
            job_pb2.WorkerInfo(worker_id="b", state=standby),
            job_pb2.WorkerInfo(worker_id="c", state=draining, capacity=on_demand),
        ],
    )
    plain = job_view(job)
    assert (plain.target, plain.wanted, plain.on_demand_max) == (None, 6, None)
    job.scaling.workers_target = 3
    view = job_view(job)
    assert (view.target, view.wanted, view.on_demand_max) == (3, 3, None)
    assert (view.attending, view.standby, view.on_demand) == ({"a", "b"}, {"b"}, {"a"})
    job.settings.on_demand_workers = 2
    assert job_view(job).on_demand_max == 0
    job.scaling.on_demand_target = 1
    assert job_view(job).on_demand_max == 1


def test_a_worker_on_another_host_reports_the_class_of_that_host(tmp_path: Path) -> None:
    hosts = HostSettings(tmp_path / "hosts.sh", "ssh {host} {command}")
    settings = AgentSettings(("train.py",), "j", None, 1, master="m:1", hosts=hosts)
    [*_, line], _ = remote_start(settings, "gpu3", {}, "on-demand")
    assert " --capacity on-demand -- " in line
