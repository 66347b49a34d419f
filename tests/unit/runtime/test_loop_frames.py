"""The loop that asks for a mini-batch is found by its frame, however it is written, with what it calls."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from elastane.runtime.loop_carried import CarriedValueError, check_loop
from elastane.runtime.prepared_objects import PreparedObjects

SCRIPT = """\
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.head(x)

def turn(net, opt, x, decides=True):
    loss = net(x).sum() / (net.calls if decides else 1)
    opt.zero_grad()
    loss.backward()
    opt.step()

def statement(loader, net, opt):
    for x in loader:
        turn(net, opt, x)

def listed(loader, net, opt):
    return [turn(net, opt, x)
            for x in loader]

def expression(loader, net, opt):
    return sum(turn(net, opt, x) for x in loader)

def mapped(loader, net, opt):
    def step(x):
        turn(net, opt, x)
    return list(map(step, loader))

def fed(loader, net, opt):
    for x in feed(loader):
        turn(net, opt, x)

def feed(loader):
    for x in loader:
        yield x

def handed_on(loader, net, opt):
    for x in (x for x in loader):
        turn(net, opt, x)

def sound(loader, net, opt):
    for x in feed(loader):
        turn(net, opt, x, decides=False)
        if net.calls % 10 == 0:
            print(net.calls)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = tmp_path / "looping.py"
    path.write_text(SCRIPT)
    spec = importlib.util.spec_from_file_location("looping", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "looping", module)
    spec.loader.exec_module(module)
    return module


class Asking:
    """In the place of the prepared loader: looks at who asks, and has nothing to give."""

    def __init__(self, prepared: PreparedObjects) -> None:
        self.prepared = prepared

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        check_loop(sys._getframe(1), self.prepared, ())
        raise StopIteration


def run(script: ModuleType, loop: str) -> None:
    net: nn.Module = script.Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    prepared = PreparedObjects([net, optimizer, torch.utils.data.DataLoader([0])])
    getattr(script, loop)(Asking(prepared), net, optimizer)


@pytest.mark.parametrize("loop", ["statement", "listed", "expression", "mapped", "fed", "handed_on"])
def test_a_count_of_the_model_that_reaches_the_loss_is_refused(script: ModuleType, loop: str) -> None:
    with pytest.raises(CarriedValueError) as caught:
        run(script, loop)
    assert (
        "looping.py, line 10: net.calls is carried from turn to turn, and decides the loss in line 16"
        in str(caught.value)
    )


def test_one_that_is_printed_is_not(script: ModuleType) -> None:
    run(script, "sound")
