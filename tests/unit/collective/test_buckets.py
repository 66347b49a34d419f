"""Bucket layouts and the places of gradients in them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elastane.collective.buckets import first_layout, rebuilt_layout


def _params():
    return [
        nn.Parameter(torch.randn(300, 300)),
        nn.Parameter(torch.randn(300)),
        nn.Parameter(torch.randn(5, 2, dtype=torch.float64)),
        nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)),
        nn.Parameter(torch.randn(600, 600)),
        nn.Parameter(torch.randn(())),
    ]


def _indices(layout):
    return [[place.index for place in bucket.places] for bucket in layout]


def test_first_layout_has_one_bucket_per_dtype_in_registration_order():
    assert sorted(_indices(first_layout(_params()))) == [[0, 1, 3, 4, 5], [2]]


def test_rebuilt_layout_fills_in_the_order_in_which_gradients_became_ready():
    layout = rebuilt_layout(_params(), [5, 4, 3, 2, 1, 0])
    # 1.44 MB fill the first bucket; the rest shares the second one.
    assert sorted(_indices(layout)) == [[2], [3, 1, 0], [5, 4]]


def test_a_cap_holds_for_the_first_bucket_too():
    order = [5, 4, 3, 2, 1, 0]
    assert [3, 1, 0] in _indices(rebuilt_layout(_params(), order, bucket_cap_mb=1))
    assert [5, 4, 3, 1, 0] in _indices(rebuilt_layout(_params(), order, bucket_cap_mb=25))


def test_an_order_that_leaves_a_parameter_out_is_refused():
    with pytest.raises(AssertionError):
        rebuilt_layout(_params(), [5, 4, 3, 2, 1])


def test_views_are_disjoint_have_the_parameters_strides_and_leave_no_gap():
    params = _params()
    for bucket in rebuilt_layout(params, [5, 4, 3, 2, 1, 0]):
        memory = torch.zeros(bucket.elements + 7, dtype=bucket.dtype)
        flat = memory[3 : 3 + bucket.elements]  # a slot is a row of a larger block
        for number, (index, view) in enumerate(bucket.views(flat), start=1):
            assert view.shape == params[index].shape
            assert view.stride() == params[index].stride()
            assert not view.any()
            view.fill_(number)
        assert flat.all()
        assert not memory[:3].any()
        assert not memory[3 + bucket.elements :].any()
