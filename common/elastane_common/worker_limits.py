"""The limits of a job's workers as users write them: "1:4", or one number for both. Pure."""

from __future__ import annotations


def parse_worker_limits(text: str) -> tuple[int, int]:
    """Parse "MIN:MAX", or one number for both.

    Raises ValueError with a message for users. Called by commands and by `elastane top`.
    """
    low, separator, high = text.partition(":")
    try:
        limits = (int(low), int(high if separator else low))
    except ValueError:
        raise ValueError(f"{text!r} is not MIN:MAX, like 1:4") from None
    if not 1 <= limits[0] <= limits[1]:
        raise ValueError(f"{text!r}: MIN is at least 1 and at most MAX")
    return limits
