"""Validation of numbers given by users. Pure."""

from __future__ import annotations

import math

from elastane_scheduler.errors import InvalidSettings

#: Seconds, prices and weights above this are mistakes: a hundred years are 3.2e9 seconds.
AMOUNT_MAX = 1e12


def check_amount(name: str, value: float, *, positive: bool = False) -> float:
    """Return `value` if it is a number from 0 (or above 0) to AMOUNT_MAX. Raises InvalidSettings."""
    if not math.isfinite(value) or value < 0 or value > AMOUNT_MAX or (positive and value == 0):
        wanted = "above 0" if positive else "0 or more"
        raise InvalidSettings(f"{name} is {value}", hint=f"Give a number that is {wanted} and at most 1e12.")
    return float(value)
