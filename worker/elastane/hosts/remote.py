"""How a command is started on another host, and which variables go with it: pure, but for our own name."""

from __future__ import annotations

import ipaddress
import shlex
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from elastane.errors import RefusedError

CANNOT_START: Final = {
    126: "the command cannot be run there",
    127: "the command is not there",
    255: "the remote shell failed",
}
"""Exit codes that say something of a host or of the way to it, not of what was to be run."""

#: The list of processes of a host shows the arguments of a remote shell to everybody there.
_SECRET: Final = ("ELASTANE_TOKEN", "ELASTANE_WORKER_TOKEN")
#: True of one machine, and not of the others.
_OF_ONE_MACHINE: Final = frozenset({"ELASTANE_STORE_HOST", "ELASTANE_NOTICE_FILE", "ELASTANE_CAPACITY_FILE"})
_PREFIX: Final = "ELASTANE_"


def check_template(template: str) -> list[str]:
    """The words of a template; raises RefusedError unless {host} and {command} are in it, each once."""
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
    """What starts `command` on the host: the template with the whole of it as one quoted shell line."""
    assigned = [f"{name}={value}" for name, value in variables.items()]
    line = f"cd {shlex.quote(folder)} || exit 126; exec env {shlex.join([*assigned, *command])}"
    return [
        word.replace("{host}", host.strip("[]")).replace("{command}", line)
        for word in check_template(template)
    ]


def remote_variables(
    environment: Mapping[str, str], own: Mapping[str, str], passed: Collection[str]
) -> dict[str, str]:
    """What a process elsewhere is told: its own variables, Elastane's of this environment, and those passed.

    Raises RefusedError where a token would be among them.
    """
    require_no_secret(environment)
    given = {
        name: value
        for name, value in environment.items()
        if (name.startswith(_PREFIX) and name not in _OF_ONE_MACHINE) or name in passed
    }
    return given | dict(own)


def require_no_secret(environment: Mapping[str, str]) -> None:
    """Raises RefusedError when a token itself, not its file, is in the environment."""
    found = [name for name in _SECRET if environment.get(name)]
    if found:
        raise RefusedError(
            f"{' and '.join(found)} would be seen in the list of processes of every host",
            hint=f"put the token into a file on each host and name it in {found[0]}_FILE",
        )


def is_local(host: str) -> bool:
    """Whether the name means this machine, by its spelling alone: nothing is looked up."""
    return host in ("localhost", "127.0.0.1", "[::1]", socket.gethostname(), socket.getfqdn())


def out_of_reach(master: str, hosts: Iterable[str]) -> list[str]:
    """Those of the hosts for which a master at "HOST:PORT[,...]" is their own loopback, not ours."""
    addresses = [address.rpartition(":")[0].strip(" []") for address in master.split(",")]
    if not all(_is_loopback(host) for host in addresses):
        return []
    return [host for host in hosts if not is_local(host) and not _is_loopback(host.strip("[]"))]


def require_reach(master: str, hosts: Iterable[str]) -> None:
    """Raises RefusedError when the master listens on loopback alone, and hosts are elsewhere."""
    if far := out_of_reach(master, hosts):
        raise RefusedError(
            f"{', '.join(far)} cannot reach a master on this machine's loopback",
            hint="say --listen HOST[:PORT] with the address at which they reach this machine, or --master "
            "with one that runs; beyond loopback it needs TLS and tokens: docs/security.md",
            hosts=", ".join(far),
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
