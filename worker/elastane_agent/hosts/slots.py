"""Parser for hosts and slots as printed by a discovery script: pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from elastane_common.errors import RefusedError

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\]")
SLOTS_MAX: Final = 1024


class HostsFormatError(RefusedError):
    """The discovery script's output is no list of hosts."""

    code = "ELA408"


@dataclass(frozen=True)
class Slot:
    """A place for one process. index: from 0 on its host."""

    host: str
    index: int


def parse_hosts(text: str) -> dict[str, int]:
    """Parse lines "HOST" or "HOST:SLOTS" into slots by host, in their order; "#" begins a comment.

    A host named twice has the slots of both lines; one with 0 slots is omitted. Raises HostsFormatError.
    """
    hosts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        host, colon, count = words.rpartition(":") if not words.endswith("]") else (words, "", "")
        if not colon:
            host, count = words, "1"
        # No leading "-": a host's name becomes an argument of ssh.
        if not _HOST.fullmatch(host) or not count.isdecimal() or int(count) > SLOTS_MAX:
            raise HostsFormatError(
                f"line {number} has no host: {line[:80]!r}",
                hint=f"each line must be HOST or HOST:SLOTS, with at most {SLOTS_MAX} slots",
                line=number,
            )
        if int(count):
            hosts[host] = hosts.get(host, 0) + int(count)
    return hosts
