"""`elastane master`: replaces this process by the master's program, with the same arguments.

It uses exec instead of an import because the worker's package never imports the control plane, and the
master's process should not carry the modules of this one.
"""

from __future__ import annotations

import os
import sys

import typer


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
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "elastane_master", *context.args])
