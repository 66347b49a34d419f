"""Format version of a stored snapshot, of a job or of the training service. Pure."""

from __future__ import annotations

import msgspec


class _Version(msgspec.Struct, array_like=True):
    """The beginning of a snapshot of any version."""

    version: int


_decoder = msgspec.msgpack.Decoder(_Version)


def version_of(snapshot: bytes) -> int:
    """Return the format version of a snapshot, even if it cannot be restored; 0: it is no snapshot."""
    try:
        return _decoder.decode(snapshot).version
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0
