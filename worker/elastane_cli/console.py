"""The console script `elastane`.

`elastane master` becomes the master's program here, before Typer is imported: that program imports it again,
which would take as long as all the rest of `elastane master --help`. `commands.main` runs everything else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from elastane_cli.commands.config_file import ConfigFileError, find_config
from elastane_cli.master_program import become_master

MASTER_COMMAND: Final = "master"


def main(arguments: Sequence[str] | None = None, *, reads_config: bool = True) -> None:
    """Run a command and exit. reads_config: a file may give options. Called by the console script."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == [MASTER_COMMAND] and not (reads_config and _has_config()):
        become_master(given[1:])
    from elastane_cli.commands.main import main as run_command

    run_command(given, reads_config=reads_config)


def _has_config() -> bool:
    """True if a file gives options, or cannot be read: `commands.main` applies or reports what it says."""
    try:
        return find_config(Path.cwd(), os.environ).path is not None
    except ConfigFileError:
        return True
