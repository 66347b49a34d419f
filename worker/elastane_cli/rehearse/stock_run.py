"""Runs a script under stock DistributedDataParallel on a fixed number of processes.

Its result is the reference that elastic runs are compared with.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from elastane_common.determinism import DEFAULT_LEVEL, level_from_text, process_environment
from elastane_common.errors import ElastaneError
from elastane_common.ports import unused_port
from elastane_common.processes.child import ChildProcess, ExitStatus

PORT_ATTEMPTS = 3
PORT_TAKEN = "EADDRINUSE"
_LINES_SHOWN = 20
_LINES_OF_OTHERS = 5


class StockRunError(ElastaneError):
    """The reference run failed; the text holds the last lines of its output."""

    code = "ELA406"


def run_stock_ddp(
    folder: Path,
    script: Sequence[str],
    *,
    processes: int,
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    timeout_seconds: float = 600.0,
    directory: Path | None = None,
    launch: Callable[..., ChildProcess] = ChildProcess,
) -> Path:
    """Run `script` with ELASTANE_MODE=ddp in `processes` ranks, as torchrun would.

    folder: for the run's files. environment: additional variables of every rank; ELASTANE_DETERMINISM and
    ELASTANE_TORCH_THREADS, from here or from this process, also set the variables that they imply.
    on_line: called with each line of stdout. directory: the ranks' working directory; default: the current
    one. launch: creates a rank's process, with the arguments of `ChildProcess`.
    Returns the folder of the reports (`ddp-<rank>.json`). Raises StockRunError if a rank fails or
    the timeout passes, RefusedError for an unknown level; no rank is left running in either case.
    """
    deadline = time.monotonic() + timeout_seconds
    for attempt in range(1, PORT_ATTEMPTS + 1):
        try:
            return _run(
                folder, script, processes, environment, on_line, timeout_seconds, deadline, directory, launch
            )
        except StockRunError as error:
            # torch binds the port itself: another process may take it after we chose it.
            if PORT_TAKEN not in str(error) or attempt == PORT_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


@contextmanager
def stock_failures_as(failure: type[ElastaneError], what: str) -> Iterator[None]:
    """Raise `failure` in place of a StockRunError. what: the run that failed, for the message."""
    try:
        yield
    except StockRunError as error:
        raise failure(f"{what} failed: {error.args[0]}", hint=error.hint) from error


def _run(
    folder: Path,
    script: Sequence[str],
    processes: int,
    environment: Mapping[str, str] | None,
    on_line: Callable[[str], None] | None,
    timeout_seconds: float,
    deadline: float,
    directory: Path | None,
    launch: Callable[..., ChildProcess],
) -> Path:
    """Make one attempt of `run_stock_ddp`."""
    reports = folder / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    lines = {f"rank{rank}": deque[str](maxlen=_LINES_SHOWN) for rank in range(processes)}
    ended: queue.SimpleQueue[tuple[str, ExitStatus]] = queue.SimpleQueue()

    def hear(name: str, stream: str, text: str) -> None:
        lines[name].append(f"{name}: {text}")
        if on_line is not None and stream == "stdout":
            on_line(text)

    shared = _shared_environment(processes, reports, environment or {})
    ranks = [
        launch(
            f"rank{rank}",
            [sys.executable, *script],
            environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), **(environment or {})},
            directory=directory,
            on_line=hear,
            on_exit=lambda process, status: ended.put((process.name, status)),
        )
        for rank in range(processes)
    ]
    try:
        for process in ranks:
            process.start()
        for _ in ranks:
            # Wait in the order in which ranks end: the others may wait for a failed one for ever.
            try:
                name, status = ended.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise _failed(f"not finished after {timeout_seconds:g} s", lines) from None
            report = reports / f"ddp-{name.removeprefix('rank')}.json"
            if status == ExitStatus(-signal.SIGABRT) and report.exists():
                continue  # torch's threads can abort the interpreter at exit, after the report was written
            if status.returncode != 0:
                raise _failed(f"{name} {status}", lines, name)
    finally:
        for process in ranks:
            process.kill_group()
            process.wait()
    return reports


def _shared_environment(processes: int, reports: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of all ranks, without their numbers. environment: overrides for this run."""
    asked = {**os.environ, **environment}
    level = level_from_text(asked.get("ELASTANE_DETERMINISM", DEFAULT_LEVEL))
    threads = int(asked.get("ELASTANE_TORCH_THREADS", "1"))
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        **process_environment(level, threads),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(unused_port()),
        "WORLD_SIZE": str(processes),
        "ELASTANE_MODE": "ddp",
        "ELASTANE_LOG_TO": "",  # a reference run does not log to trackers
        "MODEL_URL": "",  # and its model is not uploaded
        "ELASTANE_REPORT_DIR": str(reports),
    }


def _failed(what: str, lines: Mapping[str, Collection[str]], failed: str = "") -> StockRunError:
    """Return the error with the last lines of the failed rank, then a few of every other.

    A rank whose peer has died fails as well and says much about it: in one list, its lines would be the last.
    """
    said = list(lines.get(failed, ()))
    for name, of_rank in lines.items():
        if name != failed:
            said += list(of_rank)[-_LINES_OF_OTHERS:]
    return StockRunError("\n".join([f"stock DDP: {what}", *said]))
