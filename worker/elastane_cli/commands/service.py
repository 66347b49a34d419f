"""`elastane service`: a training service on one machine, a master and a runner together."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from elastane_cli.commands.common import command

HELP = "\n\n".join(
    (
        "Run a training service on this machine: a master and a runner in one command.",
        "Runs are submitted with `elastane submit`. Both processes are started again if they die; runs go on "
        "meanwhile. Ctrl-C or SIGTERM ends both, and the processes of runs go on unless --on-stop stop is "
        "given: the next `elastane service` with the same --state-dir takes them over.",
        "Examples:",
        "  elastane service --slots 4",
        "  elastane service --state-dir /var/lib/elastane --http 127.0.0.1:8080",
        "Other options of the master are set by its variables, such as ELASTANE_DATASET_ROOT: see "
        "`elastane master --help`.",
        "Exits with 0 if it was asked to end, 2 if master or runner cannot start with these settings.",
    )
)


def register(app: typer.Typer) -> None:
    app.command("service", help=HELP, rich_help_panel="Run")(service)


@command
def service(
    state_dir: Annotated[
        Path, typer.Option(help="Folder of all that is kept: the store, artifacts, the runner's folder.")
    ] = Path("elastane-service"),
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the master.")
    ] = "127.0.0.1:50051",
    http: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of dashboard and metrics.", show_default="none")
    ] = "",
    slots: Annotated[int, typer.Option(metavar="N", min=0, max=65536, help="Slots of this machine.")] = max(
        1, os.cpu_count() or 1
    ),
    algorithms: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file of the training code installed here.")
    ] = None,
    secrets: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the files that runs may name as secrets.")
    ] = None,
    scheduling_policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who decides which runs have which slots: fair-share, or a policy of `elastane simulate`, "
            "such as foresight.",
            show_default="fair-share",
        ),
    ] = "",
    scheduling_queues: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file of queues, each with a weight, guaranteed slots, and the owners of its runs.",
        ),
    ] = None,
    on_stop: Annotated[
        str, typer.Option(metavar="keep|stop", help="What to do with running processes at the end.")
    ] = "keep",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow serving other machines without TLS or tokens.")
    ] = False,
) -> None:
    if on_stop not in ("keep", "stop"):
        raise typer.BadParameter(f"{on_stop!r} is neither keep nor stop", param_hint="--on-stop")
    folder = state_dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    port_file = folder / "address"
    addresses: list[str] = []

    def master() -> list[str]:
        # A restarted master keeps its port, even if that was chosen automatically, so that others find it.
        if not addresses and port_file.exists():
            addresses.append(port_file.read_text().strip())
        host, port = listen.rpartition(":")[0], (addresses or [listen])[0].rpartition(":")[2]
        words = [sys.executable, "-P", "-m", "elastane_master", "--state-dir", str(folder)]
        words += ["--listen", f"{host}:{port}", "--port-file", str(port_file)]
        words += ["--scheduling-policy", scheduling_policy] if scheduling_policy else []
        words += ["--scheduling-queues", str(scheduling_queues.absolute())] if scheduling_queues else []
        return [*words, *(["--http", http] if http else []), *(["--insecure"] if insecure else [])]

    def runner() -> list[str]:
        address = port_file.read_text().strip() if port_file.exists() else addresses[0]
        words = [sys.executable, "-P", "-m", "elastane_cli", "runner", "--master", address]
        words += ["--folder", str(folder / "runner"), "--slots", str(slots), "--on-stop", on_stop]
        words += ["--algorithms", str(algorithms)] if algorithms is not None else []
        return words + (["--secrets", str(secrets)] if secrets is not None else [])

    import asyncio

    from elastane_cli.commands.service_processes import serve

    raise typer.Exit(asyncio.run(serve(master, runner, port_file)))
