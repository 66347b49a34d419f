"""EST contexts are values; a delta holds what changed and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.context import ContextError, EstContext, LoaderPosition, stream_parts
from elastane_proto.v1 import common_pb2

keys = st.sampled_from(
    ["rng/python", "rng/torch_cpu", "stream/0/rng/numpy", "stream/12/rng/python", "item/ema"]
)
parts = st.dictionaries(keys, st.binary(max_size=4))


@given(before=parts, changes=parts)
def test_base_and_delta_make_the_whole(before: dict[str, bytes], changes: dict[str, bytes]) -> None:
    base = EstContext(3, 7, before)
    following = base.next(changes)
    delta = following.delta(base)
    assert following.step == 8 and dict(following.parts) == {**before, **changes}
    assert all(base.parts.get(name) != part for name, part in delta.items())
    assert base.merge(EstContext(3, 8, delta)) == following
    received = EstContext.from_proto(
        common_pb2.EstContext.FromString(following.to_proto(base).SerializeToString())
    )
    assert base.merge(received) == following
    assert EstContext.from_proto(following.to_proto()) == following


def test_a_context_does_not_change() -> None:
    source = {"rng/python": b"a"}
    context = EstContext(0, 0, source)
    source["rng/python"] = b"b"
    context.next({"rng/python": b"c"})
    assert context.parts["rng/python"] == b"a"
    with pytest.raises(TypeError):
        context.parts["rng/python"] = b"d"  # type: ignore[index]


def test_parts_by_kind() -> None:
    context = EstContext.initial(1, {"rng/python": b"p"}).next(
        stream_parts(1, {"rng/numpy": b"n"}),
        stream_parts(11, {"rng/numpy": b"m"}),
        {"item/ema": b"e", "loader": LoaderPosition(2, 3, 4).pack()},
    )
    assert context.rng == {"rng/python": b"p"}
    assert context.stream(1) == {"rng/numpy": b"n"} and context.stream(2) == {}
    assert context.items == {"ema": b"e"}
    assert context.position == LoaderPosition(epoch=2, batch=3, base_seed=4)
    assert EstContext.initial(1, {}).position == LoaderPosition(0, 0, None)


def test_errors() -> None:
    with pytest.raises(ContextError, match="no loader position"):
        _ = EstContext(0, 0).position
    with pytest.raises(ContextError, match="corrupted"):
        _ = EstContext(0, 0, {"loader": b"x"}).position
    with pytest.raises(ContextError, match="does not fit"):
        EstContext(0, 5).merge(EstContext(1, 5))
    with pytest.raises(ContextError, match="does not fit"):
        EstContext(0, 5).merge(EstContext(0, 4))
