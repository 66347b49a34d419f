"""Allocations: the most memory that operations take at a time."""

from __future__ import annotations

import torch

from elastane.pipeline.allocations import Allocations


def test_what_is_freed_counts_no_more_and_views_count_once() -> None:
    before = torch.zeros(1000)
    with Allocations() as made:
        kept = torch.ones(100)
        freed = torch.ones(200)
        del freed
        other = torch.ones(50)
        views = kept[10:], before.view(10, 100), before.add_(1)
        assert (made.bytes_now, made.bytes_most) == (4 * 150, 4 * 300)
    del views, other
    assert made.bytes_now == 4 * 100
    assert kept.numel() == 100


def test_backward_is_counted() -> None:
    weight = torch.zeros(64, 64, requires_grad=True)
    value = torch.zeros(2, 64)
    with Allocations() as made:
        output = value @ weight
        left = made.bytes_now
        output.backward(torch.ones_like(output))
    assert left == output.nbytes
    assert made.bytes_most >= left + weight.nbytes
    assert made.bytes_now >= weight.nbytes  # the gradient
