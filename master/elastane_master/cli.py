"""`python -m elastane_master`: starts a master and keeps it until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn

import structlog
import typer
from pydantic import ValidationError

from elastane_master.errors import CannotListen
from elastane_master.log_limit import LogLimit
from elastane_master.settings import MasterSettings
from elastane_master.store.errors import AnotherLeads, Fenced, LogBroken, StoreError

EXIT_BAD_START = 2
"""Bad settings, an address in use, no store: starting it again as it is would not help."""
EXIT_FENCED = 3
"""Another master leads, and --no-standby was given: do not start this one again."""
EXIT_BROKEN = 4
"""A fault of the master itself: start it again."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT to serve at; port 0 takes a free one. [127.0.0.1:50051]")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="redis://, rediss:// or unix:// URL. [a private one in the state directory]"),
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder of the private store. [.elastane]")] = None,
    port_file: Annotated[
        Path | None, typer.Option(help="File that gets HOST:PORT once the master serves.")
    ] = None,
    standby: Annotated[
        bool | None,
        typer.Option(
            "--standby/--no-standby",
            help="While another master leads the --store: wait to take over, or end with code 3. [standby]",
            show_default=False,
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT at which workers and clients reach this master. [the address it serves]"
        ),
    ] = None,
    leader_lease_seconds: Annotated[
        float | None,
        typer.Option(help="A leader that fell silent is replaced after so long. [3]", metavar="SECONDS"),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [info]")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json. [console]")] = None,
) -> None:
    """Serves the jobs of one store over gRPC. Every option also is a variable, ELASTANE_LISTEN and so on.

    Several masters may be started on one --store: one leads, the others stand by and take over when it
    stops or dies. Workers and commands get the addresses of all (--master A:50051,B:50051, or a DNS name).

    Exits with 0 when told to stop, 2 when it cannot start, 3 when another master leads and --no-standby was
    given, 4 after a fault of its own.
    """
    given = {
        "listen": listen,
        "store": store,
        "state_dir": state_dir,
        "port_file": port_file,
        "standby": standby,
        "advertise": advertise,
        "leader_lease_seconds": leader_lease_seconds,
        "log_level": log_level,
        "log_format": log_format,
    }
    try:
        settings = MasterSettings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        for fault in error.errors():
            if not fault["loc"]:  # of several settings together
                typer.echo(f"elastane master: {fault['msg'].removeprefix('Value error, ')}", err=True)
                continue
            name = "--" + "-".join(str(part) for part in fault["loc"]).replace("_", "-")
            typer.echo(f"elastane master: {name}: {fault['msg']} (given: {fault['input']!r})", err=True)
        raise typer.Exit(EXIT_BAD_START) from None
    configure_logging(settings)
    try:
        run(serve(settings))
    except CannotListen as error:
        _fail(error, error.hint, EXIT_BAD_START)
    except (AnotherLeads, Fenced) as error:
        _fail(error, error.hint, EXIT_FENCED)
    except LogBroken as error:
        _fail(error, error.hint, EXIT_BROKEN)
    except StoreError as error:
        _fail(error, error.hint, EXIT_BAD_START)


async def serve(settings: MasterSettings) -> None:
    """Serves until SIGTERM or SIGINT; a second one ends the process at once.

    Raises CannotListen, and StoreError when the store is missing or another master took over.
    """
    from elastane_master.servers.app import Master  # grpc is only needed from here on

    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def stop(number: int) -> None:
        if told.is_set():
            os._exit(128 + number)
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    master = Master(settings)
    stopped = asyncio.create_task(told.wait())
    failed: asyncio.Task[None] | None = None
    try:
        starting = asyncio.create_task(master.start())
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return
        await starting
        failed = asyncio.create_task(master.failed())
        await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        await master.stop()
    if failed.done():
        await failed


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs the coroutine on uvloop where there is one: it takes a third of the cost off every call."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def configure_logging(settings: MasterSettings) -> None:
    """Log lines go to stderr, for people or as JSON."""
    level = getattr(logging, settings.log_level.upper())
    renderer: structlog.typing.Processor
    if settings.log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            LogLimit(settings.log_lines_per_second_max),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(level, logging.WARNING), stream=sys.stderr)


def _fail(error: Exception, hint: str, code: int) -> NoReturn:
    typer.echo(f"elastane master: {error}", err=True)
    if hint:
        typer.echo(f"  {hint}", err=True)
    raise typer.Exit(code)
