"""What the commands share: options, the connection, errors as exit codes, output as JSON.

A command is a function wrapped in `command`; it raises the project's typed errors and returns nothing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec

import typer

from elastane.errors import ElastaneError, JobMissingError, MasterUnreachableError, RefusedError

if TYPE_CHECKING:
    from rich.console import Console

    from elastane.client import MasterClient

CODE_FAILED = 1
CODE_REFUSED = 3
CODE_UNREACHABLE = 4
CODE_NO_JOB = 6

Parameters = ParamSpec("Parameters")

MasterOption = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="ELASTANE_MASTER",
        help="The master; of several, all addresses with commas, or a DNS name that has them.",
        metavar="HOST:PORT",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.0, help="How long to try to reach the master, in seconds.", metavar="SECONDS"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
JobArgument = Annotated[
    str | None,
    typer.Argument(help="The job; may be left out when the master has just one.", show_default=False),
]
MASTER_DEFAULT = "127.0.0.1:50051"
TIMEOUT_DEFAULT = 10.0


def command(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Turn the typed errors of a command into a message on stderr and its exit code."""

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except ElastaneError as error:
            fail(error, as_json=bool(kwargs.get("as_json")))

    return run


def fail(error: ElastaneError, *, as_json: bool, code: int | None = None) -> NoReturn:
    """Say what happened and what to do; exit with `code`, or that of the error's kind."""
    code = exit_code(error) if code is None else code
    message = error.args[0] if error.args else type(error).__name__
    if as_json:
        document = {
            "error": type(error).__name__,
            "message": message,
            "reason": getattr(error, "reason", ""),
            "hint": error.hint,
            "facts": error.facts,
            "exit_code": code,
        }
        typer.echo(json.dumps(document, default=str), err=True)
    else:
        typer.secho("error: ", fg=typer.colors.RED, err=True, nl=False)
        typer.echo(message, err=True)
        if error.hint:
            typer.secho("hint: ", fg=typer.colors.CYAN, err=True, nl=False)
            typer.echo(error.hint, err=True)
    raise typer.Exit(code)


def exit_code(error: ElastaneError) -> int:
    """The command line's code for an error."""
    if isinstance(error, MasterUnreachableError):
        return CODE_UNREACHABLE
    if isinstance(error, JobMissingError):
        return CODE_NO_JOB
    if isinstance(error, RefusedError):
        return CODE_REFUSED
    return CODE_FAILED


@contextlib.contextmanager
def connect(master: str, timeout_seconds: float) -> Iterator[MasterClient]:
    """A connection to the master; says on a terminal when it has to wait."""
    from elastane.client import MasterClient

    said: list[str] = []

    def waiting(seconds: float, error: str) -> None:
        if sys.stderr.isatty() and not said:
            said.append(error)
            typer.echo(f"waiting for the master at {master} ...", err=True)

    try:
        client = MasterClient(master, timeout_seconds=timeout_seconds, on_wait=waiting)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--master") from error
    with client:
        yield client


def print_json(value: Any) -> None:
    """One JSON document on one line of stdout, at once."""
    typer.echo(json.dumps(value, default=str))
    sys.stdout.flush()


def console() -> Console:
    """Where tables go; as wide as the content when it is not a terminal, so that pipes lose nothing."""
    from rich.console import Console

    return Console(
        soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 200, highlight=False
    )


@contextlib.contextmanager
def sigterm_cleans_up() -> Iterator[None]:
    """SIGTERM leaves by the same way as Ctrl-C: no process and no temporary folder stays behind."""

    def leave(number: int, frame: object) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def worker_limits(text: str) -> tuple[int, int]:
    """ "MIN:MAX" or one number for both."""
    low, separator, high = text.partition(":")
    try:
        limits = (int(low), int(high if separator else low))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not MIN:MAX, like 1:4") from None
    if not 1 <= limits[0] <= limits[1]:
        raise typer.BadParameter(f"{text!r}: MIN is at least 1 and at most MAX")
    return limits
