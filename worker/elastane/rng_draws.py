"""The distance between two states of a generator in raw draws, and advancing a state by a number of draws.

Stock ranks that run the same code draw the same number of raw values, each from its own state. A worker runs
that code once, with one state; the other ESTs' states follow from the number of draws. Python's `random`,
NumPy's legacy generator and torch's CPU generator are all the Mersenne Twister (MT19937) with 624 words; a
raw draw is one of its 32-bit values. CUDA's generator keeps an offset: its draws are the difference of two
offsets.

States are bytes in the layouts of `elastane.rng`. Pure: no global generator is touched.
"""

from __future__ import annotations

import random
import struct
from typing import Final, NamedTuple

from elastane_proto.contexts import NUMPY, PYTHON, TORCH_CPU, TORCH_DEVICE

DRAWS_MAX: Final = 1 << 27
"""States that are further apart count as unrelated: a search up to here takes about a second."""

_WORDS: Final = 624
_BLOCK_BYTES: Final = 4 * _WORDS
_BLOCKS_AT_ONCE: Final = 512
_VERSION: Final = 3
_PYTHON: Final = struct.Struct("<I624II9s")
_NUMPY: Final = struct.Struct("<624Ii12s")
#: Seed, draws left in the block, seeded flag, next word, the words (a uint64 each), cached normals.
_TORCH: Final = struct.Struct("<QiiQ624Q40s")
_DEVICE: Final = struct.Struct("<Qq")


class _Mersenne(NamedTuple):
    """A state of the twister: the words of its block, how many of them are drawn, and the other fields."""

    words: tuple[int, ...]
    drawn: int
    rest: tuple[object, ...]


def draws_between(name: str, before: bytes, after: bytes, draws_max: int = DRAWS_MAX) -> int | None:
    """Return the raw draws that lead from `before` to `after`; None if no number up to `draws_max` does.

    name: of the generator, as in `elastane_proto.contexts`. Also None if the generator was reseeded, or if a
    cached Gaussian value was created or used: the number of draws then does not apply to another state.
    """
    if before == after:
        return 0
    if len(before) != len(after):
        return None
    if name == TORCH_DEVICE:
        return _device_draws(before, after)
    start, end = _parse(name, before), _parse(name, after)
    if start.rest != end.rest or _pack(name, end) != after:
        return None
    if start.words == end.words:
        return end.drawn - start.drawn if end.drawn > start.drawn else None
    return _search(start, end, draws_max)


def advance(name: str, state: bytes, draws: int) -> bytes:
    """Return the state after `draws` raw draws, byte for byte as the generator itself would have it."""
    if draws == 0:
        return state
    if name == TORCH_DEVICE:
        seed, offset = _DEVICE.unpack(state)
        return _DEVICE.pack(seed, offset + draws)
    start = _parse(name, state)
    engine = _engine(start)
    at_once = _BLOCKS_AT_ONCE * _WORDS
    for _ in range(draws // at_once):
        engine.getrandbits(32 * at_once)
    if draws % at_once:
        engine.getrandbits(32 * (draws % at_once))
    *words, drawn = engine.getstate()[1]
    return _pack(name, start._replace(words=tuple(words), drawn=drawn))


def _device_draws(before: bytes, after: bytes) -> int | None:
    (seed, offset), (seed_after, offset_after) = _DEVICE.unpack(before), _DEVICE.unpack(after)
    return offset_after - offset if seed == seed_after and offset_after >= offset else None


def _search(start: _Mersenne, end: _Mersenne, draws_max: int) -> int | None:
    """Return the draws until the engine has `end`'s block and position, found by the block's values."""
    wanted = b"".join(_tempered(word).to_bytes(4, "little") for word in end.words)
    engine = _engine(start)
    draws = _WORDS - start.drawn
    if draws:
        engine.getrandbits(32 * draws)  # to the end of the block
    while draws <= draws_max:
        size = _BLOCKS_AT_ONCE * _BLOCK_BYTES
        # getrandbits puts the first 32-bit draw into the lowest bits, so that little-endian bytes are the
        # draws in order. Drawing and searching are both done in C, which makes DRAWS_MAX affordable.
        values = engine.getrandbits(8 * size).to_bytes(size, "little")
        place = values.find(wanted)
        if place >= 0:
            found = draws + place // 4 + end.drawn
            return found if place % _BLOCK_BYTES == 0 and found <= draws_max else None
        draws += _BLOCKS_AT_ONCE * _WORDS
    return None


def _engine(state: _Mersenne) -> random.Random:
    engine = random.Random()
    engine.setstate((_VERSION, (*state.words, state.drawn), None))
    return engine


def _tempered(word: int) -> int:
    """Return the twister's output for a word of its state."""
    word ^= word >> 11
    word ^= word << 7 & 0x9D2C5680
    word ^= word << 15 & 0xEFC60000
    return word ^ word >> 18


def _parse(name: str, state: bytes) -> _Mersenne:
    if name == PYTHON:
        version, *words, drawn, kept = _PYTHON.unpack(state)
        return _Mersenne(tuple(words), drawn, (version, kept))
    if name == NUMPY:
        *words, drawn, kept = _NUMPY.unpack(state)
        return _Mersenne(tuple(words), drawn, (kept,))
    assert name == TORCH_CPU, name
    seed, left, seeded, following, *words, kept = _TORCH.unpack(state)
    # A newly seeded generator has one value left and the first word next: its block is used up.
    # See the field's layout in at::mt19937.
    drawn = _WORDS if left == 1 else following
    return _Mersenne(tuple(words), drawn, (seed, seeded, kept))


def _pack(name: str, state: _Mersenne) -> bytes:
    """Inverse of `_parse` for a state from which at least one value was drawn."""
    if name == PYTHON:
        version, kept = state.rest
        return _PYTHON.pack(version, *state.words, state.drawn, kept)
    if name == NUMPY:
        return _NUMPY.pack(*state.words, state.drawn, state.rest[0])
    seed, seeded, kept = state.rest
    return _TORCH.pack(seed, _WORDS + 1 - state.drawn, seeded, state.drawn, *state.words, kept)
