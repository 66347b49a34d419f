"""Additions in order: block by block, again and again on the same memory, by any number of threads."""

from __future__ import annotations

import pytest
import torch

from elastane.collective.additions import BLOCK_ELEMENTS, LocalSum, OrderedSum
from elastane.collective.order import canonical_order, chunk_elements


def _plain(vectors, partial=None):
    """One addition of whole vectors after the other."""
    for vector in vectors:
        partial = vector.clone() if partial is None else vector + partial
    return partial


@pytest.mark.parametrize("elements", [1, BLOCK_ELEMENTS - 1, BLOCK_ELEMENTS, BLOCK_ELEMENTS * 2 + 7])
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_order_is_that_of_the_vectors_in_every_run(elements, started, count):
    vectors = [torch.empty(elements) for _ in range(count)]
    out = torch.empty(elements)
    ordered = OrderedSum(vectors, out, started=started)
    for _ in range(2):
        for vector in vectors:
            vector.copy_(torch.randn(elements).exp_())
        out.copy_(torch.randn(elements))
        expected = _plain(vectors, out.clone() if started or not vectors else None)
        kept = [vector.clone() for vector in vectors]
        ordered.run()
        assert torch.equal(out, expected)
        assert all(torch.equal(vector, copy) for vector, copy in zip(vectors, kept, strict=True))


@pytest.mark.parametrize("elements", [5, 1000, BLOCK_ELEMENTS * 5 + 3])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_local_sum_does_not_depend_on_the_number_of_threads(elements, threads):
    ranks = 5
    chunk = chunk_elements(elements, 4, ranks)
    matrix, out = torch.randn(ranks, ranks * chunk).exp_(), torch.empty(ranks * chunk)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        LocalSum(matrix, out, elements, chunk).run()
    finally:
        torch.set_num_threads(before)
    for number in range(ranks):
        low, high = min(number * chunk, elements), min((number + 1) * chunk, elements)
        order = [matrix[rank, low:high] for rank in canonical_order(number, ranks)]
        assert torch.equal(out[low:high], _plain(order))
