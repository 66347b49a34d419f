"""Address of this host at which other members of a ring reach it."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

#: The ioctl that returns an interface's IPv4 address.
_SIOCGIFADDR: Final = 0x8915
_INTERFACE_NAME_BYTES: Final = 15


def own_address(host: str, port: int) -> str:
    """Return the address of the interface in GLOO_SOCKET_IFNAME; else the one on the route to `host`.

    The variable keeps torch's name, because it applies to gloo groups of the same worker too. Sends nothing.
    Raises OSError if there is no such interface, or it has no address.
    """
    if names := os.environ.get("GLOO_SOCKET_IFNAME"):
        return _address_of(names.split(",")[0])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def _address_of(interface: str) -> str:
    """Return the interface's IPv4 address, or its global IPv6 address if it has none."""
    name = interface.encode()[:_INTERFACE_NAME_BYTES]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name))
        return socket.inet_ntoa(request[20:24])
    with suppress(FileNotFoundError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, _, _, of_interface = line.split()
            address = ipaddress.IPv6Address(bytes.fromhex(digits))
            if of_interface == interface and not address.is_link_local:
                return str(address)
    raise OSError(f"GLOO_SOCKET_IFNAME names {interface}, which this host lacks or which has no address")
