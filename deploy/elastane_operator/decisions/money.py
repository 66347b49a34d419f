"""Money in the status, as a decimal number in a string."""

from __future__ import annotations

_MICROS_PER_CENT = 10_000


def money(micros: int) -> str:
    """Format millionths of a currency's unit as units and cents, rounded half to even."""
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    cents, rest = divmod(micros, _MICROS_PER_CENT)
    if (rest, cents % 2) > (_MICROS_PER_CENT // 2, 0) or rest > _MICROS_PER_CENT // 2:
        cents += 1
    return f"{sign if cents else ''}{cents // 100}.{cents % 100:02d}"
