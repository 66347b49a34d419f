"""Initial values of a row: a function of (seed, table, id) only.

A row is created when it is first requested, on whichever process has its slot then, before or after a restore
or a move; so its values must depend on nothing else. With K = text_key("initial", seed, table), modulo 2**64:

    row key    k = drawn(K, id)
    word n     w(n) = drawn(k, n)
    uniform    element j: n = w(j) >> 40, 24 bits;         value = float32(2 n + 1 - 2**24) * unit
               unit = float32(scale * 2**-24): symmetric in (-scale, scale), never 0
    normal     element j: t = sum of the four 16-bit parts of each of w(3 j), w(3 j + 1), w(3 j + 2);
               value = float32(2 t - 12 * 65535) * unit, unit = float32(scale * 2**-17)
               (Irwin-Hall with n = 12: standard deviation `scale`, below 6 * scale everywhere)
    zeros      0.0

Both integers have at most 24 bits, so they are exact as float32, and only the product is rounded: every IEEE
machine and every way to compute it gives the same bits. The logarithms and cosines that usually produce
normal numbers do not. Tables of another dtype get these values, rounded.
"""

from __future__ import annotations

import struct
from math import isfinite
from typing import Final, Literal

import msgspec

from elastane_shards.errors import InvalidRequest, InvalidSettings
from elastane_slots.mixing import MASK, drawn, text_key
from elastane_slots.placement import ID_MAX

Distribution = Literal["uniform", "normal", "zeros"]
#: Words of a row's key for one element.
WORDS: Final = {"uniform": 1, "normal": 3, "zeros": 0}
WIDTH_MAX: Final = 2**20
_SCALE_MAX: Final = 2.0**100
_SCALE_MIN: Final = 2.0**-80


class InitialRows(msgspec.Struct, frozen=True):
    """Initial distribution of a table's rows.

    scale: bound of the uniform distribution, standard deviation of the normal one. seed: taken modulo 2**64.
    """

    table: str
    distribution: Distribution = "normal"
    scale: float = 1.0
    seed: int = 0

    def check(self) -> None:
        """Raise InvalidSettings for an unknown distribution or an unusable scale."""
        if self.distribution not in WORDS:
            raise InvalidSettings(
                f"no initial values {self.distribution!r}", hint=f"one of {', '.join(WORDS)}"
            )
        if not (isfinite(self.scale) and _SCALE_MIN <= self.scale <= _SCALE_MAX):
            raise InvalidSettings(f"initial values of scale {self.scale}", table=self.table)

    @property
    def key(self) -> int:
        """K of the module's text, for callers that compute arrays of rows."""
        return text_key("initial", self.seed & MASK, self.table)

    @property
    def unit(self) -> float:
        """The float32 factor `unit` of the module's text."""
        return _float32(self.scale * 2.0 ** (-24 if self.distribution == "uniform" else -17))

    def row(self, row: int, width: int) -> list[float]:
        """Return the `width` values of a row, each exactly a float32. Raises InvalidRequest."""
        if not 0 <= row <= ID_MAX or not 0 <= width <= WIDTH_MAX:
            raise InvalidRequest(f"no row {row} of {width} values", row=row, width=width)
        if self.distribution == "zeros":
            return [0.0] * width
        key, unit = drawn(self.key, row), self.unit
        integers = _uniform if self.distribution == "uniform" else _normal
        # The product of two float32 is exact as a float64, so it is rounded once.
        return [_float32(integers(key, element) * unit) for element in range(width)]


def _uniform(key: int, element: int) -> int:
    return 2 * (drawn(key, element) >> 40) + 1 - 2**24


def _normal(key: int, element: int) -> int:
    words = (drawn(key, 3 * element + word) for word in range(3))
    return 2 * sum((word >> shift) & 0xFFFF for word in words for shift in (0, 16, 32, 48)) - 12 * 65535


def _float32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded
