"""Read and write Python's and NumPy's global generators directly in memory.

Their public calls use a tuple of 625 integers, and an array filled word by word: 40 us to capture a state and
as much to restore it, for every EST at every mini-batch. The memory itself is copied in a microsecond.

That layout is not guaranteed. So it is verified: a probe of the same class is set to known states through the
public calls, and its memory must show them, before and after it draws; written memory must draw the values of
the public calls. If anything differs, `find_*` return None and the public calls are used. NumPy documents the
address of a bit generator's state; only the cached gaussian is searched for.

Used by `rng`, with its byte layouts; the caller holds the GIL throughout.
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any, Final

try:
    import numpy as np
except ImportError:
    HAS_NUMPY = False
else:
    HAS_NUMPY = True

WORDS: Final = 624
_WORD_BYTES: Final = 4 * WORDS
_HEAD: Final = object.__basicsize__
_FLAG: Final = struct.Struct("<i")
_VALUE: Final = struct.Struct("<d")
_NO_GAUSSIAN: Final = struct.pack("<Bd", 0, 0.0)
_VERSION: Final = struct.pack("<I", random.Random.VERSION)
_LITTLE_ENDIAN: Final = struct.pack("=I", 1) == struct.pack("<I", 1)


class PythonMemory:
    """Memory of a `random.Random`: index, then the words, after the object's head.

    Bytes as in "rng/python".
    """

    def __init__(self, generator: random.Random) -> None:
        self._generator: Any = generator
        self._memory = _memory(id(generator) + _HEAD, 4 + _WORD_BYTES)
        self._known: tuple[bytes, object, bytes] = b"", None, b""

    def read(self) -> bytes:
        """Return the state; the same object if nothing was drawn since it was last read or written."""
        memory, gaussian = self._memory.raw, self._generator.gauss_next
        known, known_gaussian, state = self._known
        if memory == known and gaussian is known_gaussian:
            return state
        kept = _NO_GAUSSIAN if gaussian is None else struct.pack("<Bd", 1, gaussian)
        state = b"".join((_VERSION, memory[4:], memory[:4], kept))
        self._known = memory, gaussian, state
        return state

    def write(self, state: bytes) -> None:
        """Inverse of `read`; the state must have been checked."""
        words = 4 + _WORD_BYTES
        memory = state[words : words + 4] + state[4:words]
        flag, value = struct.unpack_from("<Bd", state, words + 4)
        gaussian = value if flag else None
        self._memory.raw, self._generator.gauss_next = memory, gaussian
        self._known = memory, gaussian, state


class NumpyMemory:
    """Memory of a `RandomState` on MT19937: words and position; the cached gaussian elsewhere.

    Bytes as in "rng/numpy".
    """

    def __init__(self, generator: Any, gaussian_offset: int) -> None:
        self._generator = generator
        self._bits = generator._bit_generator
        self._memory = _memory(self._bits.ctypes.state_address, _WORD_BYTES + 4)
        #: Flag (4 bytes, and 4 that mean nothing) and value of the cached gaussian.
        self._gaussian = _memory(id(generator) + gaussian_offset - 8, 16)
        self._known = b"", b"", b""

    @property
    def stands(self) -> bool:
        """True if the generator still uses the bit generator that was found."""
        return self._generator._bit_generator is self._bits

    def read(self) -> bytes:
        """Return the state; the same object if nothing was drawn since it was last read or written."""
        memory, gaussian = self._memory.raw, self._gaussian.raw
        known, known_gaussian, state = self._known
        if memory == known and gaussian == known_gaussian:
            return state
        state = b"".join((memory, gaussian[:4], gaussian[8:]))
        self._known = memory, gaussian, state
        return state

    def write(self, state: bytes) -> None:
        """Inverse of `read`; the state must have been checked."""
        words = _WORD_BYTES + 4
        memory = state[:words]
        gaussian = state[words : words + 4] + self._gaussian.raw[4:8] + state[words + 4 :]
        self._memory.raw, self._gaussian.raw = memory, gaussian
        self._known = memory, gaussian, state


def find_python(generator: random.Random) -> PythonMemory | None:
    """Return the memory of `generator`; None if its layout is not the expected one."""
    if not _LITTLE_ENDIAN or type(generator) is not random.Random:
        return None
    if random.Random.__basicsize__ < _HEAD + 4 + _WORD_BYTES:
        return None
    probe = random.Random(1)
    memory, written = PythonMemory(probe), PythonMemory(random.Random(2))
    for draws in (0, 1, 623, 5):
        for _ in range(draws):
            probe.random()
            probe.gauss(0.0, 1.0)
        version, state, gaussian = probe.getstate()
        kept = gaussian is not None
        expected = struct.pack("<626IBd", version, *state, kept, gaussian if kept else 0.0)
        if memory.read() != expected:
            return None
        written.write(expected)
        if written._generator.getstate() != probe.getstate():
            return None
    return PythonMemory(generator)


def find_numpy(generator: Any) -> NumpyMemory | None:
    """Return the memory of the `RandomState` `generator`; None if its layout is not the expected one."""
    if not _LITTLE_ENDIAN or not _on_mersenne(generator):
        return None
    probe, other = np.random.RandomState(1), np.random.RandomState(2)
    offset = _gaussian_offset(probe)
    if offset is None or type(generator) is not type(probe):
        return None
    memory, written = NumpyMemory(probe, offset), NumpyMemory(other, offset)
    for draws in (0, 1, 2, 623):
        for _ in range(draws):
            probe.random_sample()
            probe.standard_normal()
        if memory.read() != numpy_bytes(probe):
            return None
        written.write(memory.read())
        if numpy_bytes(other) != memory.read() or other.standard_normal() != probe.standard_normal():
            return None
    return NumpyMemory(generator, offset)


def numpy_bytes(generator: Any) -> bytes:
    """Return the state of a `RandomState` on MT19937 through its public call."""
    state = generator.get_state(legacy=False)
    tail = struct.pack("<iid", state["state"]["pos"], state["has_gauss"], state["gauss"])
    return bytes(state["state"]["key"].astype("<u4", copy=False).tobytes() + tail)


def _memory(place: int, size: int) -> ctypes.Array[ctypes.c_char]:
    """Return the bytes at an address, to read and write."""
    return (ctypes.c_char * size).from_address(place)


def _on_mersenne(generator: Any) -> bool:
    return type(getattr(generator, "_bit_generator", None)) is np.random.MT19937


def _gaussian_offset(probe: Any) -> int | None:
    """Return the offset of the cached gaussian: the only place with its value after its flag."""
    places: set[int] | None = None
    # Three different values: a coincidence in unrelated memory drops out of the intersection.
    for flag, value in ((1, 0.7310585786300049), (1, -1.4142135623730951), (0, 2.718281828459045)):
        state = probe.get_state(legacy=False)
        probe.set_state({**state, "has_gauss": flag, "gauss": value})
        memory = ctypes.string_at(id(probe), type(probe).__basicsize__)
        found = {
            place
            for place in range(_HEAD + 8, len(memory) - 7, 8)
            if _VALUE.unpack_from(memory, place)[0] == value
            and _FLAG.unpack_from(memory, place - 8)[0] == flag
        }
        places = found if places is None else places & found
    return places.pop() if places is not None and len(places) == 1 else None
