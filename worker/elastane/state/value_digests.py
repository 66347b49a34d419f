"""Short digests of batches, tensors and states, for traces. Equal digests: equal bits."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

#: Hex digits kept of a sha256: 64 bits, enough to distinguish a few million values.
DIGITS: Final = 16
_DEPTH_MAX: Final = 16


def digest_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def digest_tensor(tensor: torch.Tensor) -> str:
    """Return the digest of dtype, shape and elements in row-major order.

    Strides and device have no influence.
    """
    return digest_any(tensor)


def digest_any(value: object) -> str:
    """Return the digest of a batch or any nested value; objects of unknown kind by class and attributes."""
    digest = hashlib.sha256()
    for piece in _pieces(value, 0):
        digest.update(piece)
    return digest.hexdigest()[:DIGITS]


def _pieces(value: Any, depth: int) -> Iterator[bytes | memoryview]:
    kind = type(value).__qualname__
    if isinstance(value, torch.Tensor):
        yield from _of_tensor(value)
    elif value is None or isinstance(value, bool | int | str | complex):
        yield f"{kind}:{value!r};".encode()
    elif isinstance(value, float):
        yield f"float:{float(value).hex()};".encode()
    elif isinstance(value, bytes | bytearray | memoryview):
        yield f"bytes:{len(value)};".encode()
        yield bytes(value)
    elif depth >= _DEPTH_MAX:
        yield f"{kind};".encode()
    elif isinstance(value, Mapping):
        yield f"{kind}:{len(value)};".encode()
        for key in value:
            yield from _pieces(key, depth + 1)
            yield from _pieces(value[key], depth + 1)
    elif isinstance(value, list | tuple):
        yield f"{kind}:{len(value)};".encode()
        for item in value:
            yield from _pieces(item, depth + 1)
    elif hasattr(value, "tobytes") and hasattr(value, "shape"):  # a NumPy array or scalar
        yield f"{kind}:{value.dtype}:{value.shape};".encode()
        yield value.tobytes()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield f"{kind};".encode()
        for field in dataclasses.fields(value):
            yield from _pieces(getattr(value, field.name, None), depth + 1)
    elif hasattr(value, "tobytes"):  # a PIL image
        yield f"{kind};".encode()
        yield bytes(value.tobytes())
    else:
        # An object's repr may contain its address, which differs in every process.
        yield f"{kind};".encode()
        attributes = getattr(value, "__dict__", None)
        if attributes:
            yield from _pieces(dict(sorted(attributes.items())), depth + 1)


def _of_tensor(tensor: torch.Tensor) -> Iterator[bytes | memoryview]:
    yield f"tensor:{tensor.dtype}:{tuple(tensor.shape)};".encode()
    plain = tensor.detach()
    if plain.layout == torch.sparse_coo:
        plain = plain.coalesce()
        yield from _of_tensor(plain.indices())
        yield from _of_tensor(plain.values())
        return
    if plain.layout != torch.strided or plain.is_quantized:
        plain = plain.dequantize() if plain.is_quantized else plain.to_dense()
    rows = plain.resolve_conj().resolve_neg().cpu().contiguous()
    if rows.numel():
        yield rows.view(-1).view(torch.uint8).numpy().data
