"""Collection of a scrape's figures from a running master: state and counters, job by job."""

from __future__ import annotations

import asyncio
import platform
from importlib import metadata
from typing import Protocol

from elastane_master.dashboard.routes import Dashboard
from elastane_master.decisions.events import Rejection
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_table import ClosedJob
from elastane_master.metrics.figures import (
    JobFacts,
    MasterFacts,
    Samples,
    add_closed,
    add_job,
    add_master,
    add_runs,
    is_shown,
)
from elastane_master.metrics.measures import MasterMeasures
from elastane_master.runs.run_server import RunServer
from elastane_master.security.tokens import Principal
from elastane_master.store.errors import StoreError, held_phase
from elastane_proto import versions


class Served(Dashboard, Protocol):
    """Interface of a master as the HTTP port uses it."""

    measures: MasterMeasures

    @property
    def leads(self) -> bool: ...

    @property
    def store_reachable(self) -> bool: ...

    @property
    def fencing_token(self) -> int:
        """Fencing token of the lease as last held by this master; 0 if never."""


async def gather(master: Served, caller: Principal) -> Samples:
    """Collect all figures `caller` may see: the master's, and those of the jobs covered by its token.

    Yields to the event loop between jobs, so that a master of a thousand jobs does not stall during a scrape.
    """
    samples = Samples()
    job_servers, closed, held = _jobs(master)
    facts = MasterFacts(
        version=metadata.version("elastane"),
        protocol=str(versions.PROTOCOL),
        python=platform.python_version(),
        leads=master.leads,
        store_reachable=master.store_reachable,
        fencing_token=master.fencing_token,
        phases=(
            *(job_server.machine.state.phase for job_server in job_servers),
            *(job.phase for job in closed),
            *held,
        ),
        gate_refusals=master.gate.refusals,
    )
    add_master(samples, facts, master.measures)
    if (server := _run_server(master)) is not None:
        add_runs(samples, server.machine, server.counters, server.clock())
        await asyncio.sleep(0)
    for job_server in job_servers:
        if caller.covers(job_server.name) and is_shown(job_server.machine, job_server.clock()):
            add_job(samples, job_server.machine, _facts(job_server), job_server.counters, job_server.clock())
            await asyncio.sleep(0)
    for job in closed:
        if caller.covers(job.name) and master.jobs is not None:
            add_closed(samples, job.name, job.phase, job.ended_at, master.jobs.clock())
    return samples


def _jobs(master: Served) -> tuple[list[JobServer], list[ClosedJob], list[str]]:
    """Return the jobs served now, closed ones, and phases of held ones; none while another may lead."""
    jobs = master.jobs
    if jobs is None:
        return [], [], []
    try:
        return jobs.all(), jobs.closed(), [held_phase(error) for error in jobs.held().values()]
    except Rejection:
        return [], [], []


def _run_server(master: Served) -> RunServer | None:
    """Return the server of the runs; None while another master may lead, or the runs are held."""
    try:
        return master.runs.server if master.runs is not None else None
    except (Rejection, StoreError):
        return None


def _facts(job_server: JobServer) -> JobFacts:
    log = job_server.log
    return JobFacts(
        lease_waiters=job_server.task_waiters.count,
        sessions=len(job_server.sessions),
        watchers=job_server.watchers,
        pending_appends=log.appended - log.durable,
        log_bytes=log.log_bytes,
        snapshot_bytes=log.snapshot_bytes,
        slots=job_server.slots.measured(),
    )
