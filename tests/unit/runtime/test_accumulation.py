"""Mini-batches that add up to one step, in a process that is one rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_  # by name, as scripts do

from elastane.runtime.accumulation import LocalCalls, zeroing_counts
from elastane.runtime.clipping import count_clips_once


def _train(accumulation, batches, *, zero_at_end, lr=0.1):
    """A stock loop body with the calls under control; returns the weights after every optimizer step."""
    torch.manual_seed(1)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    calls = LocalCalls(model, accumulation, batches)
    seen, stepped = [], []
    data = torch.randn(batches, 4, 3)
    for _, x in calls.mini_batches(data):
        if not zero_at_end:
            calls.zero_grad(optimizer.zero_grad)
        model(x).square().sum().backward()
        calls.optimizer_step(optimizer.step)
        stepped.append(calls.stepped)
        if calls.stepped:
            seen.append(model.weight.detach().clone())
        if zero_at_end:
            calls.zero_grad(optimizer.zero_grad)
    return seen, stepped, data


def _by_hand(data, accumulation, lr=0.1):
    torch.manual_seed(1)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    seen = []
    for start in range(0, len(data), accumulation):
        optimizer.zero_grad()
        for x in data[start : start + accumulation]:
            model(x).square().sum().backward()
        optimizer.step()
        seen.append(model.weight.detach().clone())
    return seen


@pytest.mark.parametrize("zero_at_end", [False, True])
@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_steps_are_those_of_a_loop_written_for_it(accumulation, zero_at_end):
    seen, stepped, data = _train(accumulation, 7, zero_at_end=zero_at_end, lr=0.01)
    expected = _by_hand(data, accumulation, lr=0.01)
    assert len(seen) == len(expected) == -(-7 // accumulation)
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))
    assert stepped[-1], "the rest of an epoch makes a shorter step"
    assert sum(stepped) == len(expected)


def test_zeroing_counts_before_the_first_backward_and_after_the_last():
    counted = [
        zeroing_counts(first=micro == 0, sync=micro == 2, backward_done=done)
        for micro in range(3)
        for done in (False, True)
    ]
    assert counted == [True, False, False, False, False, True]


def test_a_scheduler_steps_between_epochs_and_once_a_step():
    model = nn.Linear(1, 1)
    calls = LocalCalls(model, 2, 4)
    ran = []
    for _ in calls.mini_batches(range(4)):
        calls.scheduler_step(lambda: ran.append("step"))
    calls.scheduler_step(lambda: ran.append("epoch"))
    assert ran == ["step", "step", "epoch"]
    assert not calls.stepped


@pytest.mark.parametrize("clip", ["norm", "value"])
def test_clipping_in_every_mini_batch_counts_once_a_step(clip):
    data = torch.randn(7, 4, 3)

    def train(clips):
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        calls = LocalCalls(model, 3, len(data))
        if clips == "every":
            count_clips_once(model, calls.adding)
        norms = []
        for _, x in calls.mini_batches(data):
            model(x).square().sum().backward()
            if clips == "every" or calls.sync:
                if clip == "norm":
                    norms.append(clip_grad_norm_(model.parameters(), 0.1).item())
                else:
                    clip_grad_value_(parameters=list(model.parameters()), clip_value=0.01)
            calls.optimizer_step(optimizer.step)
            calls.zero_grad(optimizer.zero_grad)
        return model.weight.detach().clone(), norms

    by_hand, norms_by_hand = train("once")
    weights, norms = train("every")
    assert torch.equal(weights, by_hand)
    assert [norms[i] for i in (2, 5, 6)] == norms_by_hand if clip == "norm" else not norms


def test_other_gradients_are_clipped_at_any_time():
    count_clips_once(nn.Linear(2, 1), lambda: True)
    other = nn.Parameter(torch.ones(4))
    other.grad = torch.ones(4)
    torch.nn.utils.clip_grad_value_(other, 0.5)
    assert torch.equal(other.grad, torch.full((4,), 0.5))
    assert torch.nn.utils.clip_grad_norm_([other], 0.1).item() == 1.0
    assert other.grad.norm() < 0.11
