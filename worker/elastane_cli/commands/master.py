"""`elastane master`: replaces this process by the master's program, with the same arguments.

Called where options precede the word `master` or a file gives some; otherwise `console` has done it already.
"""

from __future__ import annotations

import typer

from elastane_cli.master_program import become_master


def register(app: typer.Typer) -> None:
    app.command(
        "master",
        help="Start a master (all options: elastane master --help).\n\n"
        "Example: elastane master --listen 127.0.0.1:50051 --store redis://...",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
        rich_help_panel="Run",
    )(master)


def master(context: typer.Context) -> None:
    become_master(context.args)
