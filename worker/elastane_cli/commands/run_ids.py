"""Distinguishes runs of the training service from jobs by the form of their names."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

RUN_ID_MAX: Final = 2**31 - 1

_RUN: Final = re.compile(r"(?:run-)?([0-9]+)", re.ASCII)
_JOB_PREFIX: Final = "job/"

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="The run: its number, as 17 or run-17.", show_default=False)
]
JobOrRunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB|RUN]",
        help="A job by its name, or a run by its number (17 or run-17); may be omitted if the master has "
        "only one job. A job whose name looks like a run is written job/NAME.",
        show_default=False,
    ),
]


def parse_name(text: str) -> int | str:
    """Return the run's number for "17" or "run-17", else the job's name; "job/17" is the job "17".

    Raises ValueError for an impossible run number.
    """
    if text.startswith(_JOB_PREFIX):
        return text.removeprefix(_JOB_PREFIX)
    found = _RUN.fullmatch(text)
    if found is None:
        return text
    digits = found[1].lstrip("0")
    if not digits or len(digits) > len(str(RUN_ID_MAX)) or int(digits) > RUN_ID_MAX:
        raise ValueError(f"{text!r} is no run: they are numbered from 1 to {RUN_ID_MAX}")
    return int(digits)


def named(text: str | None, parameter: str = "RUN") -> int | str | None:
    """Parse an optional name as `parse_name` does. Raises BadParameter."""
    if text is None:
        return None
    try:
        return parse_name(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=parameter) from None


def run_id(text: str, parameter: str = "RUN") -> int:
    """Return the number of a run. Raises BadParameter for the name of a job."""
    found = named(text, parameter)
    if not isinstance(found, int):
        raise typer.BadParameter(
            f"{text!r} is no run: give its number, as 17 or run-17; `elastane jobs` lists them",
            param_hint=parameter,
        )
    return found
