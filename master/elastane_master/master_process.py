"""A master's process: from its options to its exit code. Called by `cli`."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
from collections.abc import Collection, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from pydantic import ValidationError

from elastane_common.cancellation import cancel
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


def run_master(given: Mapping[str, Any]) -> None:
    """Serve until a signal ends the process. given: the options of the command line that were given, by name.

    Raises typer.Exit with one of the codes above, after a message, if the master cannot start or go on.
    """
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
