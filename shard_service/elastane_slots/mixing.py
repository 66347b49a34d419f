"""Hashing that is stable across processes and releases: for slots, and for draws of initial rows.

All arithmetic is on unsigned 64-bit integers, modulo 2**64, so it can be repeated with arrays of them (numpy
uint64, or torch int64 with masked shifts). A *key* is derived once from text by BLAKE2b; numbers are drawn
from it by position, in any order, with the steps of SplitMix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014):

    drawn(key, n) = mixed(key + (n + 1) * GOLDEN)
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Final

MASK: Final = 2**64 - 1
#: 2**64 divided by the golden ratio, made odd.
GOLDEN: Final = 0x9E3779B97F4A7C15


@lru_cache(maxsize=4096, typed=True)  # cached: a parameter server needs a table's key at every request
def text_key(purpose: str, *parts: str | int) -> int:
    """Return the key of (purpose, parts). Keys of different purposes or parts are unrelated."""
    digest = blake2b(digest_size=8)
    for part in (purpose, *parts):
        text = str(part).encode()
        digest.update(len(text).to_bytes(8, "little") + text)  # ("ab", "c") is not ("a", "bc")
    return int.from_bytes(digest.digest(), "little")


def drawn(key: int, number: int) -> int:
    """Return draw `number`, from 0, of a key."""
    return mixed((key + (number + 1) * GOLDEN) & MASK)


def below(value: int, count: int) -> int:
    """Map a 64-bit draw to [0, count) by its upper half (Lemire 2019, without rejection).

    count: at most 2**32. The bias is at most count / 2**32.
    """
    return (value >> 32) * count >> 32


def mixed(value: int) -> int:
    """Finaliser of SplitMix64, a bijection: every bit of the input reaches every bit of the result."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
