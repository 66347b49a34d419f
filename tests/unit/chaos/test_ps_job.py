"""The weights of `elastane chaos --ps` say which gradients are missing, and which are there twice."""

from __future__ import annotations

import pytest
import torch

from elastane_cli.chaos.ps_job import miscounted, number_of

DONE = [(epoch, index) for epoch in range(2) for index in range(40)]


def weights(applied: list[tuple[int, int]]) -> torch.Tensor:
    values = [-float(len(applied)), -float(sum(number_of(*task) for task in applied))]
    return torch.tensor([values, values])


def test_each_once() -> None:
    assert miscounted({"rows": weights(DONE)}, DONE) == []


@pytest.mark.parametrize(
    "applied",
    [DONE[1:], [*DONE, DONE[3]], [*DONE[1:], DONE[5]]],
    ids=["one missing", "one twice", "one missing and one twice"],
)
def test_what_is_wrong_is_named(applied: list[tuple[int, int]]) -> None:
    (said,) = miscounted({"dense": weights(DONE), "rows": weights(applied)}, DONE)
    assert said.startswith("2 rows of rows have other gradients than those of 80 DONE tasks")
    assert said.endswith(f"they count {len(applied)}")


def test_one_row_is_enough() -> None:
    found = weights(DONE)
    found[1] -= 1
    (said,) = miscounted({"rows": found}, DONE)
    assert said.startswith("1 rows of rows")
