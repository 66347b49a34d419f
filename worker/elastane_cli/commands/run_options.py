"""Options that `elastane run` and `elastane launch` share, and the names of their environment variables.

An option `--some-name` of `elastane run` is also the variable ELASTANE_SOME_NAME, so that a container needs
no arguments but its script. If workers read the same setting from a variable of another name, that is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

DEFAULT_TEMPLATE: Final = (
    "ssh -tt -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 "
    "{host} {command}"
)

#: All arguments after the script are passed to the script.
SCRIPT_SETTINGS: Final = {"allow_interspersed_args": False}

_NAMED_OTHERWISE: Final = {
    "--threads": "ELASTANE_TORCH_THREADS",
    "--keep": "ELASTANE_CHECKPOINT_KEEP",
    "--master-timeout": "ELASTANE_MASTER_TIMEOUT_SECONDS",
}
#: Options without a variable: they only make sense on a command line.
_NO_VARIABLE: Final = frozenset({"-m", "--json"})


def variable(option: str) -> str | None:
    """Return the variable of an option of `elastane run`; None if it has none."""
    if option in _NO_VARIABLE:
        return None
    return _NAMED_OTHERWISE.get(option, "ELASTANE_" + option.removeprefix("--").replace("-", "_").upper())


def option(name: str, metavar: str | None, text: str, panel: str | None = None, **options: Any) -> Any:
    """Declare an option without a variable."""
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=panel, **options)


def run_option(name: str, metavar: str | None, text: str, panel: str, **options: Any) -> Any:
    """Declare an option with its variable."""
    options.setdefault("envvar", variable(name))
    return option(name, metavar, text, panel, **options)


ScriptArgument = Annotated[
    list[str],
    typer.Argument(metavar="SCRIPT [ARGS]...", help="The script and its arguments.", show_default=False),
]
ModuleOption = Annotated[bool, option("-m", None, "SCRIPT is a module name, as for python -m.")]
JsonOption = Annotated[bool, option("--json", None, "Print JSON lines, including the workers' output.")]
HOSTS: Final = "Other machines"
HostsOption = Annotated[
    Path | None,
    run_option(
        "--hosts",
        "SCRIPT",
        "Program that prints a line HOST[:SLOTS] [spot|on-demand] [PRICE] for each host; it is run "
        "periodically.",
        HOSTS,
        show_default="this machine",
        exists=True,
        dir_okay=False,
    ),
]
HostsIntervalOption = Annotated[
    float,
    run_option("--hosts-interval", "SECONDS", "Time between runs of the --hosts program.", HOSTS, min=0.1),
]
HostsTimeoutOption = Annotated[
    float,
    run_option("--hosts-timeout", "SECONDS", "Time limit of one run of the --hosts program.", HOSTS, min=0.1),
]
RemoteOption = Annotated[
    str, run_option("--remote", "TEMPLATE", "Command template that runs a command on another host.", HOSTS)
]
PassOption = Annotated[
    list[str] | None,
    option("--pass", "NAME", "Environment variable to pass to other hosts; may be repeated.", HOSTS),
]


def require_script(script: list[str], *, is_file: bool) -> None:
    """Raise BadParameter if the script is not a file here. is_file: whether it must be one."""
    if is_file and not Path(script[0]).is_file():
        raise typer.BadParameter(f"{script[0]} is not a file", param_hint="SCRIPT")


def missing_option(option: str, text: str, script: list[str]) -> typer.BadParameter:
    """Return the error for a missing option. Where the option was written after the script, it says so."""
    if any(argument == option or argument.startswith(f"{option}=") for argument in script[1:]):
        text += f"; {option} after the script is an argument of the script: write it before {script[0]}"
    return typer.BadParameter(text, param_hint=option)


def refuse_plain_libraries(script: str) -> None:
    """Raise PlainLibraryError for a script that would train with another library alone, in each worker."""
    from elastane.script_source.plain_libraries import find_plain_class, plain_library_error

    if (found := find_plain_class(script)) is not None:
        raise plain_library_error(*found)


def metrics_address(text: str, *, insecure: bool) -> tuple[str, int]:
    """Parse host and port of --metrics.

    Raises BadParameter for anything else, and without `insecure` for an address beyond loopback.
    """
    host, separator, port = text.rpartition(":")
    if not separator or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise typer.BadParameter(f"{text!r} is not HOST:PORT", param_hint="--metrics")
    host = host or "0.0.0.0"
    loopback = host in ("localhost", "[::1]") or host.startswith("127.")
    if not (loopback or insecure):
        raise typer.BadParameter(
            f"other machines can reach {text}, and anybody could read the metrics: add --metrics-insecure if "
            "the network itself keeps everybody else out",
            param_hint="--metrics",
        )
    return host, int(port)
