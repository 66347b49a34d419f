"""Options of TCP connections that carry tensors between workers, or between workers and parameter servers."""

from __future__ import annotations

import socket


def prepare(connection: socket.socket) -> None:
    """Send small messages at once, and notice within 15 s that a silent host is gone.

    Buffer sizes are left to the kernel: a size that is set here would be capped at net.core.wmem_max, which
    is often below what the kernel's own tuning reaches, and would turn that tuning off.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 5)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
