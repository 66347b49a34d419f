"""Nodes that a cloud takes away: `elastane run` reads the notice, drains in time, and no step is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from test_agent import Run
from test_matrix import Config, reference

from elastane.agent.master_process import EmbeddedMaster
from elastane.client import MasterClient
from elastane.demo.compare import PARTS, leader_report
from elastane_proto.v1 import job_pb2
from metadata_fakes import Metadata, metadata_service

CONFIG = Config(4, "adamw", data_workers=0, epochs=3)
TOTAL = CONFIG.epochs * CONFIG.steps_per_epoch
NOTICE_SECONDS = 15
"""The shortest that any provider gives: a pod on GKE."""


class Cloud:
    """Spot nodes, each with a metadata service of its own, training one job of one master."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.reports = folder / "reports"
        self._stack = stack
        self.master = EmbeddedMaster(folder / "state")
        self.master.start()
        stack.callback(self.master.stop)
        self.client = stack.enter_context(MasterClient(self.master.address, timeout_seconds=60.0))

    def node(self, workers: int) -> tuple[Run, Metadata]:
        """One more spot node with so many workers."""
        metadata = self._stack.enter_context(metadata_service("aws"))
        run = Run(
            *("--ests", "4", "--workers", "1:4", "--job", "j", "--master", self.master.address),
            *("--local-workers", str(workers), "--checkpoint", str(self.folder / "checkpoints")),
            *("--spot", "auto", "--spot-url", metadata.url, "--spot-poll", "0.1", "--join-window", "0.05"),
            *(*CONFIG.arguments, "--busy-seconds", "0.05"),
            environment={"ELASTANE_REPORT_DIR": str(self.reports)},
        )
        self._stack.callback(run.close)
        run.until("worker_started")
        return run, metadata

    def wait_for_step(self, step: int, workers: int = 0) -> None:
        """Until so many steps are committed, and so many workers are in the ring."""
        for job in self.client.watch_job("j"):
            members = sum(worker.state == job_pb2.WORKER_STATE_MEMBER for worker in job.workers)
            if job.step >= step and members >= workers:
                return

    def end(self, last: Run) -> None:
        """Waits for the last node's end, and compares with stock DDP; nothing may have been done twice."""
        assert last.end() == 0, last.said()
        stock = json.loads((reference(CONFIG) / "ddp-0.json").read_text())
        leader = leader_report(self.reports)
        assert leader["step"] == TOTAL
        assert [part for part in PARTS if leader["fingerprint"][part] != stock["fingerprint"][part]] == []
        assert len(list(self.client.audit_log("j"))) == 4 * TOTAL


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with ExitStack() as stack:
        yield Cloud(tmp_path, stack)


def reclaim(*services: Metadata) -> None:
    """The nodes go in `NOTICE_SECONDS`."""
    at = datetime.now(UTC) + timedelta(seconds=NOTICE_SECONDS)
    for service in services:
        service.notice = at.strftime("%Y-%m-%dT%H:%M:%SZ")


def assert_drained(run: Run) -> None:
    """Every worker left by itself, and the agent said why."""
    assert run.end() == 143, run.said()
    assert len(run.of("spot_notice")) == 1 and "spot notice of aws: spot terminate" in run.said()
    assert run.of("killing") == [], run.said()


def test_node_that_is_reclaimed_at_a_random_step_loses_none(cloud: Cloud) -> None:
    going, notice = cloud.node(2)
    staying, _ = cloud.node(1)
    step = random.randrange(2, TOTAL // 2)
    cloud.wait_for_step(step, workers=3)
    reclaim(notice)
    assert_drained(going)
    cloud.end(staying)
    reasons = [event.reason for event in cloud.client.events("j") if event.kind == "worker_draining"]
    assert len(reasons) == 2 and all("spot notice of aws" in reason for reason in reasons), (step, reasons)


def test_whole_job_that_is_reclaimed_goes_on_elsewhere(cloud: Cloud) -> None:
    nodes = [cloud.node(1), cloud.node(2)]
    cloud.wait_for_step(random.randrange(2, TOTAL // 2), workers=3)
    reclaim(*(notice for _, notice in nodes))
    for run, _ in nodes:
        assert_drained(run)
    job = cloud.client.get_job("j")
    assert job.saved_step == job.step < TOTAL, job
    elsewhere, _ = cloud.node(1)
    cloud.end(elsewhere)
