"""Durations in a few characters. Pure."""

from __future__ import annotations


def age(seconds: float) -> str:
    """Format a duration: "0.4s", "12s", "3m10s", "2h05m", "4d"; negative ones as 0."""
    seconds = max(seconds, 0.0)
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, whole = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{whole:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d"


def brief(seconds: float) -> str:
    """Format the time of a step or of a part of it: "0.3ms", "12ms", "1.25s"; from a minute on as an age."""
    if seconds < 0.01:
        return f"{seconds * 1000:.1f}ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.2f}s" if seconds < 60 else age(seconds)
