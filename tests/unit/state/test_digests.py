"""Digests: equal for equal bits, other for any single bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from elastane.state.digests import WIDTH, digest_of_tensor, digest_of_tensors, leaves, same_bits

LENGTHS = [0, 1, 3, 7, 8, 1000, 2 * WIDTH, 20_001]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_any_single_bit_is_found(dtype: torch.dtype, length: int) -> None:
    draws = random.Random(length)
    tensor = (torch.arange(length) % 251).to(dtype)
    digest = digest_of_tensor(tensor)
    assert digest_of_tensor(tensor.clone()) == digest
    bits = tensor.view(torch.uint8)
    places = {0, bits.numel() - 1, *(draws.randrange(bits.numel()) for _ in range(20))} if length else set()
    for place in places:
        bit = 1 << draws.randrange(8)
        bits[place] ^= bit
        assert digest_of_tensor(tensor) != digest, place
        bits[place] ^= bit


def test_layout_and_place_in_memory_do_not_enter_and_order_does() -> None:
    image = torch.randn(2, 3, 40, 5)
    assert digest_of_tensor(image.contiguous(memory_format=torch.channels_last)) == digest_of_tensor(image)
    assert digest_of_tensor(image[1]) == digest_of_tensor(image[1].clone())
    odd = torch.arange(9, dtype=torch.uint8)[1:]
    assert digest_of_tensor(odd) == digest_of_tensor(odd.clone())
    rows = torch.randn(64, 512)
    assert digest_of_tensor(rows.flip(0)) != digest_of_tensor(rows)


def test_a_single_element_has_the_digest_of_its_copy_with_any_stride() -> None:
    single = torch.tensor([3 + 4j]).imag
    assert single.stride() == (2,)
    assert digest_of_tensor(single) == digest_of_tensor(torch.tensor([4.0]))


@pytest.mark.parametrize(
    ("tensors", "digest"),
    [
        ([torch.arange(5)], 0xB8AB04FBE3A3634C),
        ([torch.arange(3 * WIDTH + 4)], 0x3C4A8F24F003E623),
        ([torch.arange(2 * WIDTH + 1, dtype=torch.uint8)], 0x721647FCE4864800),
        (
            [torch.arange(5), torch.arange(7), torch.arange(9000), torch.arange(3, dtype=torch.uint8)],
            0x7D36208BF5F270BE,
        ),
    ],
    ids=["less than a row", "rows and a rest", "bytes after the last word", "small and large"],
)
def test_digests_stay_those_of_other_releases(tensors: list[torch.Tensor], digest: int) -> None:
    """Workers of two releases compare theirs during an upgrade."""
    assert (digest_of_tensor(tensors[0]) if len(tensors) == 1 else digest_of_tensors(tensors)) == digest


def test_nans_are_compared_by_their_bits() -> None:
    nan = torch.full((5,), float("nan"))
    assert digest_of_tensor(nan) == digest_of_tensor(nan.clone())
    other = nan.clone()
    other.view(torch.int32)[2] ^= 1
    assert torch.isnan(other).all()
    assert digest_of_tensor(other) != digest_of_tensor(nan)


def test_many_tensors_have_one_digest_that_knows_each() -> None:
    tensors = [torch.randn(5), torch.zeros(20_000), torch.randn(3).bfloat16(), torch.randn(7)]
    digest = digest_of_tensors(tensors)
    assert digest_of_tensors([tensor.clone() for tensor in tensors]) == digest
    for tensor in tensors:
        tensor.view(torch.uint8)[4] ^= 16
        assert digest_of_tensors(tensors) != digest
        tensor.view(torch.uint8)[4] ^= 16


def test_leaves_name_what_state_consists_of() -> None:
    state = {"b": [1, 0.5], "a": {1: None, 0: np.float32(2)}, "t": torch.ones(2), "f": max}
    found = {name: leaf for name, leaf in leaves(state, "state") if isinstance(leaf, str)}
    assert list(found) == ["state, a, 0", "state, a, 1", "state, b[0]", "state, b[1]", "state, f"]
    assert found["state, b[1]"] == "0.5"
    assert found["state, f"] == "<builtin_function_or_method>"
    assert dict(leaves({"x": 1}, "")) != dict(leaves({"x": 1.0}, ""))


def test_bits_are_the_same_or_not() -> None:
    plain = torch.tensor([0.0, 1.0, float("nan")])
    assert same_bits(plain, plain.clone())
    assert same_bits(torch.zeros(()), torch.zeros(())) and same_bits(torch.zeros(0), torch.zeros(0))
    assert not same_bits(plain, torch.tensor([-0.0, 1.0, float("nan")]))
    assert not same_bits(torch.tensor(3), torch.tensor(4))
