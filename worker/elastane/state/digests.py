"""Digests of training state: cheap, and equal for equal bits.

They are compared between workers of one job while it runs, so cost matters: one pass over the memory, at
memory speed. They are not cryptographic (`fingerprint` is; it compares runs).

The rule. The elements' bytes, row-major, are 64-bit words, padded with zeros. Word i is added to sum i mod
WIDTH, modulo 2^64; the digest is the sum of all WIDTH sums, each multiplied by a different odd number. A
single different bit changes one sum by a power of two, and an odd multiple of that is never 0 modulo 2^64, so
it is always detected. WIDTH is a prime, so that rows of a table do not coincide. NaNs are compared as bits;
strides and devices have no influence.

Zeros add nothing, and a digest of several tensors does not contain their bounds: presence, dtype and shape of
tensors are compared as text (`form`).
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

WIDTH: Final = 1021
_MASK: Final = (1 << 64) - 1
_WORD_BYTES: Final = 8
#: Smaller tensors are concatenated first, because many calls would cost more than the copy.
_SMALL_BYTES: Final = 1 << 16
#: Odd factors: steps of a Weyl sequence (2^64 over the golden ratio) with the last bit set.
_FACTORS: Final = (np.arange(1, WIDTH + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)
_COMBINE: Final = 0xD1342543DE82EF95
#: dtypes that NumPy supports, except complex ones, which may be conjugate views.
_IN_NUMPY: Final = frozenset(
    getattr(torch, name)
    for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
)

_Bytes = npt.NDArray[np.uint8]


def digest_of_tensors(tensors: Sequence[torch.Tensor]) -> int:
    """Return one 64-bit digest of all tensors, in order."""
    small: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    found = []
    for tensor in tensors:
        if tensor.nbytes >= _SMALL_BYTES:
            found.append(digest_of_tensor(tensor))
        else:
            small.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for group in small.values():
        found.append(_digest_of_small(group))
    return combined(found)


def _digest_of_small(group: Sequence[torch.Tensor]) -> int:
    """Return the digest of tensors of one dtype and device as if they were one."""
    if group[0].is_cpu:
        return _digest_of_bytes(np.frombuffer(b"".join(map(_copied, group)), np.uint8))
    return digest_of_tensor(torch._utils._flatten_dense_tensors([tensor.detach() for tensor in group]))


def digest_of_tensor(tensor: torch.Tensor) -> int:
    """Return the 64-bit digest of a tensor's bits."""
    if tensor.device.type == "cpu":
        return _digest_of_bytes(_bytes_of(tensor))
    plain = _plain(tensor)
    size = plain.numel()
    # A view as int64 must be aligned to its words.
    if plain.storage_offset() % _WORD_BYTES:
        plain = plain.clone()
    whole = size // _WORD_BYTES * _WORD_BYTES
    words = plain[:whole].view(torch.int64)
    rows = words.numel() // WIDTH * WIDTH
    on_device = words[:rows].view(-1, WIDTH).sum(0)
    on_device[: words.numel() - rows] += words[rows:]
    sums = on_device.cpu().numpy().view(np.uint64)
    total = int((sums * _FACTORS).sum(dtype=np.uint64))
    return (total + _digest_of_rest(plain[whole:].cpu().numpy(), words.numel())) & _MASK


def _digest_of_bytes(data: _Bytes) -> int:
    """Return the digest of bytes in the host's memory; they need not be aligned.

    NumPy accumulates into one row that stays in the cache, three times as fast as torch. Most tensors of a
    step are so small that calls cost more than sums, and NumPy needs fewer calls.
    """
    whole = data.size // _WORD_BYTES * _WORD_BYTES
    words = data[:whole].view(np.uint64)
    rows = words.size // WIDTH * WIDTH
    last = words[rows:]
    total = int((last * _FACTORS[: last.size]).sum(dtype=np.uint64))
    if rows:
        total += int((np.add.reduce(words[:rows].reshape(-1, WIDTH), axis=0) * _FACTORS).sum(dtype=np.uint64))
    if whole < data.size:
        total += _digest_of_rest(data[whole:], words.size)
    return total & _MASK


def _digest_of_rest(rest: _Bytes, words: int) -> int:
    """Return the contribution of the bytes after the last whole word. words: number of words before them."""
    return int.from_bytes(rest.tobytes(), "little") * int(_FACTORS[words % WIDTH])


def _bytes_of(tensor: torch.Tensor) -> _Bytes:
    """Return the bytes of a tensor in host memory, row-major, without a copy if it is contiguous."""
    if tensor.dtype in _IN_NUMPY and tensor.is_contiguous() and not tensor.is_neg():
        return tensor.detach().numpy().reshape(-1).view(np.uint8)
    return _plain(tensor).numpy()


def _copied(tensor: torch.Tensor) -> bytes:
    """Return a copy of a tensor's bytes in host memory, row-major; fewer calls than for a NumPy view."""
    if tensor.dtype in _IN_NUMPY and tensor.is_contiguous() and not tensor.is_neg():
        return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
    return _plain(tensor).numpy().tobytes()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() <= 1:  # counts as contiguous with any stride, but then cannot be viewed as bytes
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def form(tensor: torch.Tensor) -> str:
    """Return dtype and shape as text, which the digest does not contain."""
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors of one dtype have the same bits: -0.0 differs from 0.0, and a NaN equals itself."""
    bits = (tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(*bits)


def digest_of_text(text: str) -> int:
    """Return a 64-bit digest of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def combined(digests: Iterable[int]) -> int:
    """Return one digest of several, in order."""
    result = 0
    for digest in digests:
        result = ((result ^ digest) * _COMBINE + 1) & _MASK
    return result


def leaves(value: object, path: str) -> Iterator[tuple[str, torch.Tensor | str]]:
    """Yield the leaves of nested state: path, and a tensor or a value as text. Dicts in sorted key order.

    For objects other than numbers, strings, tensors, arrays, and lists, tuples and dicts of them, only the
    type counts: their contents cannot be read.
    """
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        yield path, torch.frombuffer(bytearray(value.tobytes()) or bytearray(1), dtype=torch.uint8)
        yield f"{path} form", f"{value.dtype.str} {value.shape}"
    elif isinstance(value, Mapping):
        for key, inner in in_order(value, path):
            yield from leaves(value[key], inner)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}[{place}]")
    else:
        yield path, in_words(value)


def in_order(keys: Iterable[Any], path: str) -> list[tuple[Any, str]]:
    """Return the keys of a dict at `path` in the order in which `leaves` visits them, each with its path."""
    ordered = sorted(keys, key=lambda key: (type(key).__name__, key))
    return [(key, f"{path}, {key}" if path else str(key)) for key in ordered]


def in_words(value: Any) -> str:
    """Return a value as exact text: equal for equal values of one type."""
    if isinstance(value, np.generic):
        return f"{value.dtype.str} {value!r}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(in_words(item) for item in value)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{in_words(key)}: {in_words(item)}' for key, item in value.items())}}}"
    return f"<{type(value).__name__}>"
