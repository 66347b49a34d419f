"""Generates the reference of the command line from Typer: commands, options, variables and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from docs_site.tables import cell, code_cell
from elastane_cli.commands.catalogue import COMMANDS, load
from elastane_cli.commands.main import EPILOG, build_app


def commands() -> dict[str, Any]:
    """Return every visible command by name; `master` has the options of the master's own program."""
    from elastane_master.cli import app as master_app

    found = {name: load(name) for name, entry in COMMANDS.items() if not entry.hidden}
    found["master"] = typer.main.get_command(master_app)
    return found


def options(command: Any) -> Iterator[Any]:
    """Yield a command's options, without --help and hidden ones."""
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden and "--help" not in parameter.opts:
            yield parameter


def render() -> str:
    """Return the page in Markdown."""
    parts = [
        "# Commands\n",
        f"`elastane COMMAND --help` says the same. {EPILOG}\n",
        "These options stand before the command:\n",
        _options(typer.main.get_command(build_app())),
    ]
    for name, command in commands().items():
        parts += [f"## elastane {name}\n", _help(command), _arguments(command), _options(command)]
    return "\n".join(part for part in parts if part)


def _help(command: Any) -> str:
    """Return the help in Markdown; indented lines are commands and become code blocks."""
    blocks = [block.strip("\n") for block in inspect.cleandoc(command.help or "").split("\n\n")]
    lines = [f"    {block.strip()}" if block.startswith("  ") else block for block in blocks]
    return "\n\n".join(lines).replace("\n\n    ", "\n    ").replace(":\n    ", ":\n\n    ") + "\n"


def _arguments(command: Any) -> str:
    rows = [
        f"| `{code_cell(parameter.display_name_raw)}` | {cell(parameter.help or '')} |"
        for parameter in command.params
        if parameter.param_type_name == "argument"
    ]
    return "\n".join(["| argument | |", "|---|---|", *rows, ""]) if rows else ""


def _options(command: Any) -> str:
    rows = [
        f"| {_names(each, command)} | {cell(each.help or '')} | {_default(each)} | {_variable(each)} |"
        for each in options(command)
    ]
    head = ["| option | | default | variable |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""]) if rows else ""


def _names(option: Any, command: Any) -> str:
    shown = "" if option.is_flag else option.display_type_rich(typer.Context(command)) or ""
    names = ", ".join([*option.opts, *option.secondary_opts])
    return f"`{code_cell(f'{names} {shown}'.strip())}`"


def _default(option: Any) -> str:
    if isinstance(option.show_default, str):
        return cell(option.show_default)
    if option.required:
        return "required"
    value = getattr(option.default, "value", option.default)
    if value is None or value == "" or value is False or not option.show_default:
        return ""
    return f"`{code_cell(str(value))}`"


def _variable(option: Any) -> str:
    names = option.envvar or ()
    return ", ".join(f"`{name}`" for name in ([names] if isinstance(names, str) else names))
