"""Sizes as people write them."""

from __future__ import annotations

import pytest

from elastane_common.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512M", 512 << 20),
        ("8GiB", 8 << 30),
        ("8gb", 8 << 30),
        ("16kB", 16 << 10),
        ("2T", 2 << 40),
    ],
)
def test_units_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "1.5G", "1 G", "-1", "much", "1.", "1e9", "5 X", "1GiBB", "٣"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as 512M"):
        parse_size(text)
