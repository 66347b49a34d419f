"""Options of every gRPC connection to a master: detection of lost peers, and reconnection."""

from __future__ import annotations

from typing import Any, Final

KEEPALIVE_MILLISECONDS: Final = 10_000
KEEPALIVE_TIMEOUT_MILLISECONDS: Final = 5_000


def channel_options(reconnect_milliseconds_max: int) -> list[tuple[str, Any]]:
    """Return the options of a client's channel. reconnect_milliseconds_max: longest wait between attempts."""
    return [
        # Transport pings, answered by the peer's C core, notice a silent peer although nothing is sent.
        ("grpc.keepalive_time_ms", KEEPALIVE_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MILLISECONDS),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 50),
        # Despite its name this option is the time allowed for establishing a connection.
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.max_reconnect_backoff_ms", reconnect_milliseconds_max),
    ]


def server_options() -> list[tuple[str, Any]]:
    """Return a server's options: it pings half as often as its clients, so that both sides notice a loss."""
    return [
        # Idle sessions stay open for hours; proxies on the way drop silent connections.
        ("grpc.keepalive_time_ms", 2 * KEEPALIVE_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", 2 * KEEPALIVE_TIMEOUT_MILLISECONDS),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients may ping as often as they like, to detect a vanished master.
        ("grpc.http2.min_ping_interval_without_data_ms", 500),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
        ("grpc.http2.max_ping_strikes", 0),
    ]
