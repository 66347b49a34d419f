"""Seconds and bytes as people read them."""

from __future__ import annotations

from math import inf


def seconds_text(seconds: float) -> str:
    """Return seconds as people read them: 12.3 ms, 1.23 s."""
    if seconds == inf:
        return "never"
    if seconds >= 100:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 1e-3 or not seconds:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs"


def bytes_text(size: float) -> str:
    """Return bytes as people read them: 512 bytes, 1.5 KiB, 4.02 GiB."""
    if size < 1024:
        return f"{size:.0f} byte{'' if size == 1 else 's'}"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 999.5:
            return f"{size:.3g} {unit}"
    return f"{size / 1024:.3g} TiB"
