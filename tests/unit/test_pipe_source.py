"""What a pipeline's `pipe(batch)` is known to depend on: its loss_fn is followed."""

from __future__ import annotations

import ast
import sys
import textwrap
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from elastane.diagnose.source import examine_source
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.loop_carried import CarriedValueError, check_loop
from elastane.runtime.prepared_objects import PreparedObjects
from elastane.runtime.stock import PlainJob
from elastane.script_source import Role, carried_values, cure
from elastane.script_source.across_epochs import epoch_values, in_words
from elastane.script_source.loops import loops_in
from elastane.script_source.places import tree_of

ROLES: dict[str, Role] = {"pipe": "other", "opt": "optimizer", "job": "other", "loader": "other"}
SCRIPT = """
import functools
import torch
from torch.nn.functional import cross_entropy
class Smooth:
    alpha = 0.2
class Criterion:
    def __init__(self): self.alpha = 0.2
    def loss(self, out, y): return cross_entropy(out, y, label_smoothing=self.alpha)
    def __call__(self, out, y): return self.loss(out, y)
class Module(torch.nn.Module):
    alpha = 0.2
    def forward(self, out, y): return cross_entropy(out, y, label_smoothing=self.alpha)
def of_global(out, y): return cross_entropy(out, y, label_smoothing=s.alpha)
def of_number(out, y):
    return inner(out, y)
def inner(out, y):
    return cross_entropy(out, y) * weight
def plain(out, y): return cross_entropy(out, y, label_smoothing=0.1)
s = Smooth()
c = Criterion()
m = Module()
weight = 1.0
pipe, opt, loader = job.prepare_pipeline(units, make, data, loss_fn={loss})
for epoch in job.epochs(3):
    {first}
    for batch in loader:
        pipe(batch)
        opt.step()
        {in_loop}
    {in_epoch}
"""
LOSSES = [
    ("lambda o, y: cross_entropy(o, y, label_smoothing=s.alpha)", "s.alpha *= 0.5", "s.alpha"),
    ("of_global", "s.alpha *= 0.5", "s.alpha"),
    ("of_number", "weight = weight * 0.9", "weight"),
    ("functools.partial(of_global)", "s.alpha *= 0.5", "s.alpha"),
    ("c", "c.alpha = c.alpha * 0.5", "c.alpha"),
    ("c.loss", "c.alpha = c.alpha * 0.5", "c.alpha"),
    ("m", "m.alpha *= 0.5", "m.alpha"),
    ("(lambda o, y: plain(o, y)) if 0 else (lambda o, y: of_global(o, y))", "s.alpha *= 0.5", "s.alpha"),
]
HARMLESS = [
    ("plain", "s.alpha *= 0.5"),
    ("lambda o, y: cross_entropy(o, y, label_smoothing=0.1)", "s.alpha *= 0.5"),
    ("c.loss", "s.alpha *= 0.5"),
]


class Here:
    """A script whose loop can be asked, with its objects as they are when the loop begins."""

    def __init__(
        self, tmp_path: Path, loss: str, *, first: str = "pass", in_loop: str = "pass", in_epoch: str = "pass"
    ) -> None:
        source = SCRIPT.format(loss=loss, first=first, in_loop=in_loop, in_epoch=in_epoch)
        self.file = tmp_path / "train_of_pipe.py"
        self.file.write_text(source)
        tree = tree_of(str(self.file))
        assert tree is not None
        self.tree = tree
        self.epochs, self.turns = (loop for loop in loops_in(self.tree) if isinstance(loop, ast.For))

    def known(self) -> dict[str, Any]:
        """Run the script up to its loop."""
        before = self.file.read_text().partition("for epoch in")[0]
        job = PlainJob(WorkerEnvironment(mode="plain", progress=False), 1)
        data = DataLoader(TensorDataset(torch.ones(4, 3), torch.zeros(4, dtype=torch.long)), 2)
        module = ModuleType("train_of_pipe")
        module.__file__ = str(self.file)
        sys.modules["train_of_pipe"] = module
        names = module.__dict__
        names |= {"job": job, "units": [nn.Linear(3, 2)], "data": data}
        names["make"] = lambda ps: torch.optim.SGD(ps, lr=0.1)
        exec(compile(before, str(self.file), "exec"), names)
        return names


@pytest.mark.parametrize(("loss", "change", "name"), LOSSES)
@pytest.mark.parametrize("how", ["source", "run time"])
def test_what_changes_with_the_epochs_and_decides_the_loss(
    tmp_path: Path, loss: str, change: str, name: str, how: str
) -> None:
    script = Here(tmp_path, loss, in_epoch=change)
    names = script.known() if how == "run time" else {}
    found = epoch_values(script.tree, script.epochs, ROLES, names)
    if how == "source" and (" if " in loss or "partial" in loss):
        return  # told by its object alone
    assert [(one.name, one.kind) for one in found] == [(name, "loss")], [in_words(one) for one in found]


@pytest.mark.parametrize(("loss", "change", "name"), LOSSES)
def test_what_changes_with_the_turns_and_decides_the_loss(
    tmp_path: Path, loss: str, change: str, name: str
) -> None:
    script = Here(tmp_path, loss, in_loop=change)
    (found,) = carried_values(script.tree, script.turns, ROLES, script.known())
    assert (found.name, found.decides) == (name, "the loss")
    advice = cure(found, pipeline=True)
    assert ("use job.step" if found.counts else "job.carry") in advice
    assert "EST" not in advice and "job.register" not in advice
    assert not epoch_values(script.tree, script.epochs, ROLES, script.known()), "refused in the loop"


@pytest.mark.parametrize(("loss", "change"), HARMLESS)
def test_what_the_loss_does_not_depend_on(tmp_path: Path, loss: str, change: str) -> None:
    script = Here(tmp_path, loss, in_epoch=change)
    for names in ({}, script.known()):
        assert not epoch_values(script.tree, script.epochs, ROLES, names)
    script = Here(tmp_path, "of_global", first="s.alpha = 0.1 * epoch")
    assert not epoch_values(script.tree, script.epochs, ROLES, {})


def test_advice_for_pipelines_counts_steps() -> None:
    source = (
        "it = 0\nfor batch in loader:\n    pipe(batch)\n    it += 1\n    if it % 2 == 0: opt.step()\n    {}"
    )
    found = []
    for more in ("pass", "opt.param_groups[0]['lr'] = 1 / it"):
        tree = ast.parse(textwrap.dedent(source.format(more)))
        found.append(carried_values(tree, loops_in(tree)[0], ROLES))
    (steps,), (_, setting) = found
    assert "prepare_pipeline accumulation_steps=k" in cure(steps, pipeline=True)
    assert "a worker that joins has run fewer" in cure(setting, pipeline=True)


def test_a_pipeline_s_loop_is_refused_with_a_pipeline_s_advice(tmp_path: Path) -> None:
    script = Here(tmp_path, "of_global", in_loop="s.alpha *= 0.5")
    names = script.known()
    model = nn.Linear(2, 2)
    loader = DataLoader(TensorDataset(torch.ones(2, 2)))
    objects = PreparedObjects([model, torch.optim.SGD(model.parameters()), loader])
    above = "\n" * (script.turns.lineno - 1)
    code = compile(f"{above}for _ in ask(): pass", str(script.file), "exec")

    def ask() -> list[int]:
        check_loop(sys._getframe(1), objects, [], pipeline=True)
        return []

    with pytest.raises(CarriedValueError, match=r"s\.alpha is carried") as refused:
        FunctionType(code, {**names, "ask": ask})()
    assert "a worker that joins" in refused.value.hint and "EST" not in refused.value.hint


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        (
            {"in_epoch": "s.alpha *= 0.5"},
            "epoch variable",
            "s.alpha lives across epochs and decides the loss",
        ),
        ({"in_loop": "s.alpha *= 0.5"}, "loop variable", "s.alpha decides the loss, and the loop carries"),
        (
            {"in_loop": "weight += 1; opt.param_groups[0]['lr'] = 1 / weight"},
            "loop variable",
            "lr is set from a counter, weight: a worker that joins begins anew",
        ),
        ({"in_loop": "history.append(1)"}, "", ""),
    ],
)
def test_doctor_names_what_a_pipeline_s_loop_carries(
    tmp_path: Path, script: dict[str, str], kind: str, words: str
) -> None:
    text = "import elastane\njob = elastane.init()\n" + Here(tmp_path, "of_global", **script).file.read_text()
    found = examine_source(text)
    assert [one.kind for one in found] == ([kind] if kind else [])
    assert all(words in one.what and "EST" not in one.what + one.todo for one in found)
