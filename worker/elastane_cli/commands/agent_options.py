"""The options of `elastane run` that belong to one agent, and not to the job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from elastane_cli.commands.run_options import (
    DEFAULT_TEMPLATE,
    HostsIntervalOption,
    HostsOption,
    HostsTimeoutOption,
    PassOption,
    RemoteOption,
    run_option,
)

PS_MAX: Final = 64
WARM_MAX: Final = 64
"""Numbers that were meant for something else would fill this machine's memory."""


def _agent(name: str, metavar: str | None, text: str, **options: Any) -> Any:
    return run_option(name, metavar, text, "This machine", **options)


@dataclass(frozen=True)
class AgentOptions:
    """Options of this agent on the command line, in the order of the help."""

    job: Annotated[
        str | None, _agent("--job", "NAME", "Name of the job.", show_default="the script's name")
    ] = None
    job_timeout: Annotated[
        float, _agent("--job-timeout", "SECONDS", "How long to wait for the job to join.", min=0.0)
    ] = 600.0
    local_workers: Annotated[
        int | None,
        _agent(
            "--local-workers",
            "K",
            "Maximum number of workers on this machine; 0: parameter servers alone (--ps).",
            min=0,
            show_default="MAX; 1 if a job is joined",
        ),
    ] = None
    ps: Annotated[
        int,
        _agent(
            "--ps",
            "COUNT",
            "For scripts with prepare_ps: number of parameter servers, on this machine or spread over the "
            "--hosts. They are restarted as workers are, and leave once no worker needs them.",
            min=0,
            max=PS_MAX,
        ),
    ] = 0
    warm: Annotated[
        int,
        _agent(
            "--warm",
            "COUNT",
            "Number of preloaded workers to keep on this machine: they have made the script's imports, so a "
            "worker that replaces a dead one trains within about a second. Each takes the memory of the "
            "imported libraries.",
            min=0,
            max=WARM_MAX,
        ),
    ] = 0
    relay: Annotated[
        bool,
        _agent(
            "--relay",
            None,
            "Carry the sessions of this machine's workers to the master in one stream: for jobs of hundreds "
            "of workers. Not with --hosts, nor with TLS.",
        ),
    ] = False
    master: Annotated[
        str,
        _agent(
            "--master",
            "HOST:PORT",
            "A running master; of several, all their addresses, comma-separated, or a DNS name that "
            "resolves to all.",
            show_default="embedded",
        ),
    ] = ""
    state_dir: Annotated[
        Path | None,
        _agent(
            "--state-dir",
            "DIR",
            "State folder of the embedded master; given again, the job continues.",
            show_default="a temporary folder",
        ),
    ] = None
    listen: Annotated[
        str,
        _agent(
            "--listen",
            "HOST[:PORT]",
            "Address of this machine at which other hosts reach the embedded master; an address other than "
            "loopback needs TLS and tokens (docs/security.md).",
            show_default="loopback",
        ),
    ] = ""
    hosts: HostsOption = None
    hosts_interval: HostsIntervalOption = 5.0
    hosts_timeout: HostsTimeoutOption = 60.0
    remote: RemoteOption = DEFAULT_TEMPLATE
    passed: PassOption = None
    max_restarts: Annotated[
        int, _agent("--max-restarts", "R", "Maximum number of restarts of dead workers in any hour.", min=0)
    ] = 10
    grace: Annotated[
        float, _agent("--grace", "SECONDS", "Time to drain after the first signal.", min=0.1)
    ] = 30.0
    master_timeout: Annotated[
        float, _agent("--master-timeout", "SECONDS", "How long workers wait for a lost master.", min=1.0)
    ] = 600.0
    spot: Annotated[
        str,
        _agent(
            "--spot",
            "SOURCE",
            "Source of spot-termination notices for this node: auto, none, aws, gcp, azure, alibaba, "
            "file:PATH (a file that appears) or http://URL (answers 200); several comma-separated. After a "
            "notice the workers drain in the time left.",
        ),
    ] = "auto"
    spot_url: Annotated[
        str,
        _agent(
            "--spot-url",
            "URL",
            "Address of the metadata service.",
            show_default="the cloud's own",
        ),
    ] = ""
    spot_poll: Annotated[
        float | None,
        _agent(
            "--spot-poll",
            "SECONDS",
            "Time between checks for a notice.",
            min=0.05,
            show_default="what the cloud recommends, 1 to 5",
        ),
    ] = None
    capacity: Annotated[
        Literal["auto", "spot", "on-demand"],
        _agent("--capacity", None, "How this node is billed; auto: ask its metadata service."),
    ] = "auto"
    prices: Annotated[
        str,
        _agent(
            "--prices",
            "FILE|URL",
            "Prices of workers, sent to the master as they change: a CSV or JSON file with at, spot, "
            "on_demand, or a JSON list of prices by device type, in a file or at an http(s) URL "
            "(docs/howto/spot.md). Give it to one agent of a job only.",
            show_default="none",
        ),
    ] = ""
    price_table: Annotated[
        Path | None,
        _agent(
            "--price-table", "FILE", "Former name of --prices FILE.", exists=True, dir_okay=False, hidden=True
        ),
    ] = None
    prices_interval: Annotated[
        float,
        _agent("--prices-interval", "SECONDS", "Time between two readings of a list of prices.", min=1.0),
    ] = 60.0
    prices_zone: Annotated[
        str,
        _agent(
            "--prices-zone",
            "ZONE",
            "Zone whose prices hold for the job's workers.",
            show_default="the only one of the list",
        ),
    ] = ""
    log_dir: Annotated[
        str,
        _agent(
            "--log-dir",
            "DIR|URL",
            "Keep every byte that the workers write, in a file WORKER.log for each, or in segments below an "
            "fsspec URL. The master has the last lines in any case, long ones cut (elastane logs).",
            show_default="none",
        ),
    ] = ""
    exit_codes: Annotated[
        Literal["shell", "pod"],
        _agent(
            "--exit-codes",
            None,
            "pod: use exit codes from 128 on for errors that may pass, for a controller that retries those.",
        ),
    ] = "shell"
    metrics: Annotated[
        str,
        _agent(
            "--metrics",
            "HOST:PORT",
            "Serve Prometheus metrics of this agent and its workers at /metrics.",
            show_default="none",
        ),
    ] = ""
    metrics_insecure: Annotated[
        bool,
        _agent(
            "--metrics-insecure",
            None,
            "Allow --metrics on an address that other machines reach: anybody can read them, without TLS.",
        ),
    ] = False
    http: Annotated[
        str,
        _agent(
            "--http",
            "HOST:PORT",
            "Serve the dashboard, metrics and probes of the embedded master.",
            show_default="none",
        ),
    ] = ""
