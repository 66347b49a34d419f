"""Allocations: the most memory that operations take at a time."""

from __future__ import annotations

import torch

from elastane.pipeline.allocations import Allocations

CPU = torch.device("cpu")


def test_what_is_freed_counts_no_more_and_views_count_once() -> None:
    before = torch.zeros(1000)
    with Allocations(CPU) as made:
        kept = torch.ones(100)
        freed = torch.ones(200)
        del freed
        other = torch.ones(50)
        views = kept[10:], before.view(10, 100), before.add_(1)
        made.mark()
    del views, other
    assert (made.bytes_marked, made.bytes_most) == (4 * 150, 4 * 300)
    assert kept.numel() == 100


def test_backward_is_counted() -> None:
    weight = torch.zeros(64, 64, requires_grad=True)
    value = torch.zeros(2, 64)
    with Allocations(CPU) as made:
        output = value @ weight
        made.mark()
        output.backward(torch.ones_like(output))
    assert made.bytes_marked == output.nbytes
    assert made.bytes_most >= output.nbytes + weight.nbytes


def test_copies_that_a_kernel_makes_are_counted() -> None:
    convolution = torch.nn.Conv2d(32, 32, 3, padding=1)
    images = torch.zeros(16, 32, 32, 32, requires_grad=True)
    with torch.no_grad():
        convolution(images)  # what it keeps for good is there
        with Allocations(CPU) as made:
            output = convolution(images)
            made.mark()
    assert made.bytes_marked >= output.nbytes
    if torch.backends.mkldnn.is_available():
        assert made.bytes_most > 1.5 * output.nbytes
