"""Commands whose help is plain text, with the options below their headings (`rich_help_panel`).

Typer's own help draws boxes with rich, whose import and layout take longer than all the rest of a help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

CONTEXT_SETTINGS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""For the context of a command that is called by itself, and of the application."""


class Application(typer.Typer):
    """A Typer application whose commands have this module's help."""

    def __init__(self, *, cls: type[TyperGroup] | None = None, **settings: Any) -> None:
        super().__init__(
            cls=cls or HelpGroup, rich_markup_mode=None, pretty_exceptions_enable=False, **settings
        )

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any
    ) -> Callable[[Any], Any]:
        """Register a command as Typer does."""
        return super().command(name, cls=cls or HelpCommand, **settings)


class HelpCommand(TyperCommand):
    """Command with its options below their headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options. Called by Typer."""
        _write_parameters(self, ctx, formatter)


class HelpGroup(TyperGroup):
    """Group with its options and commands below their headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options and the commands. Called by Typer."""
        _write_parameters(self, ctx, formatter)
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        _write(
            formatter,
            [
                (
                    getattr(command, "rich_help_panel", None) or "Commands",
                    (name, command.get_short_help_str(limit=_SHORT_HELP_LENGTH)),
                )
                for name, command in commands
                if not command.hidden
            ],
        )


_SHORT_HELP_LENGTH: Final = 1000
"""Limit of a command's help in the list, in characters: enough to show its whole first paragraph."""


def _write_parameters(command: Any, context: Any, formatter: Any) -> None:
    parameters = [(each, each.get_help_record(context)) for each in command.get_params(context)]
    _write(formatter, [(_heading(each), text) for each, text in parameters if text is not None])


def _heading(parameter: Any) -> str:
    usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
    return getattr(parameter, "rich_help_panel", None) or usual


def _write(formatter: Any, rows: Iterable[tuple[str, tuple[str, str]]]) -> None:
    """Write a section for each heading, in the order in which they come first."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for heading, text in rows:
        sections.setdefault(heading, []).append(text)
    for heading, texts in sections.items():
        with formatter.section(typer.style(heading, bold=True)):
            formatter.write_dl(texts)
