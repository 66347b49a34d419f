"""Nodes that a cloud takes away: `elastane run` reads the notice, drains in time, and no step is lost."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from test_agent import Run
from test_matrix import Config, reference

from elastane.runtime.rehearsal import Gate, Rehearsal
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_cli.rehearse.results import PARTS, leader_report
from elastane_common.client import MasterClient
from elastane_proto.v1 import job_pb2, ring_pb2
from integration.forked_cli import ForkedCommands
from metadata_fakes import Metadata, metadata_service
from slow import slow

CONFIG = Config(4, "adamw", data_workers=0, epochs=3)
TOTAL = CONFIG.epochs * CONFIG.steps_per_epoch
NOTICE_SECONDS = 15
"""The shortest that any provider gives: a pod on GKE."""


class Cloud:
    """Spot nodes, each with a metadata service of its own, training one job of one master."""

    def __init__(self, folder: Path, stack: ExitStack, forked: ForkedCommands) -> None:
        self.folder = folder
        self.reports = folder / "reports"
        self._stack, self._forked = stack, forked
        self.master = EmbeddedMaster(folder / "state")
        self.master.start()
        stack.callback(self.master.stop)
        self.client = stack.enter_context(MasterClient(self.master.address, timeout_seconds=60.0))

    def node(self, workers: int, *options: str, capacity: str = "spot") -> tuple[Run, Metadata]:
        """One more node with so many workers."""
        metadata = self._stack.enter_context(metadata_service("aws"))
        metadata.capacity = capacity
        run = Run(
            *("--ests", "4", "--workers", "1:4", "--job", "j", "--master", self.master.address),
            *("--local-workers", str(workers), "--checkpoint", str(self.folder / "checkpoints")),
            *("--spot", "auto", "--spot-url", metadata.url, "--spot-poll", "0.1", "--join-window", "0.05"),
            *("--lease", "300", *options),
            *(*CONFIG.arguments, "--busy-seconds", "0.05"),
            environment={
                "ELASTANE_REPORT_DIR": str(self.reports),
                **Rehearsal(gates=str(self.folder / "gates")).environment(),
            },
            forked=self._forked,
        )
        self._stack.callback(run.close)
        run.until("worker_started")
        return run, metadata

    def gate(self, step: int) -> Gate:
        """Holds the ring in that step, so that no node is too late on a busy machine."""
        gate = Gate(self.folder / "gates" / str(step))
        self._stack.callback(gate.open)
        return gate

    def pass_with(self, gate: Gate, step: int, workers: int) -> None:
        """Lets the ring go on once so many workers attend; until all of them train."""
        for job in self.client.watch_job("j"):
            if len(job.workers) >= workers:
                break
        gate.open()
        self.wait_for_step(step, workers)

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
def cloud(tmp_path: Path, forked_commands: ForkedCommands) -> Iterator[Cloud]:
    with ExitStack() as stack:
        yield Cloud(tmp_path, stack, forked_commands)


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


#: Seconds since the job was created, spot, on demand: enough of an hour's price for cents to show.
PRICES = [
    (0, "360.00", "1080.00"),
    (0.3, "414.36", "1080.00"),
    (0.8, "200.10", "990.90"),
    (1.5, "", "1111.11"),
]


def recount(events: Iterable[ring_pb2.Event], on_demand: set[str]) -> int:
    """What was spent in millionths, by what the master told: who came and went, and each change of prices."""
    spent, last, there = Fraction(0), 0, set[str]()
    prices = {False: Fraction(0), True: Fraction(0)}
    for event in events:
        now = event.time.ToNanoseconds()
        for worker in there:
            spent += prices[worker in on_demand] * (now - last)
        last = now
        if event.kind == "worker_joined":
            there.add(event.worker_id)
        elif event.kind in ("worker_left", "worker_lost", "worker_evicted"):
            there.discard(event.worker_id)
        elif event.kind == "prices_changed":
            found = re.match(r"spot ([0-9.]+) USD and on demand ([0-9.]+) USD an hour", event.reason)
            assert found is not None, event.reason
            prices = {False: Fraction(found[1]), True: Fraction(found[2])}
    assert not there
    return round(spent * 1_000_000 / (3600 * 10**9))


def follows_table(events: Iterable[ring_pb2.Event], created: int) -> None:
    """Each change of prices is that of a row whose time had come, in the order of the rows.

    The agent reads the table before the master dates the change: on a busy machine the next row's time has
    come by then.
    """
    changes = [event for event in events if event.kind == "prices_changed"]
    assert len(changes) >= 2, "the table has rows for the time in which it trained"
    rows, spot = [], ""
    for at, changed, on_demand in PRICES:
        spot = changed or spot
        rows.append((at * 10**9, f"spot {spot} USD and on demand {on_demand} USD"))
    for event in changes:
        while rows and rows[0][1] not in event.reason:
            rows.pop(0)
        assert rows, f"not the prices of a later row: {event.reason}"
        at, _ = rows.pop(0)
        assert at <= event.time.ToNanoseconds() - created, event.reason


def test_node_that_is_reclaimed_at_a_random_step_loses_none(cloud: Cloud) -> None:
    table = cloud.folder / "prices.csv"
    table.write_text("at,spot,on_demand\n" + "".join(f"{at},{spot},{full}\n" for at, spot, full in PRICES))
    step = random.randrange(2, TOTAL // 2)
    gate = cloud.gate(step)
    going, notice = cloud.node(2, "--price-table", str(table))
    staying, _ = cloud.node(1, capacity="on-demand")
    cloud.pass_with(gate, step, workers=3)
    reclaim(notice)
    assert_drained(going)
    cloud.end(staying)
    reasons = [event.reason for event in cloud.client.events("j") if event.kind == "worker_draining"]
    assert len(reasons) == 2 and all("spot notice of aws" in reason for reason in reasons), (step, reasons)
    on_demand = {line["worker"] for line in staying.of("worker_started")}
    cost = cloud.client.get_job("j").cost
    spent = recount(cloud.client.events("j"), on_demand)
    assert abs(cost.spent_micros - spent) <= 1, (cost, spent)
    follows_table(cloud.client.events("j"), cloud.client.get_job("j").created.ToNanoseconds())
    assert cost.spent_micros > 0 and cost.saved_micros == cost.on_demand_micros - cost.spent_micros
    assert cost.replayed_seconds < 0.5 * cost.worker_seconds and not cost.unpriced_seconds


@slow
def test_whole_job_that_is_reclaimed_goes_on_elsewhere(cloud: Cloud) -> None:
    step = random.randrange(2, TOTAL // 2)
    gate = cloud.gate(step)
    nodes = [cloud.node(1), cloud.node(2)]
    cloud.pass_with(gate, step, workers=3)
    reclaim(*(notice for _, notice in nodes))
    for run, _ in nodes:
        assert_drained(run)
    job = cloud.client.get_job("j")
    assert job.saved_step == job.step < TOTAL, job
    elsewhere, _ = cloud.node(1)
    cloud.end(elsewhere)
