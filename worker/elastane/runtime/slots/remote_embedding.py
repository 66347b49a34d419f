"""Embeddings whose rows are pulled on use.

A module of the script is converted in place: its class changes, so that references to it stay valid, and its
weight is no longer a parameter. `elastane_slots.initial_rows` defines the initial values of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import structlog
import torch
from torch import Tensor, nn
from torch.nn import functional

from elastane.runtime.slots.errors import RowIdError
from elastane.tables.layout import Ids
from elastane.tables.spec import PsModelError

_log = structlog.get_logger(__name__)

#: Returns a table's rows for ascending ids, as a leaf whose gradient is read at the end of the task.
Rows = Callable[[int, Ids], Tensor]


class _Remote(nn.Module):
    """Behaviour shared by remote modules, which have no weight of their own."""

    _name: str
    _said_lacking: bool = False

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise AttributeError(
                f"the weight of {self._name!r} is at parameter servers: call the module with ids, in"
                " job.push or job.evaluate"
            )
        return super().__getattr__(name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise PsModelError(
            f"{self._name!r} cannot be copied or pickled: its rows are at parameter servers",
            hint="copy the dense modules alone; `elastane ps export` writes all as a state_dict",
            module=self._name,
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self._said_lacking:
            self._said_lacking = True
            _log.warning(
                f"a state_dict of the model lacks the rows of {self._name!r}, which are at parameter servers;"
                " `elastane ps export` writes all. Its dense weights are the newest in job.evaluate() alone"
            )


class RemoteEmbedding(_Remote, nn.Embedding):
    """An nn.Embedding with its rows at parameter servers."""

    _table: int
    _rows: Rows

    def forward(self, input: Tensor) -> Tensor:
        ids, inverse = _unique(self, input)
        rows = self._rows(self._table, ids).to(input.device)
        return functional.embedding(inverse, rows, _place(ids, self.padding_idx))


class RemoteEmbeddingBag(_Remote, nn.EmbeddingBag):
    """An nn.EmbeddingBag with its rows at parameter servers."""

    _table: int
    _rows: Rows

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        ids, inverse = _unique(self, input)
        rows = self._rows(self._table, ids).to(input.device)
        if not len(ids):
            # torch refuses bags over an empty table
            rows = torch.cat([rows, rows.new_zeros(1, self.embedding_dim)])
        return functional.embedding_bag(
            inverse,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=_place(ids, self.padding_idx),
        )


_REMOTE: Final[dict[type[nn.Module], type[nn.Module]]] = {
    nn.Embedding: RemoteEmbedding,
    nn.EmbeddingBag: RemoteEmbeddingBag,
}


def is_sparse(module: nn.Module) -> bool:
    """True for an embedding whose rows are pulled individually: one with sparse=True."""
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) and bool(module.sparse)


def check_embedding(name: str, module: nn.Module) -> None:
    """Raise PsModelError for an embedding whose rows cannot be remote."""
    if type(module) not in _REMOTE:
        raise PsModelError(
            f"{name!r} is a {type(module).__name__} with sparse=True",
            hint="rows of nn.Embedding and nn.EmbeddingBag themselves can be remote, not of classes made of"
            " them",
            module=name,
        )
    assert isinstance(module, nn.Embedding | nn.EmbeddingBag)
    if module.max_norm is not None:
        raise PsModelError(
            f"{name!r} has max_norm={module.max_norm}",
            hint="it changes rows that are used; leave it out, or use sparse=False",
            module=name,
        )
    if module.scale_grad_by_freq:
        raise PsModelError(f"{name!r} has scale_grad_by_freq=True", hint="leave it out", module=name)
    if not module.weight.requires_grad:
        raise PsModelError(
            f"{name!r} is frozen", hint="a frozen embedding needs no server: sparse=False", module=name
        )


def make_remote(module: nn.Module, name: str, table: int, rows: Rows) -> None:
    """Turn an embedding into a remote one, in place; its weight is dropped."""
    module.__class__ = _REMOTE[type(module)]
    del module._parameters["weight"]
    remote = cast(Any, module)
    remote._table, remote._name = table, name
    object.__setattr__(module, "_rows", rows)


def _unique(module: RemoteEmbedding | RemoteEmbeddingBag, given: Tensor) -> tuple[Ids, Tensor]:
    """Return the distinct ids in ascending order, and the index among them of every element of `given`."""
    if given.dtype not in (torch.int64, torch.int32):
        raise RowIdError(
            f"{module._name!r} was given ids of {given.dtype}", hint="int64 or int32", table=module._name
        )
    flat = given.detach().cpu().reshape(-1).to(torch.int64).numpy()
    wrong = np.flatnonzero((flat < 0) | (flat >= module.num_embeddings))
    if len(wrong):
        position, row = int(wrong[0]), int(flat[wrong[0]])
        raise RowIdError(
            f"{module._name!r} has no row {row} (element {position} of the ids): it has"
            f" {module.num_embeddings}",
            table=module._name,
            row=row,
            position=position,
        )
    ids, inverse = np.unique(flat, return_inverse=True)
    return ids, torch.from_numpy(inverse).view(given.shape).to(given.device)


def _place(ids: Ids, padding: int | None) -> int | None:
    """Return the index of the padding row in `ids`; None if it does not occur."""
    if padding is None:
        return None
    place = int(np.searchsorted(ids, padding))
    return place if place < len(ids) and ids[place] == padding else None
