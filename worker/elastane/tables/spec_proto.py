"""Converts `ModelSpec` to its message and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from elastane.tables.spec import DenseTensor, ModelSpec, PsModelError, RowTable, Wire
from elastane_proto.v1 import ps_pb2
from elastane_slots.initial_rows import Distribution

_DENSE_RULES: Final = {
    "sgd": ps_pb2.DENSE_RULE_SGD,
    "adagrad": ps_pb2.DENSE_RULE_ADAGRAD,
    "adam": ps_pb2.DENSE_RULE_ADAM,
    "adamw": ps_pb2.DENSE_RULE_ADAMW,
}
_ROW_RULES: Final = {
    "row_sgd": ps_pb2.ROW_RULE_SGD,
    "rowwise_adagrad": ps_pb2.ROW_RULE_ROWWISE_ADAGRAD,
    "lazy_adam": ps_pb2.ROW_RULE_LAZY_ADAM,
}
_DISTRIBUTIONS: Final = {
    "uniform": ps_pb2.ROW_DISTRIBUTION_UNIFORM,
    "normal": ps_pb2.ROW_DISTRIBUTION_NORMAL,
    "zeros": ps_pb2.ROW_DISTRIBUTION_ZEROS,
}


def to_proto(
    spec: ModelSpec,
    *,
    dense_digest: bytes = b"",
    environment: dict[str, str] | None = None,
    absent: Sequence[str] = (),
) -> ps_pb2.SlotModel:
    """Return the message that registers a model.

    dense_digest: of the initial dense values. absent: keys of the model's state_dict that are in no slot.
    """
    model = ps_pb2.SlotModel(
        slots=spec.slots,
        seed=spec.seed,
        dense_digest=dense_digest,
        environment=environment or {},
        absent=absent,
    )
    for tensor in spec.tensors:
        model.tensors.add(
            name=tensor.name,
            shape=tensor.shape,
            strides=tensor.strides,
            dtype=tensor.dtype,
            rule=_DENSE_RULES[tensor.rule],
            group=tensor.group,
        )
    for table in spec.tables:
        model.tables.add(
            name=table.name,
            rows=table.rows,
            width=table.width,
            dtype=table.dtype,
            padding_row=table.padding_row,
            distribution=_DISTRIBUTIONS[table.distribution],
            scale=table.scale,
            rule=_ROW_RULES[table.rule],
            group=table.group,
        )
    return model


def from_proto(model: ps_pb2.SlotModel, wire: Wire = "float32") -> ModelSpec:
    """Inverse of `to_proto`. Raises PsModelError for an unsupported model."""
    tensors = tuple(
        DenseTensor(t.name, tuple(t.shape), tuple(t.strides), t.dtype, _name(_DENSE_RULES, t.rule), t.group)
        for t in model.tensors
    )
    tables = tuple(
        RowTable(
            name=t.name,
            rows=t.rows,
            width=t.width,
            dtype=t.dtype,
            padding_row=t.padding_row if t.HasField("padding_row") else None,
            distribution=cast(Distribution, _name(_DISTRIBUTIONS, t.distribution)),
            scale=t.scale,
            rule=_name(_ROW_RULES, t.rule),
            group=t.group,
        )
        for t in model.tables
    )
    spec = ModelSpec(tensors, tables, model.slots, model.seed, wire)
    spec.check()
    return spec


def _name(known: Mapping[str, int], value: int) -> str:
    for name, number in known.items():
        if number == value:
            return name
    raise PsModelError(f"the model has a rule or a distribution of number {value}, which is not known")
