"""`elastane run`: the counterpart of torchrun. Checks the options, then runs the agent."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from elastane_cli.commands.agent_options import AgentOptions
from elastane_cli.commands.common import command, exit_code, fail
from elastane_cli.commands.job_options import (
    PANELS_OF_THE_JOB,
    job_parameters,
    job_settings,
    settings_message,
)
from elastane_cli.commands.option_groups import OptionGroup, group_of, with_options
from elastane_cli.commands.run_options import (
    SCRIPT_SETTINGS,
    JsonOption,
    ModuleOption,
    ScriptArgument,
    metrics_address,
    missing_option,
    refuse_plain_libraries,
    require_script,
    variable,
)
from elastane_cli.commands.torchrun_options import TorchrunOptionError, translate
from elastane_common.addresses import parse_addresses
from elastane_common.help_text import HelpCommand
from elastane_proto.job_settings import JobSettings

if TYPE_CHECKING:
    from elastane_agent.supervisor.price_feed import PriceFeedSettings
    from elastane_agent.supervisor.price_table import PriceTable
    from elastane_agent.supervisor.settings import AgentSettings

#: rich keeps line ends, so a paragraph is one line of text.
HELP = "\n\n".join(
    (
        "Run a script elastically, on workers of this machine.",
        "Without --master this command starts an embedded master, which ends with it. The first Ctrl-C (or "
        "SIGTERM) lets the workers drain and leave, the second kills them.",
        "Examples:",
        "  elastane run --ests 4 train.py --epochs 10",
        "  elastane run --ests 8 --workers 1:4 --state-dir run1 --checkpoint run1/saved train.py",
        "  elastane run --ests 4 --ps 2 --ps-replicas 1 train.py   (a script with prepare_ps)",
        "  elastane run --ests 4 --master 10.0.0.5:50051 --local-workers 2 -m mypackage.train",
        "  elastane run --master 10.0.0.5:50051 --job digits train.py   (joins an existing job)",
        "  elastane run --ests 8 --hosts ./hosts.sh --listen 10.0.0.5 train.py   (over ssh, on the hosts "
        "it lists)",
        "torchrun's --nproc-per-node and --nnodes are taken as --ests; its other options have no effect, "
        "and a note says so (docs/howto/from-torchrun.md).",
        "Every option can also be set as a variable, so that a container's command may be just: elastane "
        "run train.py",
        "Exits with 0 if the job succeeded or was suspended or cancelled, 1 if it failed, 3 if it was "
        "refused, 4 if the master was unreachable, 5 if too few workers joined within --max-wait, 6 if the "
        "job to join was not created, 7 if the sentinel suspended it, 130 or 143 if a signal ended it. "
        "With --exit-codes pod, 204 and 206 replace 4 and 6.",
    )
)


class RunCommand(HelpCommand):
    """`elastane run`, which takes torchrun's options, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [one for one in self.params if one.param_type_name == "option"]
        own = {name: not one.is_flag for one in options for name in one.opts}  # type: ignore[attr-defined]
        try:
            words, notes = translate(args, own.get)
        except TorchrunOptionError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param_hint=error.option) from error
        for note in notes:
            typer.echo(note, err=True)
        return super().parse_args(ctx, words)


def register(app: typer.Typer) -> None:
    app.command(
        "run", cls=RunCommand, help=HELP, rich_help_panel="Run", context_settings=dict(SCRIPT_SETTINGS)
    )(run)


def _run(
    context: typer.Context,
    script: ScriptArgument,
    settings: JobSettings | None,
    agent: AgentOptions,
    module: ModuleOption = False,
    as_json: JsonOption = False,
) -> None:
    require_script(script, is_file=not module)
    if agent.relay and agent.hosts is not None:
        raise typer.BadParameter(
            "a relay is for workers of this machine, not with --hosts", param_hint="--relay"
        )
    if agent.warm and module:
        raise typer.BadParameter("preloaded workers need a script's file, not --module", param_hint="--warm")
    _check_addresses(agent)
    if settings is None:
        if agent.ps and not agent.master:
            raise typer.BadParameter(
                "give --ests 1: a job with parameter servers makes no use of more logical workers",
                param_hint="--ests",
            )
        _require_joinable(context, master=agent.master, job=agent.job)
    else:
        _check_on_demand(agent, settings)
        _check_slots_are_kept(agent, settings)
        _say_what_has_no_price(agent, settings)

    from elastane_agent.supervisor.agent import Agent
    from elastane_agent.supervisor.first_checks import require_torch
    from elastane_agent.supervisor.other_launcher import refuse_other_launcher
    from elastane_common import exit_codes as codes
    from elastane_common.errors import ElastaneError
    from elastane_common.processes.output import Output

    planned = _agent_settings(script, agent, settings, module=module)
    try:
        if not agent.master:
            refuse_other_launcher(os.environ)
        if agent.hosts is None:
            require_torch()
        if not module:
            refuse_plain_libraries(script[0])
        code = Agent(planned, Output(as_json=as_json)).run()
    except ElastaneError as error:
        fail(error, as_json=as_json, code=codes.exit_code(exit_code(error), agent.exit_codes))
    raise typer.Exit(codes.exit_code(code, agent.exit_codes))


run = command(
    with_options(_run, settings=OptionGroup(job_parameters(), job_settings), agent=group_of(AgentOptions))
)


def _check_addresses(agent: AgentOptions) -> None:
    """Check the options that say where masters and workers are. Raises BadParameter."""
    if agent.master:
        try:
            parse_addresses(agent.master)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--master") from error
    if agent.local_workers == 0 and not agent.ps:
        raise typer.BadParameter("no worker and no parameter server: give --ps", param_hint="--local-workers")
    if agent.hosts is not None and agent.local_workers is not None:
        raise typer.BadParameter(
            "--hosts decides how many workers run on each host", param_hint="--local-workers"
        )
    if agent.listen and agent.master:
        raise typer.BadParameter("--master names a running master, --listen is for the embedded one")
    if agent.master and agent.http:
        typer.echo(
            f"--http is ignored: it is for an embedded master, and the one at {agent.master} has its own",
            err=True,
        )


def _check_on_demand(agent: AgentOptions, settings: JobSettings) -> None:
    """Check that on-demand workers can be started, if the job may request them. Raises BadParameter."""
    is_alone = not agent.master and not agent.listen and agent.hosts is None
    if settings.on_demand_workers and is_alone and agent.capacity != "on-demand":
        raise typer.BadParameter(
            "nothing here can start on-demand workers: all of them run on this machine. List on-demand hosts "
            "with --hosts (docs/hosts.md), give --master for agents on on-demand machines, or leave it out",
            param_hint="--on-demand-workers",
        )


def _check_slots_are_kept(agent: AgentOptions, settings: JobSettings) -> None:
    """Check that the death of a parameter server would not lose its slots. Raises BadParameter."""
    is_elsewhere = agent.master or agent.hosts is not None
    if agent.ps and is_elsewhere and not settings.checkpoint_url and not settings.ps_replicas:
        raise typer.BadParameter(
            "the death of a parameter server would lose its slots: give --checkpoint URL, a folder that all "
            "parameter servers reach, or --ps-replicas 1",
            param_hint="--ps",
        )


def _say_what_has_no_price(agent: AgentOptions, settings: JobSettings) -> None:
    """Warn about a budget without prices."""
    is_priced = settings.spot_price_micros or settings.on_demand_price_micros
    if settings.scaling.startswith("budget=") and not (is_priced or agent.prices or agent.price_table):
        typer.echo(
            "no price is given: the budget limits nothing before `elastane price` tells what a worker costs "
            "(--spot-price, --on-demand-price, --prices)",
            err=True,
        )


def _agent_settings(
    script: list[str], agent: AgentOptions, settings: JobSettings | None, *, module: bool
) -> AgentSettings:
    """Return the agent's settings. Raises BadParameter and RefusedError."""
    from elastane_agent.supervisor.budget import RestartBudget
    from elastane_agent.supervisor.hosts_check import check_hosts
    from elastane_agent.supervisor.notices.detect import check_choice
    from elastane_agent.supervisor.settings import AgentSettings, HostSettings

    address = _listen_address(agent.listen)
    hosts = None
    if agent.hosts is not None:
        hosts = HostSettings(
            agent.hosts.absolute(),
            agent.remote,
            agent.hosts_interval,
            agent.hosts_timeout,
            tuple(agent.passed or ()),
        )
        check_hosts(hosts, agent.master or address)
    # With hosts, workers are named by them, and a host may be called "ps".
    prefix, ps_prefix = ("", "ps") if hosts is not None else ("w", "ps-")
    if agent.master:
        prefix = worker_prefix()
        ps_prefix = f"ps-{prefix}"
    here = 1 if settings is None else settings.workers_max
    return AgentSettings(
        command=("-m", *script) if module else tuple(script),
        job=agent.job or default_job_name(script[0], module=module),
        settings=None if settings is None else settings_message(settings),
        local_workers=here if agent.local_workers is None else agent.local_workers,
        master=agent.master,
        job_timeout_seconds=agent.job_timeout,
        state_dir=agent.state_dir,
        master_timeout_seconds=agent.master_timeout,
        grace_seconds=agent.grace,
        budget=RestartBudget(restarts_max=agent.max_restarts),
        notices=check_choice(agent.spot),
        notices_url=agent.spot_url,
        notices_poll_seconds=agent.spot_poll or 0.0,
        capacity=agent.capacity,
        prices=_prices(agent),
        worker_prefix=prefix,
        listen=address,
        hosts=hosts,
        metrics=metrics_address(agent.metrics, insecure=agent.metrics_insecure) if agent.metrics else None,
        http="" if agent.master else agent.http,
        ps=agent.ps,
        ps_prefix=ps_prefix,
        warm=agent.warm,
        relay=agent.relay,
        log_dir=agent.log_dir,
    )


def _prices(agent: AgentOptions) -> PriceTable | PriceFeedSettings | None:
    """Return the source of prices. Raises BadParameter and PriceTableError."""
    from elastane_agent.supervisor.price_feed import PriceFeedSettings, prices_at

    if agent.prices and agent.price_table is not None:
        raise typer.BadParameter("--price-table is the former name of --prices: give one of them")
    location = agent.prices or str(agent.price_table or "")
    if not location:
        return None
    try:
        return prices_at(PriceFeedSettings(location, agent.prices_zone, agent.prices_interval))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--prices") from error


def _listen_address(listen: str) -> str:
    """Return HOST:PORT of the embedded master. Raises BadParameter if others cannot connect to it."""
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
        text = "give the number of logical workers, or join an existing job with --master and --job"
        raise missing_option("--ests", text, context.params["script"])
    ignored = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if getattr(parameter, "rich_help_panel", None) not in PANELS_OF_THE_JOB or source is None:
            continue
        name = parameter.opts[0]
        if source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"without --ests the job {job!r} is joined with the master's settings; leave this option out",
                param_hint=name,
            )
        if source.name == "ENVIRONMENT":
            ignored.append(variable(name) or name)
        elif source.name == "DEFAULT_MAP":
            ignored.append(f"{name} of the configuration file")
    if ignored:
        typer.echo(f"joining job {job}: the master's settings apply; ignored: {', '.join(ignored)}", err=True)


def worker_prefix() -> str:
    """Return a prefix that makes the worker ids of this agent unique among all agents of one master.

    It is random, because process ids are not unique: they are 1 in containers, which share the host name if
    they use the host's network.
    """
    import secrets

    return f"{socket.gethostname()}-{secrets.token_hex(3)}-"


def default_job_name(script: str, *, module: bool) -> str:
    """Return the script's name without folder and suffix, limited to the characters of a job's name."""
    name = script.rpartition(".")[2] if module else Path(script).stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:63] or "job"
