"""`elastane profile`: a script is run up to its pipeline, and its units become a file for the planner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_planner.profile import Profile

SCRIPT = """\
import sys
import elastane
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

job = elastane.init(seed=1)
width = int(sys.argv[1])
units = [lambda: nn.Linear(width, 2 * width), nn.ReLU(inplace=True), lambda: nn.Linear(2 * width, 3)]
data = TensorDataset(torch.randn(64, width), torch.randint(3, (64,)))
job.prepare_pipeline(
    units,
    lambda parameters: torch.optim.AdamW(parameters),
    DataLoader(data, batch_size=4, shuffle=True),
    torch.amp.GradScaler("cpu"),
    loss_fn=nn.functional.cross_entropy,
    scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
    memory="1GiB",
    profile="this is what is written now.json",
    **(dict(static_graph=True) if len(sys.argv) > 2 else {}),
)
raise RuntimeError("nothing after prepare_pipeline runs")
"""


def _profile(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), ["profile", *map(str, arguments)])


def test_the_units_of_a_script(tmp_path: Path) -> None:
    script, output = tmp_path / "train.py", tmp_path / "out.json"
    script.write_text(SCRIPT)
    found = _profile("--json", "-o", output, "--micro-batch-sizes", "2", script, 8)
    assert found.exit_code == 0, found.output
    profile = Profile.from_json(output.read_bytes())
    units = profile.units
    assert min(profile.forward_overhead_seconds, profile.backward_overhead_seconds) > 0
    assert [unit.parameter_bytes for unit in units] == [4 * 8 * 17 + 32, 0, 4 * (16 * 3 + 3)]
    assert [unit.boundary_bytes for unit in units] == [4 * 4 * 16, 4 * 4 * 16, 4 * 4 * 3]
    assert units[0].optimizer_bytes == 2 * units[0].parameter_bytes + 2 * 4
    assert all(unit.forward_seconds > 0 for unit in units)
    halved = Profile.from_json((tmp_path / "out.2.json").read_bytes()).units
    assert [unit.boundary_bytes for unit in halved] == [2 * 4 * 16, 2 * 4 * 16, 2 * 4 * 3]
    document = json.loads(found.stdout)
    assert [entry["samples"] for entry in document["profiles"]] == [4, 2]
    assert document["profiles"][1]["forward_overhead_seconds"] == profile.forward_overhead_seconds
    assert [unit["class"] for unit in document["profiles"][0]["units"]] == ["Linear", "ReLU", "Linear"]


def test_the_units_as_a_table(tmp_path: Path) -> None:
    script, output = tmp_path / "train.py", tmp_path / "out.json"
    script.write_text(SCRIPT)
    found = _profile("-o", output, "--micro-batch-sizes", "2", script, 8)
    assert found.exit_code == 0, found.output
    for words in (
        "3 units on",
        "FORWARD",
        "ReLU",
        "SAMPLES",
        "beside its units",
        "written:",
        "next: elastane plan --profile",
    ):
        assert words in found.stdout, words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("elastane.init(seed=1).prepare()", "the script calls job.prepare"),
        ("elastane.init(seed=1)", "never called job.prepare_pipeline"),
        ("elastane.init(seed=1); raise SystemExit(3)", "the script failed"),
    ],
)
def test_a_script_without_a_pipeline(tmp_path: Path, text: str, said: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import elastane\n{text}\n")
    found = _profile("-o", tmp_path / "out.json", script)
    assert found.exit_code == 11
    assert "ELA412" in found.stderr and said in found.stderr
    assert not (tmp_path / "out.json").exists()


def test_what_training_refuses_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    found = _profile("-o", tmp_path / "out.json", script, 8, "refused")
    assert found.exit_code == 11 and "a pipeline has no static_graph" in found.stderr


def test_a_script_that_hangs_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import threading\nthreading.Event().wait()\n")
    found = _profile("-o", tmp_path / "out.json", "--timeout", 1, script)
    assert found.exit_code == 11 and "had not finished after 1 s" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "is not a file"),
        (["--steps", "3", __file__], "--steps"),
        (["--micro-batch-sizes", "4,x", __file__], "4,8,16"),
        (["-o", "/nowhere/at/all.json", __file__], "not a folder"),
    ],
)
def test_bad_usage(arguments: list[str], said: str) -> None:
    found = _profile(*arguments)
    assert found.exit_code == 2 and said in found.stderr
