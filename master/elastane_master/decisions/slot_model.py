"""The model that parameter servers hold, as workers register it (ps.proto)."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

DenseRule = Literal["sgd", "adagrad", "adam", "adamw"]
RowRule = Literal["sgd", "rowwise_adagrad", "lazy_adam"]
RowDistribution = Literal["uniform", "normal", "zeros"]

#: Entry of a model's environment: digest of state that is in no slot.
_LOCAL: Final = "local"


class DenseTensor(msgspec.Struct, frozen=True):
    """A dense parameter. group: of the optimizer's parameters."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    rule: DenseRule
    strides: tuple[int, ...] = ()
    group: int = 0


class RowTable(msgspec.Struct, frozen=True):
    """A table whose rows are pulled and pushed individually.

    padding_row: always zero, never updated; None: there is none. distribution, scale: of new rows.
    """

    name: str
    rows: int
    width: int
    dtype: str
    distribution: RowDistribution
    rule: RowRule
    padding_row: int | None = None
    scale: float = 0.0
    group: int = 0


class SlotModel(msgspec.Struct, frozen=True):
    """Everything that is trained at parameter servers; every worker registers the same.

    absent: keys of the model's state_dict that are in no slot.
    """

    slots: int
    seed: int
    tensors: tuple[DenseTensor, ...] = ()
    tables: tuple[RowTable, ...] = ()
    dense_digest: bytes = b""
    environment: dict[str, str] = {}
    absent: tuple[str, ...] = ()

    def difference(self, other: SlotModel) -> str:
        """Describe the first difference from another model; "" if it is equal."""
        for kind in ("tensors", "tables"):
            mine, theirs = getattr(self, kind), getattr(other, kind)
            for one, another in zip(mine, theirs, strict=False):
                if one != another:
                    return f"{kind[:-1]} {one.name!r}: {_field(one, another)}"
            if len(mine) != len(theirs):
                return f"{len(mine)} {kind}, here {len(theirs)}"
        if self.environment.get(_LOCAL) != other.environment.get(_LOCAL):
            return "what it has but does not train, as buffers and frozen layers, has other values"
        for key in sorted(self.environment.keys() | other.environment.keys()):
            if self.environment.get(key) != other.environment.get(key):
                return f"{key} is {self.environment.get(key)!r}, here {other.environment.get(key)!r}"
        if self.dense_digest != other.dense_digest:
            return "its dense parameters begin with other values"
        return _field(self, other)


def _field(one: msgspec.Struct, another: msgspec.Struct) -> str:
    for name in one.__struct_fields__:
        mine, theirs = getattr(one, name), getattr(another, name)
        if mine != theirs:
            shown = [
                value.hex()[:12] if isinstance(value, bytes) else repr(value) for value in (mine, theirs)
            ]
            return f"{name} is {shown[0]}, here {shown[1]}"
    return ""
