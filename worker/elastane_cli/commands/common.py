"""Shared parts of the commands: options, the connection, exit codes for errors, JSON output.

A command is a function wrapped in `command`; it raises the project's typed errors and returns nothing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec

import typer

from elastane_common.errors import ElastaneError, JobMissingError, MasterUnreachableError, RefusedError
from elastane_common.exit_codes import CODE_FAILED, CODE_NO_JOB, CODE_REFUSED, CODE_UNREACHABLE
from elastane_common.sizes import parse_size
from elastane_common.worker_limits import parse_worker_limits

if TYPE_CHECKING:
    from rich.console import Console

    from elastane_common.client import MasterClient
    from elastane_common.client_errors import RequestRefusedError


_JOBS_SHOWN = 20

Parameters = ParamSpec("Parameters")

MasterOption = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="ELASTANE_MASTER",
        help="The master; of several, all their addresses, comma-separated, or a DNS name that resolves to "
        "all.",
        metavar="HOST:PORT",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.0, help="How long to try to reach the master, in seconds.", metavar="SECONDS"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobArgument = Annotated[
    str | None,
    typer.Argument(help="The job; may be omitted if the master has only one.", show_default=False),
]
MASTER_DEFAULT = "127.0.0.1:50051"
TIMEOUT_DEFAULT = 10.0


def command(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Decorate a command so that its typed errors become a message on stderr and an exit code."""

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except ElastaneError as error:
            fail(error, as_json=bool(kwargs.get("as_json")))

    return run


def fail(error: ElastaneError, *, as_json: bool, code: int | None = None) -> NoReturn:
    """Print the error with its hint on stderr; exit with `code`, or the one for the error's class."""
    code = exit_code(error) if code is None else code
    message = error.args[0] if error.args else type(error).__name__
    if as_json:
        document = {
            "error": type(error).__name__,
            "code": error.code,
            "message": message,
            "reason": getattr(error, "reason", ""),
            "hint": error.hint,
            "facts": error.facts,
            "exit_code": code,
        }
        typer.echo(json.dumps(document, default=str), err=True)
    else:
        print_error(error, message)
    raise typer.Exit(code)


def print_error(error: ElastaneError, message: str) -> None:
    """Print the message with the error's code and hint on stderr."""
    typer.secho(f"error {error.code}: ", fg=typer.colors.RED, err=True, nl=False)
    typer.echo(message, err=True)
    if error.hint:
        typer.secho("hint: ", fg=typer.colors.CYAN, err=True, nl=False)
        typer.echo(error.hint, err=True)


def exit_code(error: ElastaneError) -> int:
    """Return the exit code for an error, by its class."""
    if isinstance(error, MasterUnreachableError):
        return CODE_UNREACHABLE
    if isinstance(error, JobMissingError):
        return CODE_NO_JOB
    if isinstance(error, RefusedError):
        return CODE_REFUSED
    return CODE_FAILED


@contextlib.contextmanager
def connect(master: str, timeout_seconds: float) -> Iterator[MasterClient]:
    """Yield a connection to the master; on a terminal, count down while no master answers.

    If a request names a job that does not exist, the error lists the jobs that the caller may see. Raises
    BadParameter for an invalid address.
    """
    from elastane_common.client import MasterClient
    from elastane_common.client_errors import RequestRefusedError

    gives_up_at: list[float] = []

    def waiting(seconds: float, error: str) -> None:
        if not sys.stderr.isatty():
            return  # not a terminal: the final error is enough
        now = time.monotonic()
        if not gives_up_at:
            gives_up_at.append(now + timeout_seconds)
        left = max(gives_up_at[0] - now, 0.0)
        typer.echo(
            f"\r\x1b[Kno master answers at {master} ({error}); {left:.0f} s left (--timeout)",
            nl=False,
            err=True,
        )

    try:
        client = MasterClient(master, timeout_seconds=timeout_seconds, on_wait=waiting)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--master") from error
    with client:
        try:
            yield client
        except RequestRefusedError as error:
            raise with_known_jobs(error, client) from None
        finally:
            if gives_up_at:
                typer.echo("\r\x1b[K", nl=False, err=True)


def with_known_jobs(error: RequestRefusedError, client: MasterClient) -> RequestRefusedError:
    """If a refusal says that a job does not exist, return it with the jobs that the caller may see."""
    from elastane_common.client_errors import RequestRefusedError

    if error.reason != "not_found" or error.facts.keys() != {"job"}:
        return error
    try:
        names = sorted(job.name for job in islice(client.iter_jobs(), _JOBS_SHOWN + 1))
    except ElastaneError:  # this caller may not list them
        return error
    shown = ", ".join(names[:_JOBS_SHOWN]) + (" and more" if len(names) > _JOBS_SHOWN else "")
    hint = f"this master has: {shown}" if names else "this master has no job; `elastane run` starts one"
    return RequestRefusedError(str(error.args[0]), reason=error.reason, hint=hint, **error.facts)


def print_json(value: Any) -> None:
    """Print one JSON document on one line of stdout, and flush."""
    typer.echo(json.dumps(value, default=str))
    sys.stdout.flush()


def console() -> Console:
    """Return the console for tables; not wrapped or cut when stdout is a pipe, so that nothing is lost."""
    from rich.console import Console

    return Console(
        soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 200, highlight=False
    )


def worker_limits(text: str, named: str = "--workers") -> tuple[int, int]:
    """Parse "MIN:MAX", or one number for both. Raises BadParameter for the option or argument `named`."""
    try:
        return parse_worker_limits(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=named) from None


def size_bytes(text: str, option: str) -> int:
    """Parse a size as 512M or 8GiB; the units are powers of 1024. Raises BadParameter."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
