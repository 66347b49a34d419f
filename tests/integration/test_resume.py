"""Checkpoints end to end: cold resume with other workers and a new master, damage, full disk, suspend."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_matrix import Config, reference

from elastane_cli.rehearse.cluster import LocalCluster, local_cluster
from elastane_cli.rehearse.results import PARTS, leader_report
from elastane_proto.v1 import job_pb2
from slow import slow

CONFIG = Config(4, "adamw", data_workers=0, epochs=3)
TOTAL = CONFIG.epochs * CONFIG.steps_per_epoch


@contextmanager
def cluster_with_checkpoints(
    folder: Path, url: str, workers: int, *, busy_seconds: float = 0.0, interval: int = 0
) -> Iterator[LocalCluster]:
    settings = job_pb2.JobSettings(
        ests=4, workers_min=workers, workers_max=4, checkpoint_url=url, checkpoint_interval_steps=interval
    )
    script = [*CONFIG.arguments, "--busy-seconds", str(busy_seconds)]
    with local_cluster(folder, settings, script) as cluster:
        for _ in range(workers):
            cluster.add_worker()
        yield cluster


def assert_equal_to_stock(cluster: LocalCluster) -> None:
    stock = json.loads((reference(CONFIG) / "ddp-0.json").read_text())
    leader = leader_report(cluster.reports)
    assert leader["step"] == TOTAL
    assert [part for part in PARTS if leader["fingerprint"][part] != stock["fingerprint"][part]] == []


def interrupted_run(folder: Path, url: str) -> None:
    """Train with three workers to a checkpoint a good third in, then lose everything."""
    with cluster_with_checkpoints(folder, url, 3, busy_seconds=0.05) as cluster:
        for step in (4, 9):
            cluster.wait_for_step(step)
            saved = cluster.client.checkpoint_job(cluster.job)
            assert saved.step >= step


def test_cold_resume_with_a_new_master_and_fewer_workers(tmp_path: Path) -> None:
    url = str(tmp_path / "checkpoints")
    interrupted_run(tmp_path / "first", url)
    with cluster_with_checkpoints(tmp_path / "second", url, 2) as cluster:
        cluster.wait_for_end()
        events = list(cluster.client.events(cluster.job))
    assert_equal_to_stock(cluster)
    formed = next(event for event in events if event.kind == "ring_formed")
    assert int(formed.facts["resume_step"]) >= 9


@slow
def test_damaged_checkpoint_is_passed_over_and_named(tmp_path: Path) -> None:
    url = tmp_path / "checkpoints"
    interrupted_run(tmp_path / "first", str(url))
    newest = sorted(url.iterdir())[-1]
    shard = newest / "shard-00001-of-00003.bin"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with cluster_with_checkpoints(tmp_path / "second", str(url), 1) as cluster:
        cluster.wait_for_end()
        events = list(cluster.client.events(cluster.job))
    assert_equal_to_stock(cluster)
    rejected = [event.reason for event in events if event.kind == "checkpoint_rejected"]
    assert rejected and newest.name in rejected[0]


def test_all_workers_lost_goes_back_to_the_last_checkpoint(tmp_path: Path) -> None:
    with cluster_with_checkpoints(
        tmp_path / "run", str(tmp_path / "checkpoints"), 2, busy_seconds=0.05
    ) as cluster:
        cluster.wait_for_step(6)
        cluster.client.checkpoint_job(cluster.job)
        cluster.wait_for_step(cluster.get_job().step + 3)
        for process in cluster.workers.values():
            process.kill_group()
        cluster.add_worker()
        cluster.add_worker()
        cluster.wait_for_end()
        history = list(cluster.client.audit_log(cluster.job))
    assert_equal_to_stock(cluster)
    assert len(history) > 4 * TOTAL  # some steps were committed twice, and count once
    assert len({(entry.step, entry.virtual_rank) for entry in history}) == 4 * TOTAL


def test_suspend_and_resume(tmp_path: Path) -> None:
    with cluster_with_checkpoints(
        tmp_path / "run", str(tmp_path / "checkpoints"), 2, busy_seconds=0.05
    ) as cluster:
        cluster.wait_for_step(5)
        cluster.client.suspend_job(cluster.job)
        job = cluster.wait_for_end()
        assert job.phase == job_pb2.JOB_PHASE_SUSPENDED
        assert job.saved_step == job.step
        cluster.client.resume_job(cluster.job)
        for _ in range(3):
            cluster.add_worker()
        cluster.wait_for_end()
        history = list(cluster.client.audit_log(cluster.job))
    assert_equal_to_stock(cluster)
    assert len(history) == 4 * TOTAL  # nothing was done twice


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@slow
def test_full_disk_fails_the_checkpoint_and_not_the_training(tmp_path: Path, small_disk: Path) -> None:
    with cluster_with_checkpoints(
        tmp_path / "run", str(small_disk / "checkpoints"), 2, busy_seconds=0.02, interval=8
    ) as cluster:
        cluster.wait_for_end()
        events = list(cluster.client.events(cluster.job))
    assert_equal_to_stock(cluster)
    failed = [event.reason for event in events if event.kind == "checkpoint_failed"]
    assert failed and any("space" in reason.lower() for reason in failed)
