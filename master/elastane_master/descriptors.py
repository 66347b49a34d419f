"""Budget of file descriptors, computed once at the master's start.

  limit of the process = own + store connections + HTTP connections + workers and callers

If the limit is low, the bounds are lowered at the start and this is logged: a master that ran out of
descriptors later could neither reach its store nor report it.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

from elastane_master.errors import TooFewDescriptors

OWN = 48
"""Descriptors of the process itself, besides the other bounds.

Standard streams, event loops, listening sockets, files, connections for the lease, takeovers and deletion of
jobs, and the private store's client. An idle master uses 22.
"""

CALLERS_MIN = 32
"""Minimum number of workers and callers for which there must be room."""

CALLERS_WANTED = 128
"""Number of workers and callers to which descriptors are assigned before the other bounds get more."""

STORE_MIN, READS_MIN, HTTP_MIN = 4, 4, 8


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Descriptor bounds.

    store: connections of the jobs' logs; reads: reads of history and events; http: connections to the HTTP
    port; callers: the rest, for workers and callers.
    """

    store: int
    reads: int
    http: int
    callers: int


def shared_out(limit: int, store: int, reads: int, http: int) -> Descriptors:
    """Compute the bounds under a limit: the wanted ones, or lower ones that fit.

    http: 0 without an HTTP port.

    Raises TooFewDescriptors if a master cannot work with so few.
    """
    least = [min(store, STORE_MIN), min(reads, READS_MIN), min(http, HTTP_MIN)]
    needed = OWN + sum(least) + CALLERS_MIN
    if limit < needed:
        raise TooFewDescriptors(limit, needed)
    wanted = [store, reads, http]
    # Descriptors beyond the minimum go first to callers, up to CALLERS_WANTED, then to the other bounds.
    room = max(0, limit - needed - (CALLERS_WANTED - CALLERS_MIN))
    more = [given - low for given, low in zip(wanted, least, strict=True)]
    if sum(more) > room:
        more = [part * room // sum(more) for part in more]
    bounds = [low + part for low, part in zip(least, more, strict=True)]
    store, reads, http = bounds
    return Descriptors(store, reads, http, limit - OWN - sum(bounds))


def raise_limit() -> int:
    """Raise this process's limit to its hard limit and return it; 0 means unlimited."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return 0 if soft == resource.RLIM_INFINITY else soft
