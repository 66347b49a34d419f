"""`elastane token`: creates a token for a caller, and prints the entry for the master's token file."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from elastane_cli.commands.common import JsonOption, command, print_json
from elastane_common.errors import ElastaneError

ROLES = ("worker", "operator", "reader", "submitter", "runner")
_OF_RUNS = frozenset({"submitter", "runner"})
_TOKEN_BYTES = 32

HELP = "\n\n".join(
    (
        "Create a token: a file for the caller, and the entry for the master's --token-file.",
        "The token itself is written to FILE, readable by its owner only, and is shown nowhere; the entry "
        "holds its sha256. Roles: a worker joins jobs and leases tasks; an operator creates, scales, "
        "drains and cancels jobs and sees everything; a reader sees everything. Of the training service: a "
        "submitter submits runs, a runner starts their processes; both for the owners named by --owner, or "
        "for their own name.",
        "Example:",
        "  elastane token ci --role operator --role worker --job 'ci-*' --out ci.token >> tokens.toml",
        "  elastane master --token-file tokens.toml ...",
        "  ELASTANE_TOKEN_FILE=ci.token elastane status",
        "To set quotas, add lines to the entry: requests_per_second, sessions_max, jobs_max, "
        "datasets_max, runs_max, slots_max (numbers).",
    )
)


def register(app: typer.Typer) -> None:
    app.command("token", help=HELP, rich_help_panel="Run")(token)


@command
def token(
    name: Annotated[str, typer.Argument(help="Name of the caller; it appears in logs.", show_default=False)],
    role: Annotated[list[str], typer.Option("--role", help=f"{', '.join(ROLES)}; may be repeated.")],
    out: Annotated[Path, typer.Option("--out", help="File to write the token to; must not exist.")],
    job: Annotated[
        list[str] | None,
        typer.Option(
            "--job", help="Job, or pattern of job names; may be repeated.", show_default="*: every job"
        ),
    ] = None,
    owner: Annotated[
        list[str] | None,
        typer.Option(
            "--owner",
            help="Owner of runs, or pattern of owners; may be repeated.",
            show_default="the token's own name",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    if unknown := [each for each in role if each not in ROLES]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(ROLES)}", param_hint="--role")
    secret = secrets.token_urlsafe(_TOKEN_BYTES)
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ElastaneError(
            f"{out} cannot be created: {error.strerror}",
            hint="name a file that does not exist yet with --out",
        ) from error
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
    entry = {
        "name": name,
        "sha256": hashlib.sha256(secret.encode()).hexdigest(),
        "roles": sorted(set(role)),
        "jobs": job or ([] if _OF_RUNS.issuperset(role) else ["*"]),
        **({"owners": owner} if owner else {}),
    }
    if as_json:
        print_json(entry)
        return
    # Strings and lists of strings are written the same way in JSON and TOML.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
    typer.echo("\n".join(["[[token]]", *lines, ""]))
