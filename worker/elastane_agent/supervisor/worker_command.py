"""Builds the command line and environment of a worker's process, here or on another host."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from elastane_agent.hosts.remote import remote_command, remote_variables
from elastane_agent.supervisor.other_launcher import without_ranks
from elastane_agent.supervisor.settings import AgentSettings
from elastane_common.credentials import worker_environment
from elastane_common.determinism import level_from_proto, process_environment
from elastane_common.exit_codes import EXIT_DRAINED
from elastane_proto.v1 import job_pb2

CAPACITY: Final = "ELASTANE_CAPACITY"
"""How a worker's host is billed, as the worker reports it."""

#: Variables that set options of the agent; a worker must not inherit them (ELASTANE_SEED comes from the job).
_OF_THE_AGENT: Final = ("ELASTANE_SEED", "ELASTANE_SPOT", "ELASTANE_SPOT_URL", CAPACITY)

Start = tuple[list[str], dict[str, str]]
"""Command and environment of a process."""


def worker_variables(agent: AgentSettings, job: job_pb2.Job, master: str, worker: str) -> dict[str, str]:
    """Return the variables that every worker gets, wherever it runs. master: the master's address."""
    return {
        # These override the agent's environment: they belong to the job.
        **job_variables(job.settings),
        "ELASTANE_MODE": "elastic",
        "ELASTANE_MASTER": master,
        "ELASTANE_JOB": agent.job,
        "ELASTANE_WORKER_ID": worker,
        "ELASTANE_MASTER_TIMEOUT_SECONDS": str(agent.master_timeout_seconds),
        "ELASTANE_NOTICE_SECONDS": str(agent.grace_seconds),
        "ELASTANE_DRAIN_EXIT_CODE": str(EXIT_DRAINED),
    }


def job_variables(settings: job_pb2.JobSettings) -> dict[str, str]:
    """Return the variables that a job's settings give each of its workers."""
    variables = {
        "PYTHONUNBUFFERED": "1",
        # A peer's death is a normal event here; torch would print a C++ backtrace for it.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **process_environment(level_from_proto(settings.determinism), settings.torch_threads),
        "ELASTANE_ESTS": str(settings.ests),
        "ELASTANE_TORCH_THREADS": str(max(1, settings.torch_threads)),
    }
    if settings.HasField("fingerprint_steps"):
        variables["ELASTANE_FINGERPRINT_STEPS"] = str(settings.fingerprint_steps)
    if settings.HasField("seed"):
        variables["ELASTANE_SEED"] = str(settings.seed)
    return variables


def local_start(agent: AgentSettings, variables: Mapping[str, str]) -> Start:
    """Return command and environment to start a worker on this machine."""
    return _command(agent), local_environment(variables)


def local_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process of the job on this machine: its own variables, and the agent's."""
    return _inherited() | dict(variables)


def remote_start(
    agent: AgentSettings,
    host: str,
    variables: Mapping[str, str],
    capacity: str,
    command: Sequence[str] = (),
) -> Start:
    """Return command and environment to start a process on another host, under its own agent (`agent.node`).

    capacity: of the host, "spot", "on-demand", or "auto" to ask its metadata service. command: empty: a
    worker's. Raises RefusedError if a token would be readable in the command line.
    """
    assert agent.hosts is not None
    node = [
        *(
            sys.executable,
            "-u",
            "-m",
            "elastane_agent.supervisor.node",
            "--grace",
            f"{agent.grace_seconds:g}",
        ),
        *("--spot", agent.notices, "--spot-url", agent.notices_url),
        *("--spot-poll", f"{agent.notices_poll_seconds:g}", "--capacity", capacity),
        *("--", *(command or _command(agent))),
    ]
    exported = remote_variables(_inherited(), variables, agent.hosts.passed)
    return remote_command(agent.hosts.template, host, node, exported, str(Path.cwd())), dict(os.environ)


def _command(agent: AgentSettings) -> list[str]:
    return [sys.executable, "-u", *agent.command]


def _inherited() -> dict[str, str]:
    environment = without_ranks(worker_environment(os.environ))
    return {name: value for name, value in environment.items() if name not in _OF_THE_AGENT}
