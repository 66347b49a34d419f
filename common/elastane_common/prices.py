"""Prices as people write them and as the API has them: integers in millionths of a currency, never floats."""

from __future__ import annotations

import re
from decimal import Decimal

from elastane_proto.amounts import MICROS

PRICE_MAX = 1_000_000
"""The master's limit, per worker and hour."""

_PRICE = re.compile(r"[0-9]{1,7}(\.[0-9]{0,6})?|\.[0-9]{1,6}")
_CURRENCY = re.compile(r"[A-Z]{3}")


def price_micros(text: str) -> int:
    """Parse a price, "0.9123" -> 912300.

    Raises ValueError unless it is 0 to a million with at most 6 decimals.
    """
    if not _PRICE.fullmatch(text) or Decimal(text) > PRICE_MAX:
        raise ValueError(f"{text!r} is not a price: 0 to {PRICE_MAX}, at most 6 decimals, as 0.9123")
    return int(Decimal(text) * MICROS)


def currency_code(text: str) -> str:
    """Return the code itself. Raises ValueError unless it consists of three capital letters."""
    if not _CURRENCY.fullmatch(text):
        raise ValueError(f"{text!r} is not a currency: three capital letters, as USD")
    return text
