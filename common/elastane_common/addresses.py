"""Addresses of masters: a list, or a DNS name with an address for each, and the order in which they are
tried.

Of several masters one leads and the others refuse, so a client that is refused or gets no answer tries the
next address. A refusal may name the leader; only an address in the list is accepted, because what is sent
there (a job's tokens, its contexts) is meant for these masters alone. Names are resolved again after each
round: restarted masters may have new addresses.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable

HostPort = tuple[str, int]


def parse_addresses(text: str) -> list[str]:
    """Parse "HOST:PORT[,HOST:PORT...]" into addresses. Raises ValueError that says what is wrong."""
    addresses = [part.strip() for part in text.split(",") if part.strip()]
    if not addresses:
        raise ValueError("no address of a master; give HOST:PORT, several separated by commas")
    for address in addresses:
        split_address(address)
    return addresses


def split_address(address: str) -> HostPort:
    """Return the host, without brackets, and the port. Raises ValueError."""
    host, separator, port = address.rpartition(":")
    if not separator or not host:
        raise ValueError(
            f"{address!r} is not a master's address; give HOST:PORT, as in {address or 'm'}:50051"
        )
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        raise ValueError(f"{address!r}: the port must be a number from 1 to 65535")
    return host.strip("[]"), int(port)


def look_up(host: str, port: int) -> list[str]:
    """Return every address of a name, as HOST:PORT of literals; empty if it cannot be resolved now."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    literals = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return [f"[{literal}]:{port}" if ":" in literal else f"{literal}:{port}" for literal in literals]


class AddressBook:
    """The masters' addresses in the order they are tried. Thread-safe.

    given: as the user gave them. A name with several addresses stands for each of them; one with a single
    address stays a name, because certificates are issued for names (`name_of` returns it for the others).
    resolve: resolves a name.
    """

    def __init__(self, text: str, resolve: Callable[[str, int], list[str]] = look_up) -> None:
        self.given = parse_addresses(text)
        self._resolve = resolve
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._addresses = self.given
        self._position = 0
        self._tried = 0
        self._is_fresh = False

    def current(self) -> str:
        """Return the address to try now."""
        with self._lock:
            self._refresh()
            return self._addresses[self._position]

    def all(self) -> list[str]:
        """Return every address, the current one first."""
        with self._lock:
            self._refresh()
            return self._addresses[self._position :] + self._addresses[: self._position]

    def failed(self, address: str, leader: str = "") -> None:
        """Move on from `address`, which did not serve: to `leader` if it is in the list, else to the next."""
        with self._lock:
            if self._addresses[self._position] != address:
                return  # another thread has already moved on
            self._tried += 1
            if self._tried >= len(self._addresses):
                self._tried, self._is_fresh = 0, False
            if leader != address and leader in self._addresses:
                self._position = self._addresses.index(leader)
            else:
                self._position = (self._position + 1) % len(self._addresses)

    def go_to(self, address: str) -> None:
        """Make `address`, which serves, the current one if it is in the list."""
        with self._lock:
            if address in self._addresses:
                self._position = self._addresses.index(address)

    def name_of(self, address: str) -> str:
        """Return the host that the user gave, from which `address` was resolved."""
        with self._lock:
            return self._names.get(address) or split_address(address)[0]

    def __str__(self) -> str:
        return ", ".join(self.given)

    def _refresh(self) -> None:
        """Resolve names again after a round; the current address stays current if it still exists."""
        if self._is_fresh:
            return
        current = self._addresses[self._position]
        addresses: list[str] = []
        for address in self.given:
            host, port = split_address(address)
            found = [] if _is_literal(host) else self._resolve(host, port)
            if len(found) > 1 and host != "localhost":
                self._names.update(dict.fromkeys(found, host))
                addresses += found
            else:
                addresses.append(address)
        self._addresses = list(dict.fromkeys(addresses))
        self._position = self._addresses.index(current) if current in self._addresses else 0
        self._is_fresh = True


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
