"""`elastane run`: the counterpart of torchrun. Checks the options, then runs the agent."""

from __future__ import annotations

import re
import secrets
import socket
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer

from elastane.addresses import parse_addresses
from elastane.cli.common import command, exit_code, fail, worker_limits
from elastane.cli.cost import checked_currency, micros_of
from elastane.cli.run_options import (
    DEFAULT_TEMPLATE,
    SCRIPT_SETTINGS,
    HostsIntervalOption,
    HostsOption,
    HostsTimeoutOption,
    JsonOption,
    ModuleOption,
    PassOption,
    RemoteOption,
    ScriptArgument,
    metrics_address,
    require_script,
    run_option,
    variable,
)
from elastane.determinism import DEFAULT_LEVEL, Level

if TYPE_CHECKING:
    from elastane_proto.v1 import job_pb2

JOB_PANEL: Final = "The job"
LIMITS_PANEL: Final = "Time limits of the job"
#: Panels of the options that do not apply when joining a job: the master has their values.
_OF_THE_JOB: Final = (JOB_PANEL, LIMITS_PANEL)


_SECONDS_MAX: Final = 1e9
"""Upper bound of a job's time limits: thirty years."""


class Recovery(StrEnum):
    """Numbers of workers with which a job trains: any within the limits, or only the maximum."""

    ELASTIC = "elastic"
    FIXED = "fixed"


class Prices(NamedTuple):
    """Prices per worker and hour, in millionths of the currency; 0: unknown."""

    currency: str = "USD"
    spot_micros: int = 0
    on_demand_micros: int = 0


NO_PRICES = Prices()

#: rich keeps line ends, so a paragraph is one line of text.
HELP = "\n\n".join(
    (
        "Run a script elastically, on workers of this machine.",
        "Without --master this command starts an embedded master, which ends with it. The first Ctrl-C (or "
        "SIGTERM) lets the workers drain and leave, the second kills them.",
        "Examples:",
        "  elastane run --ests 4 train.py --epochs 10",
        "  elastane run --ests 8 --workers 1:4 --state-dir run1 --checkpoint run1/saved train.py",
        "  elastane run --ests 4 --master 10.0.0.5:50051 --local-workers 2 -m mypackage.train",
        "  elastane run --master 10.0.0.5:50051 --job digits train.py   (joins an existing job)",
        "  elastane run --ests 8 --hosts ./hosts.sh --listen 10.0.0.5 train.py   (over ssh, on the hosts "
        "it lists)",
        "Every option can also be set as a variable, so that a container's command may be just: elastane "
        "run train.py",
        "Exits with 0 if the job succeeded or was suspended or cancelled, 1 if it failed, 3 if it was "
        "refused, 4 if the master was unreachable, 5 if too few workers joined within --max-wait, 6 if the "
        "job to join was not created, 7 if the sentinel suspended it, 130 or 143 if a signal ended it. "
        "With --exit-codes pod, 204 and 206 replace 4 and 6.",
    )
)


def _job(name: str, metavar: str | None, text: str, **options: Any) -> Any:
    """Declare an option that belongs to the job, and so is equal for all agents of one job."""
    return run_option(name, metavar, text, JOB_PANEL, **options)


def _agent(name: str, metavar: str | None, text: str, **options: Any) -> Any:
    """Declare an option of this agent only."""
    return run_option(name, metavar, text, "This machine", **options)


def _limit(name: str, text: str, **options: Any) -> Any:
    """Declare an option for a time limit of the job."""
    return run_option(name, "SECONDS", text, LIMITS_PANEL, **options)


def register(app: typer.Typer) -> None:
    app.command("run", help=HELP, rich_help_panel="Run", context_settings=dict(SCRIPT_SETTINGS))(run)


@command
def run(
    context: typer.Context,
    script: ScriptArgument,
    ests: Annotated[
        int | None,
        _job(
            "--ests",
            "N",
            "Number of logical workers (ESTs); it decides the result. Without this option, the existing "
            "job named by --job is joined with the master's settings.",
            min=1,
            show_default=False,
        ),
    ] = None,
    module: ModuleOption = False,
    workers: Annotated[
        str | None,
        _job(
            "--workers",
            "MIN:MAX",
            "Minimum and maximum number of workers; those beyond N stand by.",
            show_default="1:N",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        _job("--seed", "S", "Seed: EST r starts from S + r.", show_default="the script's RNG state"),
    ] = None,
    threads: Annotated[
        int, _job("--threads", "T", "Number of torch threads per worker; it decides the bits.", min=1)
    ] = 1,
    determinism: Annotated[
        Level,
        _job(
            "--determinism",
            None,
            "d0: different hardware may train together, and decides the bits; d1: different hardware is "
            "refused; d2: the instruction set that all CPUs have in common is used, and TF32 is off.",
            case_sensitive=False,
        ),
    ] = DEFAULT_LEVEL,
    checkpoint: Annotated[
        str, _job("--checkpoint", "URL", "Folder for checkpoints: any fsspec URL.", show_default="none")
    ] = "",
    checkpoint_steps: Annotated[
        int,
        _job("--checkpoint-steps", "STEPS", "Save a checkpoint every STEPS steps; 0: on demand.", min=0),
    ] = 0,
    keep: Annotated[int, _job("--keep", "COUNT", "Number of checkpoints to keep.", min=1)] = 3,
    sentinel: Annotated[
        int,
        _job(
            "--sentinel",
            "K",
            "Every K steps, run one EST's step again on another worker and compare the gradients, to find "
            "hardware that computes wrongly; 0: never.",
            min=0,
        ),
    ] = 0,
    max_wait: Annotated[
        float,
        _job(
            "--max-wait",
            "SECONDS",
            "If too few workers join within this time, release them and pause the job until `elastane "
            "resume`; 0: wait for ever.",
            min=0.0,
            envvar="ELASTANE_MAX_WAIT",
        ),
    ] = 0.0,
    recovery: Annotated[
        Recovery,
        _job(
            "--recovery",
            None,
            "elastic: train with any number of workers from MIN to MAX; fixed: only with MAX (N at most), "
            "so the job waits for a replacement after a loss. The bits are the same.",
            case_sensitive=False,
            envvar="ELASTANE_RECOVERY",
        ),
    ] = Recovery.ELASTIC,
    fingerprint_steps: Annotated[
        int | None,
        _job(
            "--fingerprint-steps",
            "STEPS",
            "Workers compare all of their state within STEPS steps, and the job fails if it differs; 0: "
            "never.",
            show_default="32",
            min=0,
        ),
    ] = None,
    spot_price: Annotated[
        str | None,
        _job(
            "--spot-price",
            "PRICE",
            "Price of a spot worker per hour, for `elastane cost`; `elastane price` changes it.",
            show_default="unknown",
            envvar="ELASTANE_SPOT_PRICE",
        ),
    ] = None,
    on_demand_price: Annotated[
        str | None,
        _job(
            "--on-demand-price",
            "PRICE",
            "Price of an on-demand worker per hour.",
            show_default="unknown",
            envvar="ELASTANE_ON_DEMAND_PRICE",
        ),
    ] = None,
    currency: Annotated[
        str, _job("--currency", "CODE", "Currency of the prices: three letters.", envvar="ELASTANE_CURRENCY")
    ] = "USD",
    no_audit_samples: Annotated[
        bool, _job("--no-audit-samples", None, "Do not record the samples of each task.")
    ] = False,
    job: Annotated[
        str | None, _agent("--job", "NAME", "Name of the job.", show_default="the script's name")
    ] = None,
    job_timeout: Annotated[
        float, _agent("--job-timeout", "SECONDS", "How long to wait for the job to join.", min=0.0)
    ] = 600.0,
    local_workers: Annotated[
        int | None,
        _agent(
            "--local-workers",
            "K",
            "Maximum number of workers on this machine.",
            min=1,
            show_default="MAX; 1 if a job is joined",
        ),
    ] = None,
    master: Annotated[
        str,
        _agent(
            "--master",
            "HOST:PORT",
            "A running master; of several, all their addresses, comma-separated, or a DNS name that "
            "resolves to all.",
            show_default="embedded",
        ),
    ] = "",
    state_dir: Annotated[
        Path | None,
        _agent(
            "--state-dir",
            "DIR",
            "State folder of the embedded master; given again, the job continues.",
            show_default="a temporary folder",
        ),
    ] = None,
    listen: Annotated[
        str,
        _agent(
            "--listen",
            "HOST[:PORT]",
            "Address of this machine at which other hosts reach the embedded master; an address other than "
            "loopback needs TLS and tokens (docs/security.md).",
            show_default="loopback",
        ),
    ] = "",
    hosts: HostsOption = None,
    hosts_interval: HostsIntervalOption = 5.0,
    hosts_timeout: HostsTimeoutOption = 60.0,
    remote: RemoteOption = DEFAULT_TEMPLATE,
    passed: PassOption = None,
    max_restarts: Annotated[
        int, _agent("--max-restarts", "R", "Maximum number of restarts of dead workers in any hour.", min=0)
    ] = 10,
    grace: Annotated[
        float, _agent("--grace", "SECONDS", "Time to drain after the first signal.", min=0.1)
    ] = 30.0,
    master_timeout: Annotated[
        float, _agent("--master-timeout", "SECONDS", "How long workers wait for a lost master.", min=1.0)
    ] = 600.0,
    spot: Annotated[
        str,
        _agent(
            "--spot",
            "SOURCE",
            "Source of spot-termination notices for this node: auto, none, aws, gcp, azure, alibaba, "
            "file:PATH (a file that appears) or http://URL (answers 200); several comma-separated. After a "
            "notice the workers drain in the time left.",
        ),
    ] = "auto",
    spot_url: Annotated[
        str,
        _agent(
            "--spot-url",
            "URL",
            "Address of the metadata service.",
            show_default="the cloud's own",
        ),
    ] = "",
    spot_poll: Annotated[
        float | None,
        _agent(
            "--spot-poll",
            "SECONDS",
            "Time between checks for a notice.",
            min=0.05,
            show_default="what the cloud recommends, 1 to 5",
        ),
    ] = None,
    capacity: Annotated[
        Literal["auto", "spot", "on-demand"],
        _agent("--capacity", None, "How this node is billed; auto: ask its metadata service."),
    ] = "auto",
    price_table: Annotated[
        Path | None,
        _agent(
            "--price-table",
            "FILE",
            "CSV or JSON file with at, spot, on_demand: prices to send to the master at the given times "
            "(seconds since the job was created, or dates). Give it to one agent of a job only.",
            show_default="none",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    exit_codes: Annotated[
        Literal["shell", "pod"],
        _agent(
            "--exit-codes",
            None,
            "pod: use exit codes from 128 on for errors that may pass, for a controller that retries those.",
        ),
    ] = "shell",
    metrics: Annotated[
        str,
        _agent(
            "--metrics",
            "HOST:PORT",
            "Serve Prometheus metrics of this agent and its workers at /metrics.",
            show_default="none",
        ),
    ] = "",
    metrics_insecure: Annotated[
        bool,
        _agent(
            "--metrics-insecure",
            None,
            "Allow --metrics on an address that other machines reach: anybody can read them, without TLS.",
        ),
    ] = False,
    http: Annotated[
        str,
        _agent(
            "--http",
            "HOST:PORT",
            "Serve the dashboard, metrics and probes of the embedded master.",
            show_default="none",
        ),
    ] = "",
    as_json: JsonOption = False,
    heartbeat_timeout: Annotated[
        float, _limit("--heartbeat-timeout", "Evict a worker that sends nothing for this long.", min=0.1)
    ] = 3.0,
    lease_min: Annotated[
        float,
        _limit("--lease", "Minimum lease of a step; a worker that takes longer counts as hung.", min=0.1),
    ] = 30.0,
    idle_max: Annotated[
        float, _limit("--idle", "Maximum time between steps (for evaluation).", min=1.0)
    ] = 3600.0,
    join_window: Annotated[
        float,
        _limit("--join-window", "Time in which joins are gathered into one change of the ring.", min=0.0),
    ] = 0.2,
    return_grace: Annotated[
        float,
        _limit("--return-grace", "Time that a restarted master waits for the members of its ring.", min=0.0),
    ] = 10.0,
) -> None:
    require_script(script, is_file=not module)
    if master:
        try:
            parse_addresses(master)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--master") from error
    if hosts is not None and local_workers is not None:
        raise typer.BadParameter(
            "--hosts decides how many workers run on each host", param_hint="--local-workers"
        )
    if listen and master:
        raise typer.BadParameter("--master names a running master, --listen is for the embedded one")
    address = _listen_address(listen)
    limits = (1, 1)
    if ests is None:
        _require_joinable(context, master=master, job=job)
    else:
        limits = worker_limits(workers) if workers is not None else (1, ests)
        if limits[0] > ests:
            raise typer.BadParameter(
                f"{workers!r}: MIN is at most {ests}, the number of ESTs (--ests): each worker hosts one",
                param_hint="--workers",
            )
    if master and http:
        typer.echo(
            f"--http is ignored: it is for an embedded master, and the one at {master} has its own", err=True
        )
    name = job or default_job_name(script[0], module=module)

    prices = Prices(
        checked_currency(currency),
        micros_of(spot_price, "--spot-price") or 0,
        micros_of(on_demand_price, "--on-demand-price") or 0,
    )

    from elastane.agent import exit_codes as codes
    from elastane.agent.agent import Agent
    from elastane.agent.budget import RestartBudget
    from elastane.agent.hosts_check import check_hosts
    from elastane.agent.notices.detect import check_choice
    from elastane.agent.output import Output
    from elastane.agent.price_table import read_price_table
    from elastane.agent.settings import AgentSettings, HostSettings
    from elastane.errors import ElastaneError

    host_settings = None
    if hosts is not None:
        host_settings = HostSettings(
            hosts.absolute(), remote, hosts_interval, hosts_timeout, tuple(passed or ())
        )
        check_hosts(host_settings, master or address)
    prefix = worker_prefix() if master else "" if hosts is not None else "w"
    settings = AgentSettings(
        command=("-m", *script) if module else tuple(script),
        job=name,
        settings=None if ests is None else job_settings(
            ests=ests, limits=limits, seed=seed, checkpoint=checkpoint, checkpoint_steps=checkpoint_steps,
            keep=keep, threads=threads, determinism=determinism, audit_samples=not no_audit_samples,
            durations={
                "heartbeat_timeout": heartbeat_timeout, "lease_min": lease_min,
                "idle_max": idle_max,
                "return_grace": return_grace, "join_window": join_window, "max_wait": max_wait,
            },
            recovery=recovery, prices=prices, fingerprint_steps=fingerprint_steps,
            sentinel_steps=sentinel,
        ),
        local_workers=local_workers or limits[1],
        master=master,
        job_timeout_seconds=job_timeout,
        state_dir=state_dir,
        master_timeout_seconds=master_timeout,
        grace_seconds=grace,
        budget=RestartBudget(restarts_max=max_restarts),
        notices=check_choice(spot), notices_url=spot_url, notices_poll_seconds=spot_poll or 0.0,
        capacity=capacity,
        prices=read_price_table(price_table) if price_table is not None else None,
        worker_prefix=prefix,
        listen=address,
        hosts=host_settings,
        metrics=metrics_address(metrics, insecure=metrics_insecure) if metrics else None,
        http="" if master else http,
    )  # fmt: skip
    try:
        code = Agent(settings, Output(as_json=as_json)).run()
    except ElastaneError as error:
        fail(error, as_json=as_json, code=codes.exit_code(exit_code(error), exit_codes))
    raise typer.Exit(codes.exit_code(code, exit_codes))


def _listen_address(listen: str) -> str:
    """Return HOST:PORT of the embedded master. Raises BadParameter if others cannot connect to it by that."""
    if not listen:
        return "127.0.0.1:0"
    host, separator, port = listen.rpartition(":")
    if not separator or listen.endswith("]"):
        host, port = listen, "0"
    if not host or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise typer.BadParameter(f"{listen!r} is not HOST or HOST:PORT", param_hint="--listen")
    if host.strip("[]") in ("0.0.0.0", "::", "*"):
        raise typer.BadParameter(
            f"{host} is not an address that other machines can use: name the one at which they reach this "
            "machine",
            param_hint="--listen",
        )
    return f"{host}:{port}"


def _require_joinable(context: typer.Context, *, master: str, job: str | None) -> None:
    """Check the options for joining a job: master and name are given, and no option of the job itself.

    Raises BadParameter for options on the command line; for variables it only prints that they are ignored.
    """
    if not master or not job:
        raise typer.BadParameter(
            "give the number of logical workers, or join an existing job with --master and --job",
            param_hint="--ests",
        )
    ignored = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if getattr(parameter, "rich_help_panel", None) not in _OF_THE_JOB or source is None:
            continue
        name = parameter.opts[0]
        if source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"without --ests the job {job!r} is joined with the master's settings; leave this option out",
                param_hint=name,
            )
        if source.name == "ENVIRONMENT":
            ignored.append(variable(name) or name)
    if ignored:
        typer.echo(f"joining job {job}: the master's settings apply; ignored: {', '.join(ignored)}", err=True)


def worker_prefix() -> str:
    """Return a prefix that makes the worker ids of this agent unique among all agents of one master.

    It is random, since a process id is no help: in containers it is 1, and with the host's network all of
    them have the same host name.
    """
    return f"{socket.gethostname()}-{secrets.token_hex(3)}-"


def job_settings(
    *,
    ests: int,
    limits: tuple[int, int],
    seed: int | None,
    checkpoint: str,
    checkpoint_steps: int,
    keep: int,
    threads: int,
    audit_samples: bool,
    durations: dict[str, float],
    determinism: Level = DEFAULT_LEVEL,
    recovery: Recovery = Recovery.ELASTIC,
    prices: Prices = NO_PRICES,
    fingerprint_steps: int | None = None,
    sentinel_steps: int = 0,
) -> job_pb2.JobSettings:
    """Build the settings for creating a job. durations: fields of JobSettings, in seconds.

    Raises BadParameter for a time limit beyond `_SECONDS_MAX`.
    """
    from elastane_proto.v1 import job_pb2

    settings = job_pb2.JobSettings(
        ests=ests,
        workers_min=limits[0],
        workers_max=limits[1],
        seed=seed,
        checkpoint_url=checkpoint,
        checkpoint_interval_steps=checkpoint_steps,
        checkpoint_keep=keep,
        torch_threads=threads,
        audit_samples=audit_samples,
        determinism=determinism.to_proto(),
        recovery=getattr(job_pb2, f"RECOVERY_POLICY_{recovery.name}"),
        currency=prices.currency,
        spot_price_micros=prices.spot_micros,
        on_demand_price_micros=prices.on_demand_micros,
        fingerprint_steps=fingerprint_steps,
        sentinel_steps=sentinel_steps,
    )
    for name, seconds in durations.items():
        if not seconds <= _SECONDS_MAX:
            option = {"lease_min": "lease", "idle_max": "idle"}.get(name, name)
            raise typer.BadParameter(
                f"{seconds:g} is beyond {_SECONDS_MAX:g} seconds", param_hint=f"--{option.replace('_', '-')}"
            )
        getattr(settings, name).FromNanoseconds(round(seconds * 1e9))
    return settings


def checkpoint_url(text: str) -> str:
    """Return a URL unchanged and a bare path made absolute, so that it means the same in every worker."""
    return text if not text or "://" in text else str(Path(text).absolute())


def default_job_name(script: str, *, module: bool) -> str:
    """Return the script's name without folder and suffix, limited to the characters of a job's name."""
    name = script.rpartition(".")[2] if module else Path(script).stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:63] or "job"
