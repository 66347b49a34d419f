"""The Feistel permutation of `elastane_shards.permutation`, vectorised with numpy for workers.

Separate from `permutation` because the master imports that module and has no numpy. Positions are processed
in blocks small enough that a block and its temporaries stay in the CPU cache; cycle walking repeats the
network only for the positions that left the domain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastane_shards.errors import InvalidRequest
from elastane_shards.permutation import MULTIPLIER_1, MULTIPLIER_2, ROUNDS, FeistelKey, feistel_key

BLOCK_POSITIONS = 65536
"""Positions computed at a time. The temporaries of a block take about 1.5 MB."""

Positions = NDArray[np.integer[Any]] | range


def feistel(
    positions: Positions, size: int, seed: int, epoch: int, rounds: int = ROUNDS
) -> NDArray[np.int64]:
    """Map positions through the permutation of [0, size) keyed by (seed, epoch).

    positions: 1-d array of integers, or a range; the result is int64 of the same shape. Workers call it with
    the positions of a task. Raises InvalidRequest when a position is outside [0, size), and the errors of
    `feistel_key`.
    """
    return _apply(positions, feistel_key(size, seed, epoch, rounds), backwards=False)


def feistel_inverse(
    positions: Positions, size: int, seed: int, epoch: int, rounds: int = ROUNDS
) -> NDArray[np.int64]:
    """Inverse of `feistel`: `feistel_inverse(feistel(p, ...), ...) == p`."""
    return _apply(positions, feistel_key(size, seed, epoch, rounds), backwards=True)


def _apply(positions: Positions, key: FeistelKey, *, backwards: bool) -> NDArray[np.int64]:
    result = np.empty(len(positions), dtype=np.int64)
    for start in range(0, len(positions), BLOCK_POSITIONS):
        part = positions[start : start + BLOCK_POSITIONS]
        block = (
            np.arange(part.start, part.stop, part.step, dtype=np.int64)
            if isinstance(part, range)
            else part.astype(np.int64)
        )
        if block.min() < 0 or block.max() >= key.size:
            raise InvalidRequest(
                f"positions must be in [0, {key.size})", lowest=block.min(), highest=block.max()
            )
        _network(block, key, backwards=backwards)
        # Cycle walking: a result outside [0, size) is mapped again until it is inside, which keeps the map a
        # bijection.
        while (outside := np.flatnonzero(block >= key.size)).size:
            again = block[outside]
            _network(again, key, backwards=backwards)
            block[outside] = again
        result[start : start + len(block)] = block
    return result


def _network(block: NDArray[np.int64], key: FeistelKey, *, backwards: bool) -> None:
    """Apply all rounds to `block` once, in place."""
    low_mask, high_mask = np.uint32((1 << key.low_bits) - 1), np.uint32((1 << key.high_bits) - 1)
    low = block.astype(np.uint32) & low_mask
    high = (block >> key.low_bits).astype(np.uint32)
    rounds = list(enumerate(key.round_keys))
    for number, round_key in reversed(rounds) if backwards else rounds:
        # The parts may differ in width by one bit, so the rounds alternate which part they change.
        if number % 2:
            low ^= _round(high, round_key) & low_mask
        else:
            high ^= _round(low, round_key) & high_mask
    np.left_shift(high, key.low_bits, out=block, dtype=np.int64)
    block |= low


def _round(part: NDArray[np.uint32], round_key: int) -> NDArray[np.uint32]:
    value = part ^ np.uint32(round_key)
    value ^= value >> np.uint32(16)
    value *= np.uint32(MULTIPLIER_1)
    value ^= value >> np.uint32(13)
    value *= np.uint32(MULTIPLIER_2)
    value ^= value >> np.uint32(16)
    return value
