"""Builds commands and variables for processes on other hosts: pure, but for this machine's name."""

from __future__ import annotations

import ipaddress
import shlex
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from elastane_common.errors import RefusedError

CANNOT_START: Final = {
    126: "the command cannot be run there",
    127: "the command is not there",
    255: "the remote shell failed",
}
"""Exit codes that are about a host or the way to it, not about the command."""

#: Not passed on, because everybody on a host can see a remote shell's arguments in its process list.
_SECRET: Final = ("ELASTANE_TOKEN", "ELASTANE_WORKER_TOKEN")
#: Valid on one machine only.
_OF_ONE_MACHINE: Final = frozenset(
    {"ELASTANE_STORE_HOST", "ELASTANE_PS_HOST", "ELASTANE_NOTICE_FILE", "ELASTANE_CAPACITY_FILE"}
)
#: Elastane's, and OpenTelemetry's: a trace includes all workers, wherever they run.
_PREFIXES: Final = ("ELASTANE_", "OTEL_")
#: Headers for a receiver of traces contain its token.
_SECRET_ENDING: Final = "_HEADERS"


def check_template(template: str) -> list[str]:
    """Split a template into words. Raises RefusedError unless it contains {host} and {command}, each once."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise RefusedError(f"bad template {template!r}: {error}") from error
    for name in ("{host}", "{command}"):
        if sum(word.count(name) for word in words) != 1:
            raise RefusedError(
                f"the template must have {name} once: {template!r}", hint="like 'ssh -tt {host} {command}'"
            )
    return words


def remote_command(
    template: str, host: str, command: Sequence[str], variables: Mapping[str, str], folder: str
) -> list[str]:
    """Return the command line that starts `command` on the host, as one quoted shell line in the template."""
    assigned = [f"{name}={value}" for name, value in variables.items()]
    line = f"cd {shlex.quote(folder)} || exit 126; exec env {shlex.join([*assigned, *command])}"
    return [
        word.replace("{host}", host.strip("[]")).replace("{command}", line)
        for word in check_template(template)
    ]


def remote_variables(
    environment: Mapping[str, str], own: Mapping[str, str], passed: Collection[str]
) -> dict[str, str]:
    """Return the variables of a remote process: its own, those passed, and this environment's of Elastane and
    OpenTelemetry.

    Raises RefusedError if a token would be among them.
    """
    require_no_secret(environment)
    given = {
        name: value
        for name, value in environment.items()
        if name in passed
        or (
            name.startswith(_PREFIXES)
            and name not in _OF_ONE_MACHINE
            and not (name.startswith("OTEL_") and name.endswith(_SECRET_ENDING))
        )
    }
    return given | dict(own)


def require_no_secret(environment: Mapping[str, str]) -> None:
    """Raise RefusedError if a token itself, not the file with it, is in the environment."""
    found = [name for name in _SECRET if environment.get(name)]
    if found:
        raise RefusedError(
            f"{' and '.join(found)} would be seen in the list of processes of every host",
            hint=f"put the token into a file on each host and set its path in {found[0]}_FILE",
        )


def is_local(host: str) -> bool:
    """True if the name means this machine, judging by its spelling alone: nothing is resolved."""
    return host in ("localhost", "127.0.0.1", "[::1]", socket.gethostname(), socket.getfqdn())


def out_of_reach(master: str, hosts: Iterable[str]) -> list[str]:
    """Return the hosts for which a master at "HOST:PORT[,...]" would be their own loopback, not ours."""
    addresses = [address.rpartition(":")[0].strip(" []") for address in master.split(",")]
    if not all(_is_loopback(host) for host in addresses):
        return []
    return [host for host in hosts if not is_local(host) and not _is_loopback(host.strip("[]"))]


def require_reach(master: str, hosts: Iterable[str]) -> None:
    """Raise RefusedError if the master listens on loopback alone and there are remote hosts."""
    if far := out_of_reach(master, hosts):
        raise RefusedError(
            f"{', '.join(far)} cannot reach a master on this machine's loopback",
            hint="give --listen HOST[:PORT] with the address at which they reach this machine, or --master "
            "with a running master; beyond loopback it needs TLS and tokens: docs/security.md",
            hosts=", ".join(far),
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
