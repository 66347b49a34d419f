"""Numbers and times as people read them. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def age(seconds: float | None) -> str:
    """ "0.4 s", "12 s", "3 min 10 s", "2 h 05 min", "4 d"; "unknown" for None; never negative."""
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
    """The time of day, UTC."""
    return moment(seconds)[11:]


def moment(seconds: float) -> str:
    """ "2026-01-31 12:30:05", UTC; what lies outside the calendar is cut."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), 253_402_300_799), UTC).strftime("%Y-%m-%d %H:%M:%S")


def number(value: float) -> str:
    """Five digits that matter."""
    return f"{value:.5g}"


def size(count: int) -> str:
    """ "512 B", "1.5 MiB"."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def ranks(first: int, after: int, *, bare: bool = False) -> str:
    """ "EST 2", "ESTs 0-3", "no EST"; bare: "2", "0-3", "-"."""
    if after <= first:
        return "-" if bare else "no EST"
    text = str(first) if after == first + 1 else f"{first}-{after - 1}"
    return text if bare else f"{'EST' if after == first + 1 else 'ESTs'} {text}"
