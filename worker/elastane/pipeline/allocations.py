"""Counts the tensors that operations make, and how much memory they take at most at a time.

Torch counts for GPUs alone. Here every operation of the thread is looked at as it is dispatched, those of
autograd's backward on the CPU too. What a kernel takes for itself is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """A context in which storages are counted: those of what operations return, from then until nobody refers
    to them. Memory that was there before is not counted."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        #: The most bytes at a time, so far.
        self.bytes_most = 0

    @property
    def bytes_now(self) -> int:
        """Bytes of the storages that are still referred to."""
        self._made = {key: one for key, one in self._made.items() if not one[0].expired()}
        return sum(nbytes for _, nbytes in self._made.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        now = self.bytes_now
        for leaf in tree_leaves(result):
            if not isinstance(leaf, Tensor):
                continue
            storage = leaf.untyped_storage()
            key = _storage(leaf)
            if key not in given and key not in self._made:
                self._made[key] = StorageWeakRef(storage), storage.nbytes()
                now += storage.nbytes()
        self.bytes_most = max(self.bytes_most, now)
        return result


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
