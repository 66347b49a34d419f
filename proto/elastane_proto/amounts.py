"""Formatting of money, stored as whole millionths of a currency. Pure."""

from __future__ import annotations

MICROS = 1_000_000


def price_text(micros: int, currency: str) -> str:
    """ "0.9123 USD": with all its decimals, two at least; "unknown" for 0."""
    if not micros:
        return "unknown"
    whole, part = divmod(micros, MICROS)
    decimals = f"{part:06d}".rstrip("0").ljust(2, "0")
    return f"{whole}.{decimals} {currency}"


def money_text(micros: int, currency: str) -> str:
    """ "12.34 USD": rounded to the cent, halves up."""
    cents = (abs(micros) + 5_000) // 10_000
    return f"{'-' if micros < 0 and cents else ''}{cents // 100}.{cents % 100:02d} {currency}"
