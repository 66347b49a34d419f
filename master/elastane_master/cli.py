"""`python -m elastane_master`: starts a master and runs it until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

from elastane_master.cancellation import cancel
from elastane_master.errors import CannotListen, TooFewDescriptors
from elastane_master.security.errors import BadSecurityFile
from elastane_master.security.settings import SecuritySettings
from elastane_master.settings import MasterSettings
from elastane_master.store.errors import (
    AnotherLeads,
    Fenced,
    LogBroken,
    StoreError,
    StoreIsCluster,
    StoreIsSentinel,
    StoreMayEvict,
    StoreReadOnly,
)
from elastane_proto import log_lines

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

EXIT_BAD_START = 2
"""Bad settings, an address in use, no store: a restart without changes would fail again."""
EXIT_FENCED = 3
"""Another master leads and --no-standby was given: do not restart this one."""
EXIT_BROKEN = 1
"""A bug in the master: restart it. Not 4, which means in all commands that a master is unreachable."""
EXIT_UNFIT: dict[type[StoreError], int] = {
    StoreMayEvict: 5,
    StoreReadOnly: 6,
    StoreIsCluster: 7,
    StoreIsSentinel: 8,
}
"""The store answers but is unsuitable for jobs: reconfigure it or name another one."""
BAD_SETTING = "ELA200"
"""Error code for an option or variable with an invalid value (docs/errors.md)."""


def _protection(text: str, flag: str = "") -> Any:
    return typer.Option(*([flag] if flag else []), help=text, rich_help_panel="Protection")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT to listen on; port 0 takes a free one. [127.0.0.1:50051]")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="redis://, rediss:// or unix:// URL of the store. [a private one in the state directory]"
        ),
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder of the private store. [.elastane]")] = None,
    store_replicas: Annotated[
        int | None,
        typer.Option(
            help="Number of replicas of the --store that must have a write before it is acknowledged. [0]"
        ),
    ] = None,
    port_file: Annotated[
        Path | None, typer.Option(help="File to write HOST:PORT to, once the master serves.")
    ] = None,
    standby: Annotated[
        bool | None,
        typer.Option(
            "--standby/--no-standby",
            help="While another master leads the --store: wait to take over, or exit with code 3. [standby]",
            show_default=False,
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT at which workers and clients reach this master. [the address it listens on]"
        ),
    ] = None,
    leader_lease_seconds: Annotated[
        float | None,
        typer.Option(
            help="Time after which a leader that stopped renewing its lease is replaced. [3]",
            metavar="SECONDS",
        ),
    ] = None,
    keep_finished: Annotated[
        str | None,
        typer.Option(
            help="Finished jobs to keep: those of a period (7d), the newest N, or forever. Others are "
            "deleted; checkpoints stay. [30d]",
            metavar="TIME|N",
        ),
    ] = None,
    artifact_url: Annotated[
        str | None,
        typer.Option(
            help="fsspec URL of the folder for code, models and logs of runs, as all runners reach it. "
            "[STATE_DIR/artifacts]",
            metavar="URL",
        ),
    ] = None,
    dataset_root: Annotated[
        str | None,
        typer.Option(
            help="fsspec URL of the folder of datasets, ID/HASH/manifest.json, that runs may name. [none]",
            metavar="URL",
        ),
    ] = None,
    data_service: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of a data management service that is asked for datasets without a URL. [none]",
            metavar="HOST:PORT",
        ),
    ] = None,
    scheduling_policy: Annotated[
        str | None,
        typer.Option(
            help="Who decides which runs of the training service have which slots: fair-share, or a policy "
            "of `elastane simulate`, such as foresight. [fair-share]",
            metavar="NAME",
        ),
    ] = None,
    scheduling_queues: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of queues, each with a weight, guaranteed slots, and the owners of its runs, for "
            "a scheduling policy. [none]",
            metavar="FILE",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT for the dashboard, /metrics and probes, such as 0.0.0.0:8080 in a container. "
            "[none]"
        ),
    ] = None,
    http_port_file: Annotated[
        Path | None, typer.Option(help="File to write HOST:PORT to, once --http is served.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [info]")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json. [console]")] = None,
    token_file: Annotated[
        Path | None,
        _protection(
            "Table of tokens and their rights; see `elastane token`. Without it, anybody may do anything."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, _protection("PEM chain of the master's certificate. Without it, there is no TLS.")
    ] = None,
    tls_key: Annotated[Path | None, _protection("PEM key of --tls-cert.")] = None,
    tls_client_ca: Annotated[
        Path | None,
        _protection(
            "PEM of the CA that must have signed the callers' certificates. Without it, they need none."
        ),
    ] = None,
    insecure: Annotated[
        bool | None,
        _protection(
            "Allow serving other machines without TLS, or without authentication of callers.",
            flag="--insecure",
        ),
    ] = None,
    reflection: Annotated[
        bool | None,
        _protection(
            "Enable gRPC reflection, for grpcurl; on by default.",
            flag="--reflection/--no-reflection",
        ),
    ] = None,
    http_open_metrics: Annotated[
        bool | None,
        _protection("Serve /metrics to anybody, without token or certificate.", flag="--http-open-metrics"),
    ] = None,
    store_ca: Annotated[
        Path | None, _protection("PEM of the CA of a rediss:// store. Without it, the system's CAs.")
    ] = None,
    store_cert: Annotated[Path | None, _protection("PEM client certificate for a rediss:// store.")] = None,
    store_key: Annotated[Path | None, _protection("PEM key of --store-cert.")] = None,
    store_password_file: Annotated[
        Path | None, _protection("File with the password of the user in --store.")
    ] = None,
) -> None:
    """Serve the jobs of one store over gRPC; with --http also a dashboard, metrics and probes.

    Every option can also be set as a variable, such as ELASTANE_LISTEN; those of protection options have a
    longer prefix, such as ELASTANE_MASTER_TOKEN_FILE. Changed token and certificate files are reloaded.

    Several masters may be started on one --store: one leads, the others stand by and take over when it
    stops or dies. Give workers and commands all addresses (--master A:50051,B:50051, or a DNS name).

    Exits with 0 after SIGTERM or SIGINT, 2 if it cannot start, 3 if another master leads and --no-standby was
    given, 1 after a bug of its own; and with a store that is not safe for jobs: 5 if it may evict keys, 6 if
    it is read-only (a replica), 7 if it is a cluster, 8 if it is a Sentinel.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    try:
        settings = MasterSettings(security=SecuritySettings(**given), **given)
    except ValidationError as error:
        for fault in error.errors():
            typer.echo(f"elastane master: {_setting_fault(fault, given)} [{BAD_SETTING}]", err=True)
        raise typer.Exit(EXIT_BAD_START) from None
    configure_logging(settings)
    try:
        run(serve(settings))
    except (CannotListen, TooFewDescriptors, BadSecurityFile) as error:
        _fail(error, EXIT_BAD_START)
    except (AnotherLeads, Fenced) as error:
        _fail(error, EXIT_FENCED)
    except LogBroken as error:
        _fail(error, EXIT_BROKEN)
    except StoreError as error:
        _fail(error, EXIT_UNFIT.get(type(error), EXIT_BAD_START))


def _setting_fault(fault: ErrorDetails, given: Collection[str]) -> str:
    """Say what is wrong with a setting; given: those of the command line, others come from variables."""
    text = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:  # of several settings together
        return text
    field = str(fault["loc"][0])
    settings = SecuritySettings if field in SecuritySettings.model_fields else MasterSettings
    variable = f"{settings.model_config['env_prefix']}{field}".upper()
    name = f"--{field.replace('_', '-')}" if field in given else variable
    value = fault["input"]
    return f"{name}: {text} (given: {str(value) if isinstance(value, Path) else value!r})"


async def serve(settings: MasterSettings) -> None:
    """Serve until SIGTERM or SIGINT; a second signal ends the process at once.

    Raises CannotListen, and StoreError if the store cannot be used or another master took over.
    """
    from elastane_master.app import Master  # grpc is only needed from here on

    loop = asyncio.get_running_loop()
    stop_requested = asyncio.Event()

    def stop(number: int) -> None:
        if stop_requested.is_set():
            os._exit(128 + number)
        stop_requested.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    master = Master(settings)
    stopped = asyncio.create_task(stop_requested.wait())
    failed: asyncio.Task[None] | None = None
    try:
        starting = asyncio.create_task(master.start())
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            await cancel(starting)
            return
        await starting
        # A shortcut: renewed certificates and tokens are noticed without it, a second later.
        loop.add_signal_handler(signal.SIGHUP, master.refresh_security)
        failed = asyncio.create_task(master.failed())
        await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        await master.stop()
    if failed.done():
        await failed


_YOUNG_OBJECTS_MAX = 20_000
"""Allocations between two collections of the youngest generation.

A message allocates dozens of objects; nearly all of them are freed by reference counting.
"""


_M_ARENA_MAX = -8  # of <malloc.h>


def _keep_one_heap() -> None:
    """Make glibc, if present, use one heap for all threads.

    With one heap per gRPC thread, memory freed by connections in one heap is unusable for the others: 1,000
    hostile connections took 15 MiB more. Calls take as long as before.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine on uvloop if installed, which makes every call a third cheaper."""
    _keep_one_heap()
    gc.freeze()  # imported objects live for ever: collections need not scan them
    gc.set_threshold(_YOUNG_OBJECTS_MAX, 20, 20)
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def configure_logging(settings: MasterSettings) -> None:
    """Log to stderr, as text or JSON, including messages of libraries."""
    log_lines.configure(
        settings.log_level,
        settings.log_format,
        lines_per_second=settings.log_lines_per_second_max,
        whole_process=True,
    )


def _fail(error: CannotListen | TooFewDescriptors | BadSecurityFile | StoreError, exit_code: int) -> NoReturn:
    hint = f"; {error.hint}" if error.hint else ""
    typer.echo(f"elastane master: {error}{hint} [{error.code}]", err=True)  # one line, for logs
    raise typer.Exit(exit_code)
