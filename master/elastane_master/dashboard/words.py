"""Formats numbers and times for people. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def age(seconds: float | None) -> str:
    """Format a duration as "0.4 s", "12 s", "3 min 10 s", "2 h 05 min" or "4 d 2 h"; None as "unknown".

    Negative durations count as 0.
    """
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{whole} s"
    if minutes < 60:
        return f"{minutes} min {whole:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def clock(seconds: float) -> str:
    """Format seconds since the Unix epoch as the time of day in UTC, "12:30:05"."""
    return moment(seconds)[11:]


def moment(seconds: float) -> str:
    """Format seconds since the Unix epoch as "2026-01-31 12:30:05" in UTC, clamped to 1970 to 9999."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), 253_402_300_799), UTC).strftime("%Y-%m-%d %H:%M:%S")


def instant(seconds: float) -> str:
    """Format seconds since the Unix epoch for the `datetime` of a <time>: "2026-01-31T12:30:05Z"."""
    return moment(seconds).replace(" ", "T") + "Z"


def number(value: float) -> str:
    """Format a number with five significant digits."""
    return f"{value:.5g}"


def size(count: int) -> str:
    """Format a number of bytes, such as "512 B" or "1.5 MiB"."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def ranks(first: int, after: int, *, bare: bool = False) -> str:
    """Format the ESTs [first, after) as "EST 2", "ESTs 0-3" or "no EST"; bare: as "2", "0-3" or "-"."""
    if after <= first:
        return "-" if bare else "no EST"
    text = str(first) if after == first + 1 else f"{first}-{after - 1}"
    return text if bare else f"{'EST' if after == first + 1 else 'ESTs'} {text}"


def units(first: int, after: int) -> str:
    """Format units of a pipeline [first, after) as "0-4" or "3"."""
    return str(first) if after == first + 1 else f"{first}-{after - 1}"
