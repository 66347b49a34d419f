"""`elastane launch`: runs a script that does not use Elastane on hosts that are added and removed."""

from __future__ import annotations

from typing import Annotated

import typer

from elastane_cli.commands.common import command, worker_limits
from elastane_cli.commands.run_options import (
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
    require_script,
)
from elastane_cli.commands.run_options import option as _option

HELP = "\n\n".join(
    (
        "Run a torchrun-style script unchanged; all processes restart when hosts join or leave.",
        "Each process gets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and the other variables "
        "that torchrun sets. The script must save and load checkpoints itself, and its result depends on "
        "the number of processes. With `elastane run` and three changed lines in the script, neither is "
        "the case.",
        "Examples:",
        "  elastane launch --workers 4 train.py --lr 0.1",
        "  elastane launch --workers 2:16 --hosts ./hosts.sh --remote 'ssh -tt {host} {command}' train.py",
        "The --hosts program prints lines HOST or HOST:SLOTS; while it fails, the list of hosts stays as "
        "it is.",
        "Exits with 0 if every process did, 1 if the restarts are used up, 5 if there were too few hosts "
        "for --max-wait, 130 or 143 if a signal ended it.",
    )
)


def register(app: typer.Typer) -> None:
    app.command("launch", help=HELP, rich_help_panel="Run", context_settings=dict(SCRIPT_SETTINGS))(launch)


@command
def launch(
    script: ScriptArgument,
    workers: Annotated[
        str,
        _option(
            "--workers",
            "MIN:MAX",
            "Minimum and maximum number of processes.",
            show_default="all slots, at least 1",
        ),
    ] = "",
    module: ModuleOption = False,
    no_python: Annotated[
        bool, _option("--no-python", None, "SCRIPT is an executable, not a Python file.")
    ] = False,
    hosts: HostsOption = None,
    interval: HostsIntervalOption = 5.0,
    hosts_timeout: HostsTimeoutOption = 60.0,
    settle: Annotated[
        float,
        _option("--settle", "SECONDS", "Time in which new hosts are gathered before a restart.", min=0.0),
    ] = 5.0,
    remote: RemoteOption = DEFAULT_TEMPLATE,
    passed: PassOption = None,
    port: Annotated[
        int,
        _option(
            "--port",
            "PORT",
            "First port that rank 0 uses.",
            min=0,
            max=65435,
            show_default="a free one, or 29500",
        ),
    ] = 0,
    with_tf_config: Annotated[bool, _option("--tf-config", None, "Also set TF_CONFIG.")] = False,
    max_restarts: Annotated[
        int, _option("--max-restarts", "R", "Maximum number of restarts after failures in any hour.", min=0)
    ] = 10,
    max_wait: Annotated[
        float,
        _option("--max-wait", "SECONDS", "Give up after this long without enough hosts; 0: never.", min=0.0),
    ] = 0.0,
    grace: Annotated[
        float, _option("--grace", "SECONDS", "Time that processes have to exit after SIGTERM.", min=0.1)
    ] = 30.0,
    as_json: JsonOption = False,
) -> None:
    require_script(script, is_file=not module and not no_python)

    from elastane_agent.hosts.discovery import ask_hosts
    from elastane_agent.hosts.remote import check_template
    from elastane_agent.hosts.slots import SLOTS_MAX
    from elastane_agent.launch.launcher import Launcher, LaunchSettings, python_command
    from elastane_agent.supervisor.budget import RestartBudget
    from elastane_common.processes.output import Output

    check_template(remote)
    limits = worker_limits(workers) if workers else (1, SLOTS_MAX)
    local = {"localhost": limits[1] if workers else 1}
    if hosts is not None:
        hosts = hosts.absolute()
        ask_hosts(hosts, hosts_timeout)  # a script that fails at the start is a mistake, not transient
    settings = LaunchSettings(
        command=python_command(script, module=module, program=no_python),
        workers_min=limits[0], workers_max=limits[1],
        hosts={} if hosts is not None else local,
        hosts_script=hosts, interval_seconds=interval, hosts_timeout_seconds=hosts_timeout,
        settle_seconds=settle,
        template=remote, passed=tuple(passed or ()), port=port, with_tf_config=with_tf_config,
        grace_seconds=grace, wait_max_seconds=max_wait,
        budget=RestartBudget(restarts_max=max_restarts),
    )  # fmt: skip
    raise typer.Exit(Launcher(settings, Output(as_json=as_json)).run())
