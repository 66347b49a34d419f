"""`elastane service`: a training service on one machine, a master and a runner together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

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

STEADY_SECONDS = 10.0
"""A process that has lived so long is started again at once."""

EXIT_BAD_START = 2

_FINAL_CODES = frozenset({EXIT_BAD_START, 3})
"""Exit codes of a master or runner that would end the same way again: bad usage, refused."""


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

    raise typer.Exit(asyncio.run(_serve(master, runner, port_file)))


async def _serve(
    master: Callable[[], Sequence[str]], runner: Callable[[], Sequence[str]], port_file: Path
) -> int:
    """Keep both running until a signal; return the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    port_file.unlink(missing_ok=True)
    keepers = [_Keeper("master", master)]
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(keepers[0].keep())]
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait(
            [tasks[0], stopped, asyncio.create_task(_until_written(port_file))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not tasks[0].done() and not stop.is_set():
            address = port_file.read_text().strip()
            typer.echo(f"the service is at {address}: elastane submit --master {address} ...", err=True)
            keepers.append(_Keeper("runner", runner))
            tasks.append(asyncio.create_task(keepers[1].keep()))
            await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
        return 0 if stop.is_set() else EXIT_BAD_START
    finally:
        for keeper, task in reversed(list(zip(keepers, tasks, strict=True))):  # the runner disconnects first
            await keeper.end()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_written(port_file: Path) -> None:
    while not port_file.exists():
        await asyncio.sleep(0.05)


class _Keeper:
    """Keeps one process running. name: for messages. words: returns its command at each start."""

    def __init__(self, name: str, words: Callable[[], Sequence[str]]) -> None:
        self._name = name
        self._words = words
        self._process: asyncio.subprocess.Process | None = None
        self._ending = False

    async def keep(self) -> int:
        """Start and restart the process; return its exit code after `end`, or if a restart is useless."""
        from elastane_common.backoff import backoff_seconds

        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            begun = loop.time()
            # A separate session: Ctrl-C reaches only this command, which ends them in order.
            self._process = await asyncio.create_subprocess_exec(*self._words(), start_new_session=True)
            code = await self._process.wait()
            if self._ending or code in _FINAL_CODES:
                return code
            failures = 0 if loop.time() - begun >= STEADY_SECONDS else failures + 1
            typer.echo(f"the {self._name} ended with exit code {code}; it is started again", err=True)
            await asyncio.sleep(backoff_seconds(10.0 * failures))

    async def end(self) -> None:
        """Ask the process to end, and wait."""
        self._ending = True
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        await self._process.wait()
