"""Functions of a notebook's cells as scripts, and their output and interrupts."""

from __future__ import annotations

import io
import signal
import sys
import textwrap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import elastane
from elastane.notebook import NotebookError, _run, launch, script_of
from slow import slow


def cell(text: str, folder: Any, **around: Any) -> Callable[..., Any]:
    """Define `train` as a cell does, in the notebook's variables."""
    path = folder / "cell.py"
    path.write_text(textwrap.dedent(text))
    variables: dict[str, Any] = {"__name__": "__main__", **around}
    exec(compile(path.read_text(), str(path), "exec"), variables)
    function: Callable[..., Any] = variables["train"]
    return function


SELF_CONTAINED = """
    def train(epochs, name="x"):
        import json
        class Net:
            size = 3
            half = size / 2
            def rank(self):
                return [json.dumps(one) for one in range(epochs)]
        def again():
            return train if False else Net().rank()
        print(len(again()), name)
"""


def test_a_function_becomes_a_script_that_calls_it(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    train = cell(SELF_CONTAINED, tmp_path, rank="unused", size=1, half=2)
    script = script_of(train, {"epochs": 3, "name": 'it\'s "me"'})
    exec(compile(script, "script.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == '3 it\'s "me"\n'


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("def train():\n    return torch.zeros(rows)", {}, "uses rows, torch of the notebook"),
        ("def train():\n    def inner():\n        return rows\n    return inner", {}, "uses rows of the"),
        ("def train():\n    class Net(torch.Module):\n        pass", {}, "uses torch of the notebook"),
        ("def outer():\n    x = 1\n    return lambda: x\ntrain = outer()", {}, "a cell defines with def"),
        (
            "def outer():\n    x = 1\n    def train():\n        return x\n    return train\ntrain = outer()",
            {},
            "train uses x of the notebook",
        ),
        ("train = 3", {}, "launch was given 3"),
        ("def train(epochs):\n    pass", {}, "the arguments do not fit train: missing a required"),
        ("def train(epochs):\n    pass", {"epochs": object()}, "not JSON serializable"),
        (
            "def train(epochs):\n    pass",
            {"epochs": (1, 2)},
            "the arguments epochs of train would arrive changed",
        ),
        ("def train(rates):\n    pass", {"rates": {0: 0.1}}, "the arguments rates of train would arrive"),
        ("def train():\n    return pow(2, 2)", {}, "uses pow of the notebook"),
        ("def train(a=rows):\n    pass", {}, "uses rows of the notebook"),
        ("def train(a: torch.Tensor):\n    pass", {"a": 1}, "uses torch of the notebook"),
        ("def train(*, f=lambda: rows):\n    pass", {}, "uses rows of the notebook"),
        ("@torch.no_grad\ndef train():\n    pass", {}, "train has a decorator"),
        ("async def train():\n    pass", {}, "train is no plain function"),
        ("def train():\n    yield 1", {}, "train is no plain function"),
        ("if rows:\n    def train():\n        return '''a\n        b'''", {}, "text of several lines"),
    ],
)
def test_what_workers_would_not_have_is_named(
    text: str, arguments: dict[str, Any], words: str, tmp_path: Any
) -> None:
    train = cell(text, tmp_path, torch=SimpleNamespace(no_grad=lambda f: f, Tensor=int), rows=4, pow=max)
    with pytest.raises(NotebookError) as error:
        script_of(train, arguments)
    assert words in str(error.value)


CHILD = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # one that comes before sigwait waits for it
print("ready", flush=True)
signal.sigwait([signal.SIGINT])
print("drained", file=sys.stderr)
raise SystemExit(130)
"""


class Interrupting(io.StringIO):
    """An output in which the kernel is interrupted when the child is ready."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if "ready" in text:
            signal.raise_signal(signal.SIGINT)
        return written


def test_an_interrupt_goes_to_the_command_which_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Interrupting(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert _run([sys.executable, "-c", CHILD]).returncode == 130
    assert (out.getvalue().strip(), err.getvalue().strip()) == ("ready", "drained")


TRAINS = """
    def train(path):
        import torch, elastane, beside
        job = elastane.init(seed=1)
        net = torch.nn.Linear(beside.WIDTH, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.randn(16, 2))
        model, optimizer, loader = job.prepare(net, optimizer, torch.utils.data.DataLoader(data, 2))
        for _ in job.epochs(1):
            for (x,) in loader:
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            if job.is_leader:
                torch.save(net.state_dict(), path)
"""


@slow
def test_a_cells_function_trains(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "net.pt"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("WIDTH = 2")
    elastane.notebook.launch(cell(TRAINS, tmp_path), {"path": str(saved)}, ests=2, workers="1:2")
    assert saved.is_file()
    with pytest.raises(NotebookError, match="the training of train ended with exit code 1"):
        launch(cell("def train():\n    pass", tmp_path), ests=2)
