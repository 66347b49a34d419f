"""Sizes in bytes as people write them, in options of commands and in scripts."""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"([1-9][0-9]*)([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(text: str) -> int:
    """Return the bytes of a size as 512M, 8GiB or 8GB; the units are powers of 1024.

    Raises ValueError for any other text.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 512M or 8G")
    return int(found[1]) * _UNITS[found[2].upper()]


def size_text(size: int) -> str:
    """Return a number of bytes in the largest unit that it fills, such as "3.1 MiB" or "812 B"."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
