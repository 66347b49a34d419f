"""`elastane run`: what torchrun is to stock DDP. Checks the options, then hands over to the agent."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastane.addresses import parse_addresses
from elastane.cli.common import command, worker_limits
from elastane.determinism import DEFAULT_LEVEL, Level

if TYPE_CHECKING:
    from elastane_proto.v1 import job_pb2

#: rich keeps line ends, so a paragraph is one line of text.
HELP = "\n\n".join(
    (
        "Run a script on this machine's workers, elastically.",
        "Without --master a master is started, embedded in this command, and ends with it. "
        "The first Ctrl-C (or SIGTERM) lets the workers drain and leave, the second kills them.",
        "Examples:",
        "  elastane run --ests 4 train.py --epochs 10",
        "  elastane run --ests 8 --workers 1:4 --state-dir run1 --checkpoint run1/saved train.py",
        "  elastane run --ests 4 --master 10.0.0.5:50051 --local-workers 2 -m mypackage.train",
        "  elastane run --ests 4 --determinism d2 --master 10.0.0.5:50051 train.py",
        "Exits with 0 when the job succeeded or was suspended or cancelled, 1 when it failed, 3 when it "
        "was refused, 4 when the master was unreachable, 130 or 143 when a signal ended it.",
    )
)


def _job(name: str, metavar: str | None, text: str, **options: Any) -> Any:
    """An option that fixes the job; equal in all agents of one job."""
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel="The job", **options)


def _agent(name: str, metavar: str | None, text: str, **options: Any) -> Any:
    """An option of this agent alone."""
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel="This machine", **options)


def _limit(name: str, text: str, **options: Any) -> Any:
    """A time limit of the job."""
    return typer.Option(
        name, metavar="SECONDS", help=text, rich_help_panel="Time limits of the job", **options
    )


def register(app: typer.Typer) -> None:
    app.command(
        "run",
        help=HELP,
        rich_help_panel="Run",
        # Everything after the script belongs to the script.
        context_settings={"allow_interspersed_args": False},
    )(run)


@command
def run(
    script: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT [ARGS]...", help="The script and its arguments.", show_default=False),
    ],
    ests: Annotated[
        int,
        _job("--ests", "N", "Number of logical workers; decides the result.", min=1, show_default=False),
    ],
    module: Annotated[bool, _agent("-m", None, "SCRIPT is a module, as for python -m.")] = False,
    workers: Annotated[
        str | None,
        _job("--workers", "MIN:MAX", "Fewest and most workers; beyond N they stand by.", show_default="1:N"),
    ] = None,
    seed: Annotated[
        int | None, _job("--seed", "S", "EST r starts from S + r.", show_default="the script's RNG state")
    ] = None,
    threads: Annotated[int, _job("--threads", "T", "Threads of torch; they decide the bits.", min=1)] = 1,
    determinism: Annotated[
        Level,
        _job(
            "--determinism",
            None,
            "d0: unlike hardware may train together and decides the bits; d1: it is refused; "
            "d2: what CPUs have in common is pinned, TF32 is off.",
            case_sensitive=False,
        ),
    ] = DEFAULT_LEVEL,
    checkpoint: Annotated[
        str, _job("--checkpoint", "URL", "Folder for checkpoints, any fsspec URL.", show_default="none")
    ] = "",
    checkpoint_steps: Annotated[
        int, _job("--checkpoint-steps", "STEPS", "One every so many steps; 0: on demand.", min=0)
    ] = 0,
    keep: Annotated[int, _job("--keep", "COUNT", "Checkpoints kept.", min=1)] = 3,
    no_audit_samples: Annotated[
        bool, _job("--no-audit-samples", None, "Do not record which samples a task had.")
    ] = False,
    job: Annotated[
        str | None, _agent("--job", "NAME", "Name of the job.", show_default="the script's name")
    ] = None,
    local_workers: Annotated[
        int | None, _agent("--local-workers", "K", "Most workers on this machine.", min=1, show_default="MAX")
    ] = None,
    master: Annotated[
        str,
        _agent(
            "--master",
            "HOST:PORT",
            "A master that runs; of several, all addresses with commas, or a DNS name that has them.",
            envvar="ELASTANE_MASTER",
            show_default="embedded",
        ),
    ] = "",
    state_dir: Annotated[
        Path | None,
        _agent(
            "--state-dir",
            "DIR",
            "State of the embedded master; given again, the job goes on.",
            show_default="a temporary folder",
        ),
    ] = None,
    max_restarts: Annotated[
        int, _agent("--max-restarts", "R", "Restarts of dead workers in any hour.", min=0)
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
            "Where reclaims of this node are announced: auto, none, aws, gcp, azure, alibaba, file:PATH "
            "(a file that appears) or http://URL (answers 200). Workers then drain in the time left.",
            envvar="ELASTANE_SPOT",
        ),
    ] = "auto",
    spot_url: Annotated[
        str,
        _agent(
            "--spot-url",
            "URL",
            "Of the metadata service.",
            envvar="ELASTANE_SPOT_URL",
            show_default="the cloud's own",
        ),
    ] = "",
    spot_poll: Annotated[
        float | None,
        _agent(
            "--spot-poll",
            "SECONDS",
            "How often to look for a notice.",
            min=0.05,
            show_default="as the cloud advises, 1 to 5",
        ),
    ] = None,
    metrics: Annotated[
        str,
        _agent(
            "--metrics",
            "HOST:PORT",
            "Serve figures of this agent and its workers for Prometheus at /metrics.",
            show_default="none",
        ),
    ] = "",
    metrics_insecure: Annotated[
        bool,
        _agent("--metrics-insecure", None, "Serve them beyond this machine: to anybody, without TLS."),
    ] = False,
    http: Annotated[
        str,
        _agent(
            "--http",
            "HOST:PORT",
            "Metrics and probes of the embedded master over HTTP.",
            show_default="none",
        ),
    ] = "",
    as_json: Annotated[bool, _agent("--json", None, "Print JSON lines, the workers' output too.")] = False,
    heartbeat_timeout: Annotated[
        float, _limit("--heartbeat-timeout", "A worker silent for so long is put out.", min=0.1)
    ] = 3.0,
    lease_min: Annotated[
        float, _limit("--lease", "Least lease of a step; beyond it a worker hangs.", min=0.1)
    ] = 30.0,
    idle_max: Annotated[
        float, _limit("--idle", "Longest time between steps (evaluation).", min=1.0)
    ] = 3600.0,
    join_window: Annotated[float, _limit("--join-window", "Joins are gathered for so long.", min=0.0)] = 0.2,
    return_grace: Annotated[
        float, _limit("--return-grace", "A restarted master waits so long for its ring.", min=0.0)
    ] = 10.0,
) -> None:
    limits = worker_limits(workers) if workers is not None else (1, ests)
    target = Path(script[0])
    if not module and not target.is_file():
        raise typer.BadParameter(f"{target} is not a file", param_hint="SCRIPT")
    if master:
        try:
            parse_addresses(master)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--master") from error
    if master and http:
        typer.echo(f"--http is for an embedded master; the one at {master} has its own", err=True)
    name = job or default_job_name(script[0], module=module)

    from elastane.agent.agent import Agent, AgentSettings
    from elastane.agent.budget import RestartBudget
    from elastane.agent.notices.detect import check_choice
    from elastane.agent.output import Output

    settings = AgentSettings(
        command=("-m", *script) if module else tuple(script),
        job=name,
        settings=job_settings(
            ests=ests, limits=limits, seed=seed, checkpoint=checkpoint, checkpoint_steps=checkpoint_steps,
            keep=keep, threads=threads, determinism=determinism, audit_samples=not no_audit_samples,
            durations={
                "heartbeat_timeout": heartbeat_timeout, "lease_min": lease_min,
                "idle_max": idle_max,
                "return_grace": return_grace, "join_window": join_window,
            },
        ),
        local_workers=local_workers or limits[1],
        master=master,
        state_dir=state_dir,
        master_timeout_seconds=master_timeout,
        grace_seconds=grace,
        budget=RestartBudget(restarts_max=max_restarts),
        notices=check_choice(spot), notices_url=spot_url, notices_poll_seconds=spot_poll or 0.0,
        # Workers of several machines meet at one master: their ids must differ.
        worker_prefix=f"{socket.gethostname()}-{os.getpid()}-" if master else "w",
        metrics=metrics_address(metrics, insecure=metrics_insecure) if metrics else None,
        http="" if master else http,
    )  # fmt: skip
    raise typer.Exit(Agent(settings, Output(as_json=as_json)).run())


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
) -> job_pb2.JobSettings:
    """The message for Create. durations: fields of JobSettings in seconds."""
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
    )
    for name, seconds in durations.items():
        getattr(settings, name).FromNanoseconds(round(seconds * 1e9))
    return settings


def metrics_address(text: str, *, insecure: bool) -> tuple[str, int]:
    """Host and port of --metrics. Raises BadParameter, also for one that others reach without `insecure`."""
    host, separator, port = text.rpartition(":")
    if not separator or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise typer.BadParameter(f"{text!r} is not HOST:PORT", param_hint="--metrics")
    host = host or "0.0.0.0"
    loopback = host in ("localhost", "[::1]") or host.startswith("127.")
    if not (loopback or insecure):
        raise typer.BadParameter(
            f"other machines can reach {text}, and figures are served to anybody: say --metrics-insecure if "
            "the network itself keeps everybody else out",
            param_hint="--metrics",
        )
    return host, int(port)


def checkpoint_url(text: str) -> str:
    """The URL as given; a bare path made absolute, so that it means the same in every worker."""
    return text if not text or "://" in text else str(Path(text).absolute())


def default_job_name(script: str, *, module: bool) -> str:
    """The script's name without folder and ending, in the characters a job's name may have."""
    name = script.rpartition(".")[2] if module else Path(script).stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:63] or "job"
