"""How many descriptors a master may open, and what for. Looked at once, when it starts.

    the limit of the process = its own + to the store + of the HTTP port + of workers and callers

Where it is short, bounds are lowered at the start, and in words: a master that runs out of descriptors in
the middle of its work could neither reach its store nor say so.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

from elastane_master.errors import TooFewDescriptors

OWN = 48
"""Of the process: standard streams, loops, listening sockets, files, the lease's connections, takeovers and
deletions of jobs, the private store's client. An idle master has 22."""

CALLERS_MIN = 32
"""Workers and callers for whom there must be room."""

CALLERS_WANTED = 128
"""Before the other bounds are lowered no further."""

STORE_MIN, READS_MIN, HTTP_MIN = 4, 4, 8


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The bounds. store: connections of the jobs' logs; reads: of history and events; http: of the HTTP port;
    callers: what is left for workers and callers."""

    store: int
    reads: int
    http: int
    callers: int


def shared_out(limit: int, store: int, reads: int, http: int) -> Descriptors:
    """The bounds under a limit: those wanted, or lower ones that leave room. http: 0 without an HTTP port.

    Raises TooFewDescriptors when a master cannot work with so few.
    """
    least = [min(store, STORE_MIN), min(reads, READS_MIN), min(http, HTTP_MIN)]
    needed = OWN + sum(least) + CALLERS_MIN
    if limit < needed:
        raise TooFewDescriptors(limit, needed)
    wanted = [store, reads, http]
    # What is there beyond the least is for callers first, up to what they should have; then for the others.
    room = max(0, limit - needed - (CALLERS_WANTED - CALLERS_MIN))
    more = [given - low for given, low in zip(wanted, least, strict=True)]
    if sum(more) > room:
        more = [part * room // sum(more) for part in more]
    bounds = [low + part for low, part in zip(least, more, strict=True)]
    store, reads, http = bounds
    return Descriptors(store, reads, http, limit - OWN - sum(bounds))


def raise_limit() -> int:
    """The limit of this process, raised as far as it may be; 0: there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return 0 if soft == resource.RLIM_INFINITY else soft
