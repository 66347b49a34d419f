"""Models: what is refused, and that a message says the same."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from elastane.tables.spec import DenseTensor, ModelSpec, PsModelError, RowTable
from elastane.tables.spec_proto import from_proto, to_proto
from elastane_proto.v1 import ps_pb2
from unit.tables.models import small

D, T = DenseTensor("w", (4, 4)), RowTable("t", 10, 4, group=1)


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec((D,), slots=0),
        ModelSpec((D,), slots=4097),
        ModelSpec((D, D)),
        ModelSpec((DenseTensor("", (4,)),)),
        ModelSpec((DenseTensor("w", (-1,)),)),
        ModelSpec((DenseTensor("w", (2**30, 2**30)),)),
        ModelSpec((DenseTensor("w", (4,), dtype="int8"),)),
        ModelSpec((DenseTensor("w", (4,), rule="lbfgs"),)),
        ModelSpec((DenseTensor("w", (4, 4), strides=(8, 1)),)),
        ModelSpec((DenseTensor("w", (4, 4), strides=(0, 1)),)),
        ModelSpec((DenseTensor("w", (4, 4), strides=(1,)),)),
        ModelSpec((DenseTensor("w", (4,), group=1),)),
        ModelSpec((D,), (RowTable("t", 10, 4),)),  # one group, two rules
        ModelSpec((D,), (T, T)),
        ModelSpec((D,), (RowTable("t", 0, 4, group=1),)),
        ModelSpec((D,), (RowTable("t", 10, 0, group=1),)),
        ModelSpec((D,), (RowTable("t", 10, 4, padding_row=10, group=1),)),
        ModelSpec((D,), (RowTable("t", 10, 4, dtype="bfloat16", group=1),)),
        ModelSpec((D,), (RowTable("t", 10, 4, scale=float("nan"), group=1),)),
        ModelSpec((D,), (RowTable("t", 10, 4, rule="adam", group=1),)),
        ModelSpec((D,), wire="int8"),  # type: ignore[arg-type]
    ],
)
def test_models_that_cannot_be_held_are_refused(spec: ModelSpec) -> None:
    with pytest.raises(PsModelError):
        spec.check()


@pytest.mark.parametrize("strides", [(12, 4, 1), (1, 2, 6), (4, 8, 1)])
def test_tensors_without_gaps_are_held_in_any_order_of_their_dimensions(strides: tuple[int, ...]) -> None:
    shape = {(12, 4, 1): (2, 3, 4), (1, 2, 6): (2, 3, 4), (4, 8, 1): (2, 3, 4)}[strides]
    ModelSpec((DenseTensor("w", shape, strides),)).check()


def test_a_message_says_the_same() -> None:
    spec = small()
    message = to_proto(spec, dense_digest=b"d" * 32, environment={"torch": "2"})
    assert from_proto(ps_pb2.SlotModel.FromString(message.SerializeToString())) == spec
    message.tables[0].rule = 0
    with pytest.raises(PsModelError):
        from_proto(message)


def test_every_element_and_row_is_in_one_slot() -> None:
    spec = small(slots=5)
    blocks = sorted((b.tensor, b.start, b.end) for layout in spec.layouts for b in layout.blocks)
    for tensor in spec.tensors:
        own = [(start, end) for name, start, end in blocks if name == tensor.name]
        assert own[0][0] == 0 and own[-1][1] == tensor.elements
        assert all(a[1] == b[0] for a, b in itertools.pairwise(own))
    assert sum(layout.dense_bytes for layout in spec.layouts) == 4 * 700_007


def test_the_digest_is_that_of_the_model_and_not_of_its_messages() -> None:
    spec = small()
    assert spec.digest == small(wire="bfloat16").digest
    assert spec.digest != msgspec.structs.replace(spec, seed=4).digest
