"""A script of Fabric with three lines changed beside its own DDP run, and what is refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import patience
from elastane_common.exit_codes import CODE_REFUSED
from frameworks.beside import converted, run_beside

CHANGES = {
    "from lightning.fabric import Fabric": "from elastane.integrations.lightning import Fabric",
    "for epoch in range(args.epochs):": "for epoch in fabric.epochs(args.epochs):",
    '    right, seen = (int(one) for one in fabric.all_reduce([right, seen], reduce_op="sum"))': "",
}
SECONDS_MAX = 300.0
SETUP = "model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)"
STEP = "        optimizer.step()"
#: What is refused: the lines that change besides, and how the refusal names it.
REFUSED = {
    "deepspeed": ({'strategy="ddp"': 'strategy="deepspeed"'}, "strategy='deepspeed'"),
    "fsdp": ({'strategy="ddp"': 'strategy="fsdp"'}, "strategy='fsdp'"),
    "fp16": ({"precision=args.precision": 'precision="16-mixed"'}, "precision='16-mixed'"),
    "accumulation": (
        {"        fabric.backward(loss)": "        with fabric.no_backward_sync(model): loss.backward()"},
        "no_backward_sync",
    ),
    "a sum over ranks": ({STEP: f"{STEP}\n        fabric.all_reduce(loss)"}, "all_reduce"),
    "a gathered value": (
        {"    scheduler.step()": "    scheduler.step(); fabric.all_gather(loss)"},
        "all_gather",
    ),
    "a save in a step": (
        {STEP: f'{STEP}\n        fabric.save("digits.pt", {{"model": model}})'},
        "save in the loop over the training loader",
    ),
    "an evaluation in a step": ({STEP: f"{STEP}\n        list(test_loader)"}, "a loop over another loader"),
    "a shuffled evaluation": ({"batch_size=32": "batch_size=32, shuffle=True"}, "with shuffle=True"),
    "random numbers in evaluation": (
        {"            seen += len(target)": "            seen += len(target); torch.rand(1)"},
        "random numbers are drawn in the loop over another loader",
    ),
    "plain epochs": (
        {"for epoch in fabric.epochs(args.epochs):": "for epoch in range(args.epochs):"},
        "before fabric.epochs",
    ),
    "nothing set up": ({SETUP: ""}, "epochs with 0 models, 0 optimizers"),
    "data workers": ({"batch_size=10, ": "batch_size=10, num_workers=1, "}, "seed_everything(workers=True)"),
}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_script_of_fabric_has_the_bits_of_its_own_run_under_two_kills(
    precision: str, tmp_path: Path
) -> None:
    result = run_beside("fabric_digits.py", CHANGES, tmp_path, "--precision", precision)
    assert result.equal, result.as_json()
    assert result.ests == 3 and result.steps == 3 * 14
    stock, elastic = (
        torch.load(tmp_path / "proof" / run / "work" / "digits.pt") for run in ("reference", "run-1")
    )
    assert (elastic["right"], elastic["seen"]) == (stock["right"], stock["seen"])
    assert stock["model"].keys() == elastic["model"].keys()
    assert all(torch.equal(stock["model"][name], elastic["model"][name]) for name in stock["model"])


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_ranks_of_one_process_cannot_do_is_refused_by_name(what: str, tmp_path: Path) -> None:
    changes, words = REFUSED[what]
    script = converted("fabric_digits.py", CHANGES, tmp_path)
    text = script.read_text()
    for before, after in changes.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    script.write_text(text)
    done = patience.run(
        [str(Path(sys.executable).parent / "elastane"), "run", "--ests", "3", "--workers", "1", str(script)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == CODE_REFUSED and words in done.stdout, done.stdout
    assert "ELA369" in done.stdout


def without_a_master(tmp_path: Path, epochs: str) -> subprocess.CompletedProcess[str]:
    changes = {**CHANGES, "for epoch in range(args.epochs):": f"for epoch in fabric.epochs({epochs}):"}
    script = converted("fabric_digits.py", changes, tmp_path)
    script.write_text(script.read_text().replace("devices=3", "devices=1"))
    return patience.run(
        [sys.executable, str(script), "--epochs", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
    )


def test_without_a_master_a_limit_of_steps_is_refused_by_name(tmp_path: Path) -> None:
    done = without_a_master(tmp_path, "args.epochs, max_steps=3")
    assert done.returncode != 0
    assert "ELA369" in done.stdout and "max_steps" in done.stdout and "count the steps" in done.stdout


def test_without_a_master_it_is_fabrics_own_class(tmp_path: Path) -> None:
    done = without_a_master(tmp_path, "args.epochs")
    assert done.returncode == 0 and "epoch 0: " in done.stdout, done.stdout
