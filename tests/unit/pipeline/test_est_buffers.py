"""Buffers by EST: all start from EST 0's, and the modules' own tensors stay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elastane.pipeline.est_buffers import EstBuffers
from elastane_common.errors import StepError


class _Count(nn.Module):
    def __init__(self, shared=None):
        super().__init__()
        self.register_buffer("count", torch.zeros(2) if shared is None else shared)

    def forward(self):
        self.count += 1


def test_every_est_starts_from_est_0_s_and_keeps_its_own():
    module = _Count()
    own = module.count
    buffers = EstBuffers({3: module})
    assert buffers.names == ["3.count"]
    for est, times in ((0, 1), (1, 5)):
        with buffers.running(est):
            for _ in range(times):
                module()
    with buffers.running(1):  # its next micro-batch
        module()
    assert [float(buffers.of(est)[0][0]) for est in (0, 1)] == [1.0, 6.0]
    assert float(own[0]) == 0.0 and own._version == 0
    buffers.adopt(buffers.of(0))
    assert module.count is own and float(own[0]) == 1.0
    buffers.begin_step()
    assert float(buffers.start_of(1)[0][0]) == 1.0


def test_a_step_that_is_given_up_leaves_nothing():
    module = _Count()
    own = module.count
    buffers = EstBuffers({0: module})
    with buffers.running(0):
        module()
    buffers.restore()
    assert module.count is own and float(own[0]) == 0.0


def test_a_forward_that_runs_again_changes_nothing():
    module = _Count()
    buffers = EstBuffers({0: module})
    start = buffers.start_of(0)
    with buffers.running(0):
        module()
    with buffers.again(start):
        module()
        assert float(module.count[0]) == 1.0
    assert float(buffers.of(0)[0][0]) == 1.0


def test_a_tensor_used_in_backward_is_not_touched_by_other_ests():
    """As with a module that uses its statistics in the graph."""
    module = _Count()
    buffers = EstBuffers({0: module})
    x = torch.ones(2, requires_grad=True)
    graphs = []
    for est in (0, 1):
        with buffers.running(est):
            module()
            if est:
                module()
            graphs.append((x * module.count).sum())
    for est, graph in enumerate(graphs):
        (gradient,) = torch.autograd.grad(graph, x)
        assert float(gradient[0]) == est + 1.0


def test_one_tensor_in_two_modules_stays_one():
    first = _Count()
    buffers = EstBuffers({0: first, 1: _Count(first.count)})
    assert len(buffers.at_start) == 1


@pytest.mark.parametrize(("change", "words"), [(torch.zeros(3), "another shape"), (None, "removed")])
def test_replaced_and_removed_buffers_are_refused(change, words):
    module = _Count()
    buffers = EstBuffers({0: module})
    with pytest.raises(StepError, match=words), buffers.running(0):
        module.count = change


def test_units_without_buffers_have_none():
    buffers = EstBuffers({0: nn.Linear(2, 2)})
    with buffers.running(0):
        pass
    assert not buffers.any and buffers.of(0) == buffers.of(7) == []
