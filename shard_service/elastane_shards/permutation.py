"""A seeded permutation of [0, size) in O(1) memory, one position at a time.

`torch.randperm(10**9)` takes 8 GB and a minute. A Feistel network is a bijection for any round function, so
six rounds of a cheap one give a permutation that needs no table in either direction (Luby and Rackoff, "How
to construct pseudorandom permutations", SIAM J. Comput. 1988). The network permutes a power of two; a result
outside [0, size) is mapped again until it is inside, which keeps the map a bijection (cycle walking: Black
and Rogaway, "Ciphers with arbitrary finite domains", 2002) and takes fewer than two passes on average,
because that power of two is smaller than 2 * size.

The two parts may differ in width by one bit, so the rounds alternate: even rounds mix the low part into the
high one, odd rounds the high part into the low one.

Clients of a shuffled range permute the positions of their tasks by it, the master those of a list.
"""

from __future__ import annotations

import msgspec

from elastane_shards.errors import InvalidRequest, InvalidSource
from elastane_shards.splitters import POSITION_MAX

ROUNDS = 6
_MASK_64 = 2**64 - 1
_MASK_32 = 2**32 - 1
# The 32-bit finaliser of MurmurHash3 (public domain): every bit of the input reaches every bit of the output.
_MULTIPLIER_1 = 0x85EBCA6B
_MULTIPLIER_2 = 0xC2B2AE35


class FeistelKey(msgspec.Struct, frozen=True):
    """Parameters that define one permutation.

    size: number of positions in the domain. low_bits, high_bits: widths of the two parts, at most 31 bits
    each. round_keys: one 32-bit key per round.
    """

    size: int
    low_bits: int
    high_bits: int
    round_keys: tuple[int, ...]


def feistel_key(size: int, seed: int, epoch: int) -> FeistelKey:
    """Derive the permutation of [0, size) for (seed, epoch); both are taken modulo 2**64.

    Raises InvalidSource when size is not in 1..2**62.
    """
    if not 0 < size <= POSITION_MAX:
        raise InvalidSource(f"no permutation of {size} positions", size=size)
    bits = (size - 1).bit_length()
    low_bits = (bits + 1) // 2
    # SplitMix64 seeded by (seed, epoch), one draw per round key; the constant is 2**64 / golden ratio.
    state = _mixed(_mixed(seed & _MASK_64) ^ (epoch & _MASK_64))
    keys = []
    for _ in range(ROUNDS):
        state = (state + 0x9E3779B97F4A7C15) & _MASK_64
        keys.append(_mixed(state) >> 32)
    return FeistelKey(size, low_bits, bits - low_bits, tuple(keys))


def permuted(position: int, key: FeistelKey) -> int:
    """Return the image of `position`. Raises InvalidRequest when it is not in [0, size)."""
    if not 0 <= position < key.size:
        raise InvalidRequest(f"position {position} is not in [0, {key.size})", position=position)
    low_mask, high_mask = (1 << key.low_bits) - 1, (1 << key.high_bits) - 1
    while True:
        low, high = position & low_mask, position >> key.low_bits
        for number, round_key in enumerate(key.round_keys):
            if number % 2:
                low ^= _round(high, round_key) & low_mask
            else:
                high ^= _round(low, round_key) & high_mask
        position = high << key.low_bits | low
        if position < key.size:
            return position


def _round(part: int, round_key: int) -> int:
    value = part ^ round_key
    value = (value ^ (value >> 16)) * _MULTIPLIER_1 & _MASK_32
    value = (value ^ (value >> 13)) * _MULTIPLIER_2 & _MASK_32
    return value ^ (value >> 16)


def _mixed(value: int) -> int:
    """Finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)
