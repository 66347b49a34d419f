"""Runs a command line of `elastane`: builds the application from the catalogue of commands and runs it.

A command's module is imported when the command is called. At the top, modules import only what loads quickly
(typer); gRPC, rich's tables and the agent are imported inside the commands that need them, so that
`elastane --help` and every command's --help are fast.

Exit codes: 0 ok, 1 failure, 2 bad usage, 3 not found or refused, 4 master unreachable, 130 Ctrl-C.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from elastane_cli.commands.catalogue import COMMANDS, CommandGroup, list_in, load
from elastane_cli.commands.config_file import ConfigFile, ConfigFileError, find_config
from elastane_cli.commands.signals import keep_signals
from elastane_common.help_text import CONTEXT_SETTINGS, Application
from elastane_proto.versions import release

HELP_OPTIONS = CONTEXT_SETTINGS["help_option_names"]
EPILOG = "Exit codes: 0 ok, 1 failure, 2 bad usage, 3 not found or refused, 4 master unreachable, 130 Ctrl-C."


def build_app() -> typer.Typer:
    """Return the application with all commands."""
    app = Application(
        name="elastane",
        cls=CommandGroup,
        help="Elastic PyTorch training whose result is bit for bit that of stock DistributedDataParallel.",
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=True,
        context_settings=dict(CONTEXT_SETTINGS),
    )
    app.callback()(_root)
    list_in(app)
    return app


def _connection(name: str, metavar: str, text: str) -> Any:
    """Declare an option given before the command, with its variable ELASTANE_<name>."""
    return typer.Option(
        "--" + name.lower().replace("_", "-"),
        envvar=f"ELASTANE_{name}",
        metavar=metavar,
        help=text,
        rich_help_panel="Connection to the master, before the command",
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"elastane {release()}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        # Eager: handled before typer complains about a missing command.
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
    token_file: Annotated[
        Path | None, _connection("TOKEN_FILE", "FILE", "File with the token for the master.")
    ] = None,
    tls_ca: Annotated[
        str | None, _connection("TLS_CA", "FILE", 'CA of the master\'s certificate (PEM), or "system".')
    ] = None,
    tls_cert: Annotated[
        Path | None, _connection("TLS_CERT", "FILE", "Client certificate for the master (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, _connection("TLS_KEY", "FILE", "Key of --tls-cert (PEM).")] = None,
    tls_server_name: Annotated[
        str | None,
        _connection(
            "TLS_SERVER_NAME", "NAME", "Name in the master's certificate, if it differs from the address."
        ),
    ] = None,
) -> None:
    given = {
        "TOKEN_FILE": token_file,
        "TLS_CA": tls_ca,
        "TLS_CERT": tls_cert,
        "TLS_KEY": tls_key,
        "TLS_SERVER_NAME": tls_server_name,
    }
    for name, value in given.items():
        if value is not None:
            # Set as variables, with absolute paths, so that the workers of this process inherit them.
            is_path = name != "TLS_SERVER_NAME" and str(value) != "system"
            os.environ[f"ELASTANE_{name}"] = str(Path(value).absolute() if is_path else value)


def main(arguments: Sequence[str] | None = None, *, reads_config: bool = True) -> None:
    """Run a command and exit. Called by `console`. reads_config: a file may give options."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given and "_ELASTANE_COMPLETE" not in os.environ:
        given = ["--help"]  # exit with 0, unlike Typer for a missing command
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Print "?" for characters that the terminal's encoding lacks, instead of a traceback.
        sys.stdout.reconfigure(errors="replace")
    keep_signals()
    try:
        file = find_config(Path.cwd(), os.environ) if reads_config else ConfigFile()
        file.check_tables(list(COMMANDS))
        if len(given) == 2 and given[0] in COMMANDS and given[1] in HELP_OPTIONS:
            _help_of(given, file)
        group: Any = typer.main.get_command(build_app())
        group(args=given, prog_name="elastane", obj=file, default_map=file.root_defaults(group))
    except ConfigFileError as error:
        typer.echo(f"elastane: {error}", err=True)
        _leave(2)
    except KeyboardInterrupt:
        _leave(130)
    except BrokenPipeError:
        _leave(141)


def _help_of(given: list[str], file: ConfigFile) -> NoReturn:
    """Print a command's help without building the whole application, for which Typer imports pydantic."""
    name, option = given
    command = load(name)
    command(
        args=[option],
        prog_name=f"elastane {name}",
        default_map=file.defaults(name, command),
        **{**CONTEXT_SETTINGS, **command.context_settings},
    )
    raise AssertionError("a command ends by itself")


def _leave(code: int) -> None:
    """Exit without the traceback that flushing a broken stdout would print."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes stdout again at exit
    sys.exit(code)


if __name__ == "__main__":
    main()
