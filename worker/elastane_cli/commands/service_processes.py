"""The processes of `elastane service`: a master and a runner, started again when they die."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from elastane_common.backoff import backoff_seconds

STEADY_SECONDS = 10.0
"""A process that has lived so long is started again at once."""

EXIT_BAD_START = 2

_FINAL_CODES = frozenset({EXIT_BAD_START, 3})
"""Exit codes of a master or runner that would end the same way again: bad usage, refused."""


async def serve(
    master: Callable[[], Sequence[str]], runner: Callable[[], Sequence[str]], port_file: Path
) -> int:
    """Keep both running until a signal; return the exit code. Called by `elastane service`.

    master, runner: return the command of each, at each of its starts. port_file: written by the master.
    """
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
