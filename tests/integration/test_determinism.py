"""Rings of unlike instruction sets at each level: other bits at D0, refused at D1, the same bits at D2.

This machine has one CPU; a worker is made unlike by the variables that libraries choose their code by,
as if it ran on an older one. The model's bits depend on them, which the test at D0 proves.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import patience
from compared_runs import compare_runs
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_cli.rehearse.cluster import ClusterError, LocalCluster, local_cluster
from elastane_cli.rehearse.results import leader_report
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.client import MasterClient
from elastane_common.determinism import Level, process_environment
from elastane_common.errors import EXIT_REFUSED
from elastane_common.processes.child import ExitStatus
from elastane_proto.v1 import job_pb2
from integration.forkserver import all_forked, fork_servers
from slow import further, slow

SCRIPT = Path(__file__).parent / "scripts" / "train_levels.py"
ESTS, STEPS_PER_EPOCH, EPOCHS = 2, 4, 2
#: What torch says of the instruction set when nothing is pinned.
OWN = torch.backends.cpu.get_cpu_capability()
#: An older CPU than this one, for each of the libraries; and what torch calls it.
OLDER, OLDER_NAME = (
    ({"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}, "AVX2")
    if OWN == "AVX512"
    else (
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
        "DEFAULT",
    )
)

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or OWN not in ("AVX2", "AVX512"),
    reason=f"needs two instruction sets of x86 to choose from; this CPU has {OWN} alone",
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell of the tests pins nothing."""
    for name in process_environment(Level.D2, 1):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module", autouse=True)
def one_server_for_each_environment() -> Iterator[None]:
    """Of which there are many here; the seed of string hashes does not matter."""
    with fork_servers(per_environment=1) as servers, all_forked(servers):
        yield


@functools.cache
def reference(level: Level, older: bool = False) -> Path:
    """Reports of the fixed run at that level, on this CPU or an older one."""
    folder = Path(tempfile.mkdtemp(prefix="elastane-reference-"))
    variables = {"ELASTANE_DETERMINISM": level.value} | (OLDER if older else {})
    return run_stock_ddp(folder, [str(SCRIPT)], processes=ESTS, environment=variables)


def weights(reports: Path) -> str:
    """sha256 of the fixed run's."""
    found: str = json.loads((reports / "ddp-0.json").read_text())["fingerprint"]["weights"]
    return found


def settings(level: Level) -> job_pb2.JobSettings:
    """Both workers are in the ring from the first step on."""
    return job_pb2.JobSettings(
        ests=ESTS, workers_min=2, workers_max=2, audit_samples=True, determinism=level.to_proto()
    )


def unequal(cluster: LocalCluster, expected: Path) -> list[str]:
    """Names of what differs from the fixed run, once the job has succeeded."""
    job = cluster.wait_for(lambda job: job.phase == job_pb2.JOB_PHASE_SUCCEEDED, what="the end")
    history = list(cluster.client.audit_log(cluster.job))
    assert job.settings.determinism
    return rows(cluster.reports, expected, history)


def rows(reports: Path, expected: Path, history: list[Any]) -> list[str]:
    comparison = compare_runs(
        reports, expected, history, ests=ESTS, dataset_size=64, steps_per_epoch=STEPS_PER_EPOCH
    )
    assert comparison.values == ESTS * STEPS_PER_EPOCH * EPOCHS
    assert comparison.audit.ok, comparison.audit.violations
    return [row.name for row in comparison.rows if not row.equal]


@slow
def test_the_instruction_set_decides_the_bits() -> None:
    assert weights(reference(Level.D1)) == weights(reference(Level.D0))
    assert weights(reference(Level.D0, older=True)) != weights(reference(Level.D0))


@slow
def test_at_d0_unlike_workers_train_together_and_their_mixture_decides(tmp_path: Path) -> None:
    with local_cluster(tmp_path, settings(Level.D0), [str(SCRIPT)]) as cluster:
        cluster.add_worker()
        cluster.add_worker(environment=OLDER)
        try:
            differing = unequal(cluster, reference(Level.D0))
        except ClusterError as stopped:
            # On some processors the optimizer's own arithmetic depends on the instruction set: workers drift
            # apart, and that must be noticed.
            assert "hold different state" in str(stopped)
            return
    assert "weights" in differing and "logged values" in differing
    mixture = leader_report(cluster.reports)["fingerprint"]["weights"]
    assert mixture not in (weights(reference(Level.D0)), weights(reference(Level.D0, older=True)))


@slow
def test_at_d1_the_unlike_worker_is_refused_in_words(tmp_path: Path) -> None:
    with local_cluster(tmp_path, settings(Level.D1), [str(SCRIPT)]) as cluster:
        cluster.add_worker("first")
        cluster.wait_for(lambda job: len(job.workers) == 1, what="the first worker")
        cluster.add_worker("older", OLDER)
        assert cluster.workers["older"].wait(60) == ExitStatus(EXIT_REFUSED), cluster.last_lines()
        said = (tmp_path / "older.log").read_text()
        assert f"instruction_set differs: the job has {OWN}, older has {OLDER_NAME}" in said
        assert "--determinism d2" in said and "--determinism d0" in said
        assert [one.worker_id for one in cluster.client.get_job(cluster.job).workers] == ["first"]


@further  # unit/test_determinism_levels.py: what a process says; refused: the test above
def test_at_d2_workers_started_by_hand_are_told_what_to_set(tmp_path: Path) -> None:
    with local_cluster(tmp_path, settings(Level.D2), [str(SCRIPT)]) as cluster:
        cluster.add_worker("unlike", OLDER | {"ATEN_CPU_CAPABILITY": "default"})
        cluster.add_worker("at_d1", {"ELASTANE_DETERMINISM": "d1"})
        for name in ("unlike", "at_d1"):
            assert cluster.workers[name].wait(60) == ExitStatus(EXIT_REFUSED), cluster.last_lines()
        said = (tmp_path / "unlike.log").read_text()
        assert "pins ATEN_CPU_CAPABILITY=avx2" in said and "ATEN_CPU_CAPABILITY=default" in said
        said = (tmp_path / "at_d1.log").read_text()
        assert "determinism differs: the job has d2, at_d1 has d1" in said
        assert "elastane run" in said


def run_agent(address: str, reports: Path, shell: dict[str, str]) -> subprocess.Popen[str]:
    """`elastane run` from a shell with those variables, one worker."""
    options = ["--ests", str(ESTS), "--workers", "2:2", "--local-workers", "1", "--job", "unlike"]
    options += ["--determinism", "d2", "--master", address]
    return subprocess.Popen(
        [sys.executable, "-m", "elastane_cli", "run", *options, str(SCRIPT)],
        env={**os.environ, **shell, "ELASTANE_REPORT_DIR": str(reports)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@slow
def test_at_d2_agents_of_unlike_machines_give_the_same_bits(tmp_path: Path) -> None:
    """Each agent's shell asks for another instruction set; the level's pins go over it."""
    newer = {"ATEN_CPU_CAPABILITY": OWN.lower(), "NPY_DISABLE_CPU_FEATURES": "", "OMP_NUM_THREADS": "2"}
    master = EmbeddedMaster(tmp_path / "state")
    master.start()
    reports = tmp_path / "reports"
    agents = [run_agent(master.address, reports, shell) for shell in (newer, OLDER)]
    try:
        said = [patience.communicate(agent, 120)[0] for agent in agents]
        assert [agent.returncode for agent in agents] == [0, 0], "\n".join(said)
        with MasterClient(master.address, timeout_seconds=30.0) as client:
            job = client.get_job("unlike")
            history = list(client.audit_log("unlike"))
        shown = subprocess.run(
            [sys.executable, "-m", "elastane_cli", "status", "unlike", "--master", master.address, "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
        master.stop()
    assert job.settings.determinism == job_pb2.DETERMINISM_LEVEL_D2
    assert json.loads(shown.stdout)["settings"]["determinism"] == "d2"
    assert rows(reports, reference(Level.D2), history) == []
    # The pins were in effect: what nobody pins has other bits.
    assert weights(reference(Level.D2)) != weights(reference(Level.D1)) or OWN == "AVX2"
