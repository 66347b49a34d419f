"""Resources of workers: from a heartbeat to the command and the page."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import patience
from elastane_cli.commands.main import build_app
from elastane_common.client import MasterClient
from elastane_master.dashboard.facts import Gatherer
from elastane_master.dashboard.pages import Visitor, job_parts
from elastane_master.jobs import resource_series
from elastane_proto.v1 import ring_pb2
from integration.master_support import Worker
from integration.test_master_sessions import RING, SIGNATURE, form_ring, job


async def test_what_a_worker_reports_is_served_over_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_series, "SAMPLE_SECONDS", 0.0)
    async with job(tmp_path) as (master, channel):
        worker = Worker(channel, "a")
        await worker.hello(RING, signature=SIGNATURE)
        go = await form_ring(worker)
        for number in range(3):
            figures = ring_pb2.WorkerFigures(cpu_seconds=number, resident_bytes=3 << 20, step_counts=[number])
            await worker.send(heartbeat=ring_pb2.Heartbeat(generation=go.generation, figures=figures))
        with MasterClient(master.address) as client:
            async with patience.within(20):
                while len(found := await asyncio.to_thread(client.worker_resources, "j")) < 1:
                    await asyncio.sleep(0.01)
                while len(found["a"]) < 2:
                    found = await asyncio.to_thread(client.worker_resources, "j")
        assert found["a"][-1].resident_bytes == 3 << 20 and found["a"][-1].cpu_cores > 0
        command = ["status", "j", "--master", master.address]
        shown = await asyncio.to_thread(CliRunner().invoke, build_app(), command)
        assert "3.0 MiB" in shown.stdout and "ALL-REDUCE WAIT" in shown.stdout
        as_json = await asyncio.to_thread(CliRunner().invoke, build_app(), [*command, "--json"])
        assert len(json.loads(as_json.stdout)["resources"]["a"]) == 2
        facts = await Gatherer(master.jobs).facts(master.jobs.get("j"))
        part = job_parts(facts, Visitor("me", known=False, acts=False))["resources"]
        assert "3.0 MiB" in part and part.count("<polyline") == 4
