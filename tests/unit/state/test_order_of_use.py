"""Workers whose optimizers met their parameters in another order agree on every byte's place."""

from __future__ import annotations

import torch
from torch import nn

from elastane.state.codec import decode, encode
from elastane.state.handover import layout_checksum
from elastane.state.stream import StreamLayout, exported_from_stream
from elastane.state.train_state import TrainState


def trained(order: list[int]) -> TrainState:
    """A model of equal branches, each trained alone once, in this order."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for branch in order:
        optimizer.zero_grad()
        model[branch](torch.full((2, 3), branch + 1.0)).sum().backward()
        optimizer.step()
    return TrainState(model, [optimizer])


def used(state: TrainState) -> list[int]:
    return list(state.optimizers[0].state_dict()["state"])


def test_the_order_in_which_parameters_were_first_used_is_part_of_the_state() -> None:
    donor, receiver = trained([2, 0, 3]), trained([])
    receiver.load(donor.export())
    assert used(receiver) == used(donor) == [4, 5, 0, 1, 6, 7]
    receiver.load(donor.export())
    assert used(receiver) == used(donor)


def test_stripes_of_donors_with_unlike_orders_fit_together() -> None:
    first, second = trained([2, 0, 3, 1]), trained([0, 1, 2, 3])
    exports = [first.export(), second.export()]
    # The same values, held in dicts of another order.
    second.load(exports[0])
    state = second.optimizers[0].state
    for parameter in list(second.model.parameters())[::-1]:
        state[parameter] = state.pop(parameter)
    exports[1] = second.export()
    assert used(second) != used(first)
    assert exports[0].paths == exports[1].paths
    assert layout_checksum(exports[0]) == layout_checksum(exports[1])

    layout = StreamLayout(exports[0].specs)
    stream = torch.empty(layout.total_bytes, dtype=torch.uint8)
    for index, exported in enumerate(exports):
        start, end = layout.stripe(index, 2)
        layout.gather(exported.tensors, start, end, stream[start:end])
    receiver = trained([])
    receiver.load(exported_from_stream(exports[0].structure, stream))
    assert receiver.fingerprint() == first.fingerprint()
    assert used(receiver) == used(first)


def test_donors_with_tensors_elsewhere_are_told_apart() -> None:
    one, other = {"a": torch.ones(2), "b": torch.zeros(2)}, {"a": torch.ones(2), "c": torch.zeros(2)}
    assert layout_checksum(encode(one)) != layout_checksum(encode(other))


def test_a_structure_without_paths_is_still_read() -> None:
    exported = encode({"b": torch.zeros(2), "a": [torch.ones(2)]})
    exported.structure = exported.structure.replace(b'"paths":["a[0]","b"],', b"")
    assert b"paths" not in exported.structure
    assert torch.equal(decode(exported)["a"][0], torch.ones(2))
