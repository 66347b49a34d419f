"""Fingerprints: equal exactly when weights, optimizer state and buffers have the same bits.

They compare runs: elastic against fixed, either against stock DistributedDataParallel. So the
function takes any model and optimizers, and the rule is simple enough to be recomputed elsewhere.

The rule. Each part is the sha256 of records in order. A record is one line of JSON,
`json.dumps(fields, separators=(",", ":"))` and a newline, followed by raw bytes where stated.
    weights    for each parameter name in sorted order (tied ones under each of their names):
               ["tensor", name, dtype, shape], then the elements' bytes, row-major, little-endian
    buffers    the same for buffers, persistent or not
    optimizer  for each optimizer i: the value of {"state", "param_groups"} of its state_dict() at path "i"
    extras     for each other object i (schedulers, scalers, averages): its state_dict() at path "i"
A value at a path P:
    tensor     ["tensor", P, dtype, shape], then its bytes
    dict       ["dict", P, length], then each entry at P/key, keys sorted by (type name, key)
    list       ["list", P, length], then each item at P/index; a tuple likewise as "tuple"
    float      ["float", P, value.hex()];  bool, int, str, None: [type name, P, value]
dtype is torch's name without "torch.". Strides and devices do not enter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import torch

from elastane.state.codec import StateNotCarriedError

if TYPE_CHECKING:
    from hashlib import _Hash


class _HasStateDict(Protocol):
    def state_dict(self) -> dict[str, object]: ...


def fingerprint(
    model: torch.nn.Module, optimizers: Iterable[_HasStateDict] = (), extras: Iterable[_HasStateDict] = ()
) -> dict[str, str]:
    """Return sha256 in hex of "weights", "optimizer", "buffers" and "extras" (see the module for the rule).

    For a model wrapped by DistributedDataParallel pass `model.module`, or the names differ.
    """
    optimizer_hash = hashlib.sha256()
    for index, optimizer in enumerate(optimizers):
        state = optimizer.state_dict()
        parts = {"state": state["state"], "param_groups": state["param_groups"]}
        add_value(optimizer_hash, str(index), parts)
    extras_hash = hashlib.sha256()
    for index, extra in enumerate(extras):
        add_value(extras_hash, str(index), extra.state_dict())
    return {
        "extras": extras_hash.hexdigest(),
        "weights": _hash_named(dict(model.named_parameters(remove_duplicate=False))),
        "optimizer": optimizer_hash.hexdigest(),
        "buffers": _hash_named(dict(model.named_buffers(remove_duplicate=False))),
    }


def _hash_named(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        add_tensor(digest, name, tensors[name])
    return digest.hexdigest()


def _add_line(digest: _Hash, *fields: object) -> None:
    digest.update(json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n")


def add_tensor(digest: _Hash, path: str, tensor: torch.Tensor) -> None:
    _add_line(digest, "tensor", path, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
    rows = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if rows.numel():
        digest.update(rows.view(-1).view(torch.uint8).numpy().data)


def add_value(digest: _Hash, path: str, value: object) -> None:
    if isinstance(value, torch.Tensor):
        add_tensor(digest, path, value)
    elif isinstance(value, Mapping):
        _add_line(digest, "dict", path, len(value))
        for key in sorted(value, key=lambda key: (type(key).__name__, key)):
            add_value(digest, f"{path}/{key}", value[key])
    elif isinstance(value, list | tuple):
        _add_line(digest, "list" if isinstance(value, list) else "tuple", path, len(value))
        for index, item in enumerate(value):
            add_value(digest, f"{path}/{index}", item)
    elif isinstance(value, float):
        _add_line(digest, "float", path, value.hex())
    elif value is None or isinstance(value, bool | int | str):
        _add_line(digest, type(value).__name__, path, value)
    else:
        raise StateNotCarriedError(
            f"optimizer {path}: object of type {type(value).__qualname__} has no fingerprint", path=path
        )
