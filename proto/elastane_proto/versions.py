"""Protocol version and compatibility rules.

The version is a number, not the release: it increases when one side would misunderstand the other, and stays
when optional fields are added. A worker sends it in Hello, a client in the metadata of each call, the master
in Welcome and in the metadata of its answers. A peer that sends none speaks version 1.

Masters are upgraded first, so a master serves older workers and clients, down to `CLIENT_OLDEST`, and refuses
newer ones; a worker or client accepts masters down to `MASTER_OLDEST`.
"""

from __future__ import annotations

PROTOCOL = 2
"""Version spoken by this code."""

CLIENT_OLDEST = 1
"""Oldest worker or client that this code serves as a master."""

MASTER_OLDEST = 2
"""Oldest master accepted by this code as a worker or client.

Older ones do not request the random draws made between epochs.
"""

METADATA_KEY = "elastane-protocol"

PROCESS_BYTES = 16
"""Of the random name of a process in its Hello."""

_DIGITS_MAX = 9


def release() -> str:
    """The installed release of the package, as pip knows it; "not installed" in a bare checkout."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("elastane")
    except PackageNotFoundError:
        return "not installed"


def protocol_of(text: str) -> int | None:
    """Parse a peer's version: 1 for an empty text, None if it is not a number."""
    if not text:
        return 1
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None


def client_fault(text: str) -> tuple[str, str]:
    """Return why a master must refuse a peer of version `text`, and a hint; both empty if it need not."""
    theirs = protocol_of(text)
    if theirs is None:
        return f"{text[:40]!r} is no version of the protocol", "use the client of the master's release"
    spoken = f"{CLIENT_OLDEST} to {PROTOCOL}" if CLIENT_OLDEST < PROTOCOL else str(PROTOCOL)
    if theirs > PROTOCOL:
        return (
            f"it speaks version {theirs} of the protocol, newer than this master, which speaks {spoken}",
            "upgrade the masters first, then workers and clients",
        )
    if theirs < CLIENT_OLDEST:
        return (
            f"it speaks version {theirs} of the protocol, too old for this master, which speaks {spoken}",
            "upgrade elastane where the worker or the command runs",
        )
    return "", ""


def master_fault(text: str) -> tuple[str, str]:
    """Return why a worker or client cannot use a master of version `text`, and a hint; empty if it can."""
    theirs = protocol_of(text)
    if theirs is None:
        return f"the master's version of the protocol is {text[:40]!r}", "is this an elastane master?"
    if theirs < MASTER_OLDEST:
        return (
            f"the master speaks version {theirs} of the protocol, too old for this elastane, which needs"
            f" {MASTER_OLDEST} or newer",
            "upgrade the masters first, then workers and clients",
        )
    return "", ""
