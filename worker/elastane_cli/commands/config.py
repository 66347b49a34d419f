"""`elastane config`: the options in effect, and where each is from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from elastane_cli.commands.catalogue import COMMANDS, load
from elastane_cli.commands.common import JsonOption, command, console, print_json
from elastane_cli.commands.config_file import CONNECTION, MASTER, ConfigFile, find_config, settable

MASTER_VARIABLE = "ELASTANE_MASTER"


class Option(NamedTuple):
    """An option in effect. source: "default", "command line", a variable's name, or the path of the file."""

    command: str
    option: str
    value: Any
    source: str


def register(app: typer.Typer) -> None:
    app.command("config", rich_help_panel="Look")(config)


@command
def config(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="COMMAND", help="The command whose options are shown.", show_default="all"),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also options that have their default.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show which options a file or a variable sets, and where each value is from.

    The file is elastane.toml, or [tool.elastane] in pyproject.toml, here or in the nearest folder above;
    ELASTANE_CONFIG names another, or none if it is empty. A table has the options of the command it is named
    after. Precedence: command line, variable, file, default.

    Examples: elastane config; elastane config run --all; elastane config --json
    """
    if name is not None and name not in COMMANDS:
        raise typer.BadParameter(f"no such command: {name!r}", param_hint="COMMAND")
    file = find_config(Path.cwd(), os.environ)
    file.check_tables(list(COMMANDS))
    found = [*_connection(context, file), *_options(file, name)]
    shown = [option for option in found if everything or option.source != "default"]
    if as_json:
        print_json({"file": file.path and str(file.path), "options": [one._asdict() for one in shown]})
        return
    _print(file, shown)


def _connection(context: typer.Context, file: ConfigFile) -> Iterator[Option]:
    """Yield the options before the command; the application has set their variables already."""
    before = context.parent
    assert before is not None
    for option in settable(before.command):
        source = before.get_parameter_source(option.name)
        names = {"COMMANDLINE": "command line", "ENVIRONMENT": option.envvar, "DEFAULT_MAP": str(file.path)}
        told = names.get(source.name, "default") if source is not None else "default"
        yield Option(CONNECTION, option.opts[0], before.params[option.name], told)
    if MASTER in file.tables.get(CONNECTION, {}) and not os.environ.get(MASTER_VARIABLE):
        yield Option(CONNECTION, f"--{MASTER}", str(file.tables[CONNECTION][MASTER]), str(file.path))


def _options(file: ConfigFile, name: str | None) -> Iterator[Option]:
    """Yield the options of a command, or of all commands, where the address of the master is told once."""
    for one, entry in COMMANDS.items():
        if name == one:
            loaded = load(one)
            yield from _of(one, loaded, file.defaults(one, loaded), file)
        elif name is None and not entry.hidden:
            loaded = load(one)
            given = file.defaults(one, loaded)
            own = {
                key: value for key, value in given.items() if key != MASTER or key in file.tables.get(one, {})
            }
            yield from _of(one, loaded, own, file)


def _of(name: str, command: Any, given: dict[str, Any], file: ConfigFile) -> Iterator[Option]:
    context = typer.Context(command, info_name=name)
    for option in settable(command):
        variable = option.resolve_envvar_value(context)
        if variable is not None:
            value, source = variable, str(option.envvar)
        elif option.name in given:
            value, source = given[option.name], str(file.path)
        else:
            value, source = option.get_default(context), "default"
        yield Option(name, option.opts[0], value, source)
    for action, inner in getattr(command, "commands", {}).items():
        yield from _of(f"{name} {action}", inner, given.get(action, {}), file)


def _print(file: ConfigFile, shown: list[Option]) -> None:
    from rich.table import Table

    out = console()
    out.print(f"file: {file.path or 'none'}", markup=False, soft_wrap=True)
    if not shown:
        out.print("no file or variable sets an option", markup=False)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("command", "option", "value", "from"):
        table.add_column(heading, overflow="fold")
    for one in shown:
        value = ", ".join(map(str, one.value)) if isinstance(one.value, tuple) else str(one.value)
        table.add_row(one.command, one.option, value, one.source)
    out.print(table, markup=False)
