"""What enters a stage takes part in autograd as in the uncut model."""

from __future__ import annotations

import torch

from elastane.pipeline.boundary import enter


def test_gradients_are_those_autograd_computed_with_their_strides():
    x = torch.randn(3, 4)
    (given,), gradients = enter([x.clone()], [True])
    (given.t() * torch.ones(4, 3)).sum().backward()
    (found,) = gradients.values
    leaf = x.clone().requires_grad_()
    (leaf.t() * torch.ones(4, 3)).sum().backward()
    assert torch.equal(found, leaf.grad)
    assert found.stride() != leaf.grad.stride()


def test_a_stage_may_write_in_place_to_what_it_gets():
    for others in (0, 2):
        given, gradients = enter([torch.randn(3) for _ in range(others + 1)], [True] * (others + 1))
        given[0].mul_(2).relu_().sum().backward()
        assert gradients.values[0] is not None
        assert gradients.values[1:] == (None,) * others


def test_what_wants_no_gradient_and_what_is_not_used_has_none():
    given, gradients = enter([torch.arange(3), torch.randn(3), torch.randn(3)], [False, True, True])
    assert not given[0].requires_grad
    (given[2] * given[0]).sum().backward()
    assert gradients.values[0] is None
    assert torch.equal(gradients.values[1], torch.arange(3.0))
    assert enter([torch.randn(3)], [False])[1].values == ()


def test_a_tensor_used_by_two_paths_gets_their_sum():
    (given,), gradients = enter([torch.ones(2)], [True])
    (given * 2 + given * 3).sum().backward()
    assert torch.equal(gradients.values[0], torch.full((2,), 5.0))
