"""What scripts written for DistributedDataParallel ask of a prepared model."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from elastane.runtime.wrapper_names import WrapperCallError, give_wrapper_names


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += self.training
        return self.body(x)


@pytest.fixture
def net() -> Net:
    model = Net()
    give_wrapper_names(model)
    return model


def test_module_is_the_model_without_the_wrapper_s_names(net: Net) -> None:
    inner = net.module
    assert type(inner) is Net and isinstance(net, Net) and type(net).__name__ == "Net"
    assert not hasattr(inner, "module")
    while hasattr(net, "module"):  # as libraries unwrap
        net = net.module  # type: ignore[assignment]
    assert net is inner


def test_both_are_one_model(net: Net) -> None:
    inner: Net = net.module  # type: ignore[assignment]
    inner.eval()
    assert not net.training
    net.train()
    assert inner.training
    inner(torch.ones(1, 2))
    assert float(net.count) == 1.0
    net.extra = nn.Linear(1, 1)
    assert inner.extra is net.extra
    assert list(net.state_dict()) == list(inner.state_dict())
    assert [name for name, _ in net.named_modules()] == ["", "body", "extra"]
    assert "module" not in repr(net)


def test_copies_and_files_are_of_the_script_s_own_class(net: Net) -> None:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)):
        assert type(other) is Net
        assert torch.equal(other.body.weight, net.body.weight)
        assert other.body.weight is not net.body.weight


@pytest.mark.parametrize("name", ["no_sync", "register_comm_hook", "join", "_set_static_graph"])
def test_what_decides_how_gradients_are_summed_is_refused(net: Net, name: str) -> None:
    with pytest.raises(WrapperCallError, match=rf"model\.{name}\(\) is a method of DistributedDataParallel"):
        getattr(net, name)()
    assert not hasattr(net.module, name)
    net.require_backward_grad_sync = True  # type: ignore[assignment]
    with pytest.raises(WrapperCallError, match="require_backward_grad_sync = False"):
        net.require_backward_grad_sync = False  # type: ignore[assignment]


def test_names_of_the_script_s_own_stay() -> None:
    class Wrapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1)

    class Joining(nn.Module):
        def join(self) -> str:
            return "own"

    wrapping, joining = Wrapping(), Joining()
    give_wrapper_names(wrapping), give_wrapper_names(joining)
    assert type(wrapping) is Wrapping and type(wrapping.module) is nn.Linear
    assert joining.join() == "own"
