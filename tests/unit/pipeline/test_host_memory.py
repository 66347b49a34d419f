"""Activations in the host's memory: equal gradients, bounded, freed with their graph."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from elastane.pipeline.host_memory import HostMemory


@pytest.fixture
def make():
    made = []

    def build(bytes_max=None):
        made.append(HostMemory(torch.device("cpu"), bytes_max))
        return made[-1]

    yield build
    for host in made:
        host.close()


def _model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(), nn.Linear(8 * 36, 4))


def _gradients(model, x, host=None):
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    model.zero_grad()
    if host is None:
        model(x).sum().backward()
    else:
        with host.keeping(lambda tensor: tensor.untyped_storage().data_ptr() in weights):
            loss = model(x).sum()
        swapped = host.bytes_now
        loss.backward()
        del loss
        return [p.grad.clone() for p in model.parameters()], swapped
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_equal_and_memory_is_freed(make, form):
    host = make()
    x = torch.randn(16, 3, 8, 8).contiguous(memory_format=form)
    expected = _gradients(_model(), x)
    found, swapped = _gradients(_model(), x, host)
    assert all(map(torch.equal, found, expected))
    gc.collect()
    assert swapped == host.bytes_most > 30_000 and host.bytes_now == host.bytes_refused == 0


def test_what_finds_no_room_stays_where_it_is(make):
    host = make(20_000)
    x = torch.randn(16, 3, 8, 8)
    expected = _gradients(_model(), x)
    found, swapped = _gradients(_model(), x, host)
    assert all(map(torch.equal, found, expected))
    assert 0 < swapped <= host.bytes_most <= 20_000 < host.bytes_refused


def test_a_graph_that_is_given_up_frees_its_memory(make):
    host = make()
    model, x = _model(), torch.randn(16, 3, 8, 8)
    with host.keeping(lambda tensor: False):
        loss = model(x).sum()
    assert host.bytes_now > 0
    del loss
    host.close()  # whose thread may have been copying
    gc.collect()
    assert host.bytes_now == 0


def test_a_failed_copy_is_raised_where_the_tensor_is_needed(make, monkeypatch):
    host = make()
    monkeypatch.setattr(host, "_copy", lambda kept: 1 / 0)
    with host.keeping(lambda tensor: False):
        loss = _model()(torch.randn(16, 3, 8, 8)).sum()
    with pytest.raises(ZeroDivisionError):
        loss.backward()


def test_close_may_be_called_twice(make):
    host = make()
    host.close()
    host.close()
