"""Runs of a local training service, submitted and read as users do it."""

from __future__ import annotations

import json
import sys
from typing import Final

import patience
from elastane_cli.rehearse.local_service import LocalService
from elastane_common.artifacts import read_record
from elastane_common.run_record import RunRecord
from elastane_proto.v1 import training_pb2

WAIT_SECONDS: Final = 3600.0
"""Limit of a wait; the test's own limit, which is patient, comes before."""


def submit(service: LocalService, *arguments: object) -> int:
    """Submit a run by `elastane submit`; return its id."""
    command = [sys.executable, "-m", "elastane_cli", "submit", "--master", service.address, "--detach"]
    done = patience.run(
        [*command, "--json", *map(str, arguments)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return int(json.loads(done.stdout)["run"]["run_id"])


def record_of(service: LocalService, run_id: int) -> RunRecord:
    """Wait for a run to succeed; return its record."""
    *_, run = service.training.watch(run_id)
    assert run.state == training_pb2.RUN_STATE_SUCCEEDED, run.reason
    service.wait_for(lambda: read_record(run.artifact_url) is not None, "the record", WAIT_SECONDS)
    record = read_record(run.artifact_url)
    assert record is not None
    return record
