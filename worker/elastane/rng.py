"""The random number generators of this process, as bytes.

An EST continues exactly where it stopped only if every generator its code may draw from has the state it
had then. Those are four: Python's `random`, NumPy's legacy global generator, torch's CPU generator and, on
a GPU, torch's device generator. They are switched with every EST at every mini-batch, and sent to the
master with every step, so this module is on the hot path and never pickles.

Layouts, all little-endian:

    rng/python        uint32 version (3), 625 uint32 (624 words and the position), uint8 flag, float64
                      2,513 bytes; the flag says whether a second gaussian is cached, the float is its value
    rng/numpy         624 uint32 words, int32 position, int32 flag, float64 cached gaussian: 2,512 bytes
    rng/torch_cpu     as returned by `torch.get_rng_state()`: 5,056 bytes
    rng/torch_device  as returned by the device generator; for CUDA uint64 seed, int64 offset: 16 bytes
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from functools import cache, partial

import torch

from elastane.generator_memory import (
    NumpyMemory,
    PythonMemory,
    TorchMemory,
    find_numpy,
    find_python,
    find_torch,
    numpy_bytes,
    torch_bytes,
    write_torch,
)
from elastane_common.errors import ElastaneError
from elastane_proto.contexts import NUMPY, PYTHON, TORCH_CPU, TORCH_DEVICE

try:
    import numpy as np
except ImportError:  # torch runs without NumPy; then there is no such generator
    HAS_NUMPY = False
else:
    HAS_NUMPY = True

Parts = dict[str, bytes]

_WORDS = 624
_PYTHON_VERSION = 3
_PYTHON_LAYOUT = struct.Struct("<626IBd")
_PYTHON_HEAD, _PYTHON_TAIL = struct.Struct("<I"), struct.Struct("<IB")
_NUMPY_TAIL = struct.Struct("<iid")
_NUMPY_BYTES = 4 * _WORDS + _NUMPY_TAIL.size


class RngStateError(ElastaneError):
    """A stored generator state cannot be restored here: corrupted, missing, or of a generator not in use."""

    code = "ELA310"


class Generators:
    """Captures and restores the global generators of this process.

    `device` is the device the script trains on: a CUDA device adds its default generator. Not thread-safe,
    just as the generators: only the training thread calls it.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        self._known: Parts = {}
        names = [PYTHON, TORCH_CPU]
        if HAS_NUMPY:
            names.append(NUMPY)
        if self._device is not None:
            names.append(TORCH_DEVICE)
        #: The parts in every capture, required by every restore.
        self.names = tuple(names)

    def capture(self) -> Parts:
        """Return the current states.

        A state equal to the one last captured or restored is returned as the same bytes object, so that the
        comparisons that follow (deltas) cost nothing.
        """
        return {name: self._capture_one(name) for name in self.names}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Set every generator; keys other than "rng/..." are ignored. Raises RngStateError."""
        self._check_names(parts)
        for name in self.names:
            self._restore_one(name, parts[name])

    def exchange(self, parts: Mapping[str, bytes]) -> Parts:
        """Capture the current states, then restore `parts`: the switch from one EST to another.

        A generator that already has its state is not restored. Only within one call are the captured states
        certain to be the current ones, so this cannot be left to the caller.
        """
        self._check_names(parts)
        present = self.capture()
        for name, state in present.items():
            if state != parts[name]:
                self._restore_one(name, parts[name])
        return present

    def switch(self, parts: Mapping[str, bytes]) -> None:
        """Restore `parts` like `exchange`, if nothing was drawn since the last capture; returns no states."""
        self._check_names(parts)
        for name in self.names:
            if parts[name] != self._known.get(name):
                self._restore_one(name, parts[name])

    def _capture_one(self, name: str) -> bytes:
        if name == PYTHON:
            state = _capture_python()
        elif name == NUMPY:
            state = _capture_numpy()
        elif name == TORCH_CPU:
            memory = _torch_memory()
            state = torch_bytes(torch.default_generator) if memory is None else memory.read()
        else:
            state = torch_bytes(self._device_generator())
        known = self._known.get(name)
        # The same bytes object, so that later comparisons (deltas, exchange) succeed by identity.
        if known is not None and known == state:
            return known
        self._known[name] = state
        return state

    def _restore_one(self, name: str, state: bytes) -> None:
        if name == PYTHON:
            _restore_python(state)
        elif name == NUMPY:
            _restore_numpy(state)
        elif name == TORCH_CPU:
            memory = _torch_memory()
            if memory is None:
                _restore_torch(name, state, partial(write_torch, torch.default_generator))
            else:
                _restore_torch(name, state, memory.write)
        else:
            _restore_torch(name, state, partial(write_torch, self._device_generator()))
        self._known[name] = state

    def _device_generator(self) -> torch.Generator:
        device = self._device
        assert device is not None, "asked for the device generator without a device"
        torch.cuda.init()  # fills default_generators; later calls do nothing
        index = device.index if device.index is not None else torch.cuda.current_device()
        return torch.cuda.default_generators[index]

    def _check_names(self, parts: Mapping[str, bytes]) -> None:
        expected = set(self.names)
        stored = {name for name in parts if name.startswith("rng/")}
        if expected != stored:
            raise RngStateError(
                f"the stored RNG states are {sorted(stored)}, this process has {sorted(expected)}",
                hint="all workers of a job need the same kind of device, and NumPy in all or in none",
                stored=sorted(stored),
                expected=sorted(expected),
            )


def seed_all(seed: int) -> None:
    """Seed Python, NumPy and torch (CPU and devices) as training scripts do."""
    random.seed(seed)
    if HAS_NUMPY:
        np.random.seed(seed % 2**32)
    if _may_have_accelerator():
        torch.manual_seed(seed)
    else:
        # `torch.manual_seed` would keep each seed, with a traceback, for devices that may start later.
        torch.default_generator.manual_seed(seed)


def _may_have_accelerator() -> bool:
    try:
        return torch.accelerator.current_accelerator() is not None
    except RuntimeError:  # how torch 2.6 says that it was built for none
        return False


@cache
def _python_memory() -> PythonMemory | None:
    """Return the global generator's memory, if its layout is known."""
    return find_python(random._inst)


@cache
def _torch_memory() -> TorchMemory | None:
    return find_torch(torch.default_generator)


@cache
def _numpy_memory() -> NumpyMemory | None:
    return find_numpy(np.random.mtrand._rand)


def _capture_python() -> bytes:
    memory = _python_memory()
    if memory is not None:
        return memory.read()
    version, words, gaussian = random.getstate()
    kept = gaussian is not None
    return _PYTHON_LAYOUT.pack(version, *words, kept, gaussian if kept else 0.0)


def _restore_python(state: bytes) -> None:
    if len(state) != _PYTHON_LAYOUT.size:
        raise _corrupted(PYTHON, f"{len(state)} bytes, expected {_PYTHON_LAYOUT.size}")
    (version,), (position, flag) = (
        _PYTHON_HEAD.unpack_from(state),
        _PYTHON_TAIL.unpack_from(state, 4 * _WORDS + 4),
    )
    if version != _PYTHON_VERSION or position > _WORDS or flag > 1:
        raise _corrupted(PYTHON, f"version {version}, position {position}, flag {flag}")
    memory = _python_memory()
    if memory is not None:
        memory.write(state)
        return
    _, *words, _, gaussian = _PYTHON_LAYOUT.unpack(state)
    random.setstate((version, tuple(words), gaussian if flag else None))


def _capture_numpy() -> bytes:
    memory = _numpy_memory()
    if memory is not None and memory.stands:
        return memory.read()
    kind = np.random.get_state(legacy=False)["bit_generator"]
    if kind != "MT19937":
        raise RngStateError(
            f"NumPy's global generator is {kind}, only MT19937 can be kept",
            hint="do not call numpy.random.set_bit_generator",
            bit_generator=kind,
        )
    return numpy_bytes(np.random.mtrand._rand)


def _restore_numpy(state: bytes) -> None:
    if len(state) != _NUMPY_BYTES:
        raise _corrupted(NUMPY, f"{len(state)} bytes, expected {_NUMPY_BYTES}")
    position, flag, gaussian = _NUMPY_TAIL.unpack_from(state, 4 * _WORDS)
    # NumPy does not check the position, and reads beyond the words with a wrong one.
    if not 0 <= position <= _WORDS or flag not in (0, 1):
        raise _corrupted(NUMPY, f"position {position}, flag {flag}")
    memory = _numpy_memory()
    if memory is not None and memory.stands:
        memory.write(state)
        return
    key = np.frombuffer(state, "<u4", _WORDS)
    np.random.set_state(("MT19937", key, position, flag, gaussian))


def _restore_torch(name: str, state: bytes, write: Callable[[bytes], None]) -> None:
    try:
        write(state)
    except (RuntimeError, ValueError) as error:
        raise _corrupted(name, f"{len(state)} bytes: {str(error).splitlines()[0]}") from error


def _corrupted(name: str, what: str) -> RngStateError:
    return RngStateError(f"the stored state {name} is corrupted: {what}", part=name)
