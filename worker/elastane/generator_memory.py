"""Read and write the global generators directly in memory.

Their public calls use a tuple of 625 integers, and an array filled word by word: 40 us to capture a state and
as much to restore it, for every EST at every mini-batch. The memory itself is copied in a microsecond.

That layout is not guaranteed. So it is verified: a probe of the same class is set to known states through the
public calls, and its memory must show them, before and after it draws; written memory must draw the values of
the public calls. If anything differs, `find_*` return None and the public calls are used. NumPy documents the
address of a bit generator's state; only the cached gaussian is searched for.

Of torch's CPU generator the memory only shows whether the state is the one last read, and takes back a state
that it has had: bytes come from `get_state`, and states that are new here go in by `set_state`. Both take
20 us or more behind a step, and most EST switches are between states that nothing was drawn from.

Used by `rng`, with its byte layouts; the caller holds the GIL throughout.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Iterator
from typing import Any, Final

import torch

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
#: torch's legacy state: seed, left, seeded, position, words, the cached gaussians as in `_torch_changes`.
_TORCH_STATE: Final = struct.Struct(f"<QiiQ{WORDS}Q3di4xfB3x")
#: In memory: seed, left, seeded, position, then the words, 4 bytes that mean nothing, and the gaussians, a
#: float and a double with a flag behind each.
_TORCH_HEAD: Final = struct.Struct("<QiB3xI")
_TORCH_BYTES: Final = _TORCH_HEAD.size + _WORD_BYTES + 4 + 8 + 16
_IMAGES_MAX: Final = 512
"""About 4 MB of the last states of torch's generator: those of more ESTs than a worker usually hosts."""
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


class TorchMemory:
    """Memory of a CPU `torch.Generator`: seed, position and words, then both cached gaussians.

    Bytes as in "rng/torch_cpu".
    """

    def __init__(self, generator: torch.Generator, offset: int) -> None:
        self._generator = generator
        self._memory = _memory(_address(generator) + offset, _TORCH_BYTES)
        self._known = b"", b""
        #: The memory of the last states, by their bytes.
        self._images: dict[bytes, bytes] = {}

    def read(self) -> bytes:
        """Return the state; the same object if it is still the one last read or written."""
        memory = self._memory.raw
        known, state = self._known
        if memory != known:
            state = torch_bytes(self._generator)
            self._keep(state, memory)
        return state

    def write(self, state: bytes) -> None:
        """Inverse of `read`. Raises RuntimeError, or ValueError for no bytes, for what is not a state."""
        memory = self._images.get(state)
        if memory is None:
            write_torch(self._generator, state)
            memory = self._memory.raw
        else:
            self._memory.raw = memory
        self._keep(state, memory)

    def _keep(self, state: bytes, memory: bytes) -> None:
        self._known = memory, state
        if len(self._images) >= _IMAGES_MAX and state not in self._images:
            del self._images[next(iter(self._images))]
        self._images[state] = memory


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


def find_torch(generator: torch.Generator) -> TorchMemory | None:
    """Return the memory of `generator`; None if its layout is not the expected one."""
    if not _LITTLE_ENDIAN or type(generator) is not torch.Generator or generator.device.type != "cpu":
        return None
    try:
        offset = _tried_offset(generator)
    except (AttributeError, RuntimeError, struct.error):  # calls that are others in this version of torch
        return None
    return None if offset is None else TorchMemory(generator, offset)


def _tried_offset(generator: torch.Generator) -> int | None:
    """Return where the state is in a generator's memory, if the memory of others shows all that they do."""
    probe, other, plain = (torch.Generator().manual_seed(seed) for seed in (1, 2, 3))
    offset = _torch_offset(probe)
    if offset is None or offset != _torch_offset(other) or offset != _torch_offset(generator):
        return None
    image, written = _memory(_address(probe) + offset, _TORCH_BYTES), TorchMemory(other, offset)
    before = torch_bytes(probe), image.raw
    for _ in _torch_changes(probe):
        state, memory = torch_bytes(probe), image.raw
        if state != before[0] and memory == before[1]:
            return None  # a part of the state is elsewhere
        written._images = {state: memory}
        written.write(state)
        write_torch(plain, state)
        if not all(torch.equal(*(torch.randn(n, generator=g) for g in (other, plain))) for n in (1, 1, 40)):
            return None
        before = state, memory
    return offset


def torch_bytes(generator: torch.Generator) -> bytes:
    """Return the state of a generator through its public call."""
    state = generator.get_state()  # a uint8 CPU tensor, also for device generators
    return ctypes.string_at(state.data_ptr(), state.numel())  # Tensor.numpy() would need NumPy


def write_torch(generator: torch.Generator, state: bytes) -> None:
    """Inverse of `torch_bytes`. Raises RuntimeError, or ValueError for no bytes, for what is not a state."""
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def numpy_bytes(generator: Any) -> bytes:
    """Return the state of a `RandomState` on MT19937 through its public call."""
    state = generator.get_state(legacy=False)
    tail = struct.pack("<iid", state["state"]["pos"], state["has_gauss"], state["gauss"])
    return bytes(state["state"]["key"].astype("<u4", copy=False).tobytes() + tail)


def _memory(place: int, size: int) -> ctypes.Array[ctypes.c_char]:
    """Return the bytes at an address, to read and write."""
    return (ctypes.c_char * size).from_address(place)


def _address(generator: Any) -> int:
    """Return the address of torch's own object."""
    return int(generator._cdata)


def _torch_offset(generator: torch.Generator) -> int | None:
    """Return the offset of the seed: before the words, which are searched for in the object's own memory."""
    size = ctypes.CDLL(None).malloc_usable_size  # AttributeError: a C library that does not say it
    size.argtypes, size.restype = [ctypes.c_void_p], ctypes.c_size_t
    bytes_max = size(_address(generator))
    state = torch_bytes(generator)
    if len(state) != _TORCH_STATE.size:
        return None
    fields = _TORCH_STATE.unpack(state)
    words = struct.pack(f"<{WORDS}I", *fields[4 : 4 + WORDS])
    memory = ctypes.string_at(_address(generator), bytes_max)
    offset = memory.find(words) - _TORCH_HEAD.size
    if not 0 <= offset <= bytes_max - _TORCH_BYTES:
        return None
    return offset if _TORCH_HEAD.unpack_from(memory, offset) == fields[:4] else None


def _torch_changes(probe: torch.Generator) -> Iterator[None]:
    """Change the state of a generator again and again, every field of it at least once alone."""
    for size in (1, 1, 3, 40, 623, 1, 5000):
        torch.randn(size, generator=probe)
        yield
        torch.rand(size, generator=probe)
        yield
    seed, left, seeded, position, *rest = _TORCH_STATE.unpack(torch_bytes(probe))
    words, gaussians = rest[:WORDS], rest[WORDS:]
    for fields in (
        (seed + 1, left, seeded, position, *words, *gaussians),
        (seed + 1, left - 1, seeded, position, *words, *gaussians),
        (seed + 1, left - 1, seeded, position + 1, *words, *gaussians),
        (seed + 1, left - 1, seeded, position + 1, words[0] ^ 1, *words[1:], *gaussians),
        (seed + 1, left - 1, seeded, position + 1, *words[:-1], words[-1] ^ 1, *gaussians),
        # (x, y, rho, whether y counts) of the double, then the float and whether it counts
        (seed, left, seeded, position, *words, 0.0, 0.25, 0.0, 1, 0.0, 0),
        (seed, left, seeded, position, *words, 0.0, 0.75, 0.0, 1, 0.0, 0),
        (seed, left, seeded, position, *words, 0.0, 0.0, 0.0, 0, 0.0, 0),
        (seed, left, seeded, position, *words, 0.0, 0.0, 0.0, 0, 0.25, 1),
        (seed, left, seeded, position, *words, 0.0, 0.0, 0.0, 0, 0.75, 1),
        (seed, left, seeded, position, *words, 0.0, 0.0, 0.0, 0, 0.0, 0),
    ):
        write_torch(probe, _TORCH_STATE.pack(*fields))
        yield


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
