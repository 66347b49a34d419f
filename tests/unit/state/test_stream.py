"""Stripes of the byte stream: together they are the whole, each byte once."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.state.codec import decode, encode
from elastane.state.stream import ALIGNMENT_BYTES, StreamLayout, exported_from_stream

SIZES = st.lists(st.integers(0, 300), max_size=12)


@given(SIZES, st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_stripes_put_together_are_the_stream(sizes: list[int], count: int) -> None:
    state = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in sizes]
    exported = encode(state)
    layout = StreamLayout(exported.specs)
    position, pieces = 0, []
    for index in range(count):
        start, end = layout.stripe(index, count)
        assert start == position and (start % ALIGNMENT_BYTES == 0) and start <= end
        out = torch.full((end - start,), 0xAA, dtype=torch.uint8)
        pieces.append(layout.gather(exported.tensors, start, end, out))
        position = end
    assert position == layout.total_bytes
    again = decode(exported_from_stream(exported.structure, torch.cat(pieces)))
    assert all(map(torch.equal, again, state))


@given(SIZES, st.data())
@settings(max_examples=200, deadline=None)
def test_any_range_equals_that_range_of_the_whole(sizes: list[int], data: st.DataObject) -> None:
    exported = encode([torch.randint(1, 255, (size,), dtype=torch.uint8) for size in sizes])
    layout = StreamLayout(exported.specs)
    start = data.draw(st.integers(0, layout.total_bytes))
    end = data.draw(st.integers(start, layout.total_bytes))
    whole = layout.gather(
        exported.tensors, 0, layout.total_bytes, torch.empty(layout.total_bytes, dtype=torch.uint8)
    )
    part = layout.gather(
        exported.tensors, start, end, torch.full((end - start + 7,), 0xAA, dtype=torch.uint8)
    )
    assert torch.equal(part, whole[start:end])
    view = layout.view(exported.tensors, start, end, torch.device("cpu"))
    assert view is None or torch.equal(view, whole[start:end])


def test_a_range_inside_one_tensor_is_a_view_and_others_are_not() -> None:
    first, second = torch.zeros(200, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8)
    layout = StreamLayout(encode([first, second]).specs)
    view = layout.view([first, second], 64, 128, torch.device("cpu"))
    assert view is not None and view.data_ptr() == first.data_ptr() + 64
    assert layout.view([first, second], 128, 256, torch.device("cpu")) is None  # padding within
    assert layout.view([first, second], 128, 320, torch.device("cpu")) is None


def test_stripes_are_equal_but_for_the_alignment() -> None:
    layout = StreamLayout(encode([torch.zeros(1_000_003, dtype=torch.uint8)]).specs)
    widths = [end - start for start, end in (layout.stripe(i, 7) for i in range(7))]
    assert max(widths) - min(widths) <= 7 * ALIGNMENT_BYTES
