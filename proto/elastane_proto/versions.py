"""The version of the protocol, and which versions understand each other.

A number, not the release: it grows when one side would misunderstand the other, and stays when fields
are added that may be left out. A worker tells it in Hello, a client in the metadata of each call, the master
in Welcome and in the metadata of its answers. Whoever says nothing speaks version 1.

Masters are upgraded first, so a master serves older workers and clients, down to `CLIENT_OLDEST`, and
refuses newer ones; a worker or client accepts masters down to `MASTER_OLDEST`.
"""

from __future__ import annotations

PROTOCOL = 2
"""Version that this code speaks."""

CLIENT_OLDEST = 1
"""Oldest worker or client that this code, as a master, serves."""

MASTER_OLDEST = 2
"""Oldest master that this code, as a worker or client, works with: older ones do not ask what code between
epochs drew."""

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
    """The number a peer told; None when it is none."""
    if not text:
        return 1
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None


def client_fault(text: str) -> tuple[str, str]:
    """Why a master must refuse a worker or client that told `text`, and what to do; empty: it need not."""
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
    """Why a worker or client cannot work with a master that told `text`, and what to do; empty: it can."""
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
