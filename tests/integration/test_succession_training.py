"""Training under two masters: the leader stops, dies or sleeps, and the result is that of stock DDP.

Neither costs a step: the ring stays as it is, nothing is done twice.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_matrix import SIZE, Config, reference

from compared_runs import compare_runs
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_cli.rehearse.cluster import LocalCluster
from elastane_common.client import MasterClient
from elastane_master.store.embedded import EmbeddedStore
from elastane_proto.v1 import job_pb2, shard_pb2
from integration.forkserver import ForkServers
from slow import slow_except

CONFIG = Config(2, epochs=8)
TOTAL = CONFIG.epochs * CONFIG.steps_per_epoch
LEASE_SECONDS = 1.0
STARTED = 5  # the first steps import and compile


class TwoMasters(LocalCluster):
    """A cluster whose workers know two masters on one store; `masters[0]` leads first."""

    masters: list[EmbeddedMaster]

    @property
    def addresses(self) -> str:
        return ",".join(master.address for master in self.masters)


@contextmanager
def two_masters(folder: Path, servers: ForkServers, busy_seconds: float) -> Iterator[TwoMasters]:
    store = EmbeddedStore(folder / "store")
    asyncio.run(store.start())
    settings = job_pb2.JobSettings(ests=2, workers_min=2, workers_max=2, audit_samples=True, seed=CONFIG.seed)
    script = [*CONFIG.arguments, "--busy-seconds", str(busy_seconds)]
    cluster = TwoMasters(folder, settings, script, launch=servers.launch)
    arguments = ["--store", store.url, "--leader-lease-seconds", str(LEASE_SECONDS)]
    cluster.masters = [EmbeddedMaster(folder / name, arguments=arguments) for name in ("a", "b")]
    cluster.master, standby = cluster.masters
    try:
        standby_started = False
        cluster.master.start()
        standby.start()
        standby_started = True
        cluster.client = MasterClient(cluster.addresses, timeout_seconds=60.0)
        cluster.client.create_job(cluster.job, settings)
        for _ in range(2):
            cluster.add_worker()
        yield cluster
    finally:
        cluster.close()
        if standby_started:
            standby.stop()
        asyncio.run(store.stop())


def stall(history: list[shard_pb2.AuditEntry]) -> tuple[float, float]:
    """Longest and middle time between two commits, in seconds."""
    committed = {entry.step: entry.committed.ToNanoseconds() / 1e9 for entry in history}
    times = [seconds for step, seconds in sorted(committed.items()) if step >= STARTED - 1]
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    return gaps[-1], gaps[len(gaps) // 2]


@pytest.mark.parametrize("fault", slow_except(["upgrade", "SIGKILL", "SIGSTOP"], "SIGKILL"))
def test_training_goes_on_under_the_next_leader(tmp_path: Path, servers: ForkServers, fault: str) -> None:
    with two_masters(tmp_path, servers, busy_seconds=0.03) as cluster:
        started = cluster.wait_for_step(STARTED)
        generation, fault_step = started.generation, started.step
        first, second = cluster.masters
        if fault == "upgrade":  # both masters, one after the other, each told to stop and started anew
            first.stop()
            cluster.wait_for_step(min(cluster.get_job().step + 5, TOTAL))
            first.start()
            second.stop()
            cluster.wait_for_step(min(cluster.get_job().step + 5, TOTAL))
            second.start()
        elif fault == "SIGKILL":
            first.sigkill()
            first.wait()
            cluster.wait_for_step(min(cluster.get_job().step + 5, TOTAL))
            first.start()
        else:
            process = first._process
            assert process is not None
            process.signal(signal.SIGSTOP)
            try:
                with MasterClient(second.address, timeout_seconds=60.0) as client:
                    step = client.get_job(cluster.job).step
                    for job in client.watch_job(cluster.job):
                        if job.step >= min(step + 5, TOTAL):
                            break
            finally:
                process.signal(signal.SIGCONT)
        job = cluster.wait_for_end()
        history = list(cluster.client.audit_log(cluster.job))
    assert job.phase == job_pb2.JOB_PHASE_SUCCEEDED, job.reason
    print(f"{fault} at step {fault_step}: longest and middle seconds between commits: {stall(history)}")
    # Nobody was evicted, no step was done twice.
    assert job.generation == generation
    assert len(history) == len({(entry.step, entry.virtual_rank) for entry in history}) == 2 * TOTAL
    comparison = compare_runs(
        cluster.reports,
        reference(CONFIG),
        history,
        ests=2,
        dataset_size=SIZE,
        steps_per_epoch=CONFIG.steps_per_epoch,
    )
    assert comparison.audit.ok, comparison.audit.violations
    assert [row.name for row in comparison.rows if not row.equal] == []
