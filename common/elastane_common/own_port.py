"""A port of this process, at one of its host's own addresses."""

from __future__ import annotations

import socket

from elastane_common.errors import RefusedError


def listen(host: str, backlog: int, *, failure: str, hint: str) -> socket.socket:
    """Return a socket that listens on a free port of `host` alone.

    Called by workers and parameter servers. failure, hint: for the RefusedError that it raises; the host
    follows `failure`, as in "this worker cannot listen at".
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.bind(place)
            opened.listen(backlog)
        except OSError:
            opened.close()
            raise
    except OSError as error:
        raise RefusedError(f"{failure} {host}: {error.strerror or error}", hint=hint, host=host) from error
    return opened
