"""`elastane errors`: explains the code of an error and what to do about it."""

from __future__ import annotations

from typing import Annotated

import typer

from elastane_cli.commands.common import JsonOption, command, console, print_json


def register(app: typer.Typer) -> None:
    app.command("errors", rich_help_panel="Look")(errors)


@command
def errors(
    code: Annotated[
        str,
        typer.Argument(
            help="A code, a name (StepError, not_found), or words from the title.", show_default="list all"
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Explain an error code: its cause, and what to do.

    Examples: elastane errors ELA302; elastane errors store

    Exits with 2 if nothing matches.
    """
    from elastane_proto.error_codes import entries, find

    found = find(code) if code else list(entries().values())
    if not found:
        raise typer.BadParameter(f"no code, name or title matches {code!r}", param_hint="CODE")
    if as_json:
        print_json([entry._asdict() for entry in found])
        return
    out = console()
    if len(found) > 1:
        for entry in found:
            out.print(f"[bold]{entry.code}[/]  {entry.title}", soft_wrap=True)
        return
    (entry,) = found
    out.print(f"[bold]{entry.code}[/]  {entry.title}", soft_wrap=True)
    for label, text in (("name", ", ".join(entry.names)), ("why", entry.cause), ("do", entry.todo)):
        out.print(f"[dim]{label:<5}[/]", end="")
        out.print(text, markup=False, soft_wrap=True)
