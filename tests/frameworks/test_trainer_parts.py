"""Arguments and callbacks of Trainer that cannot be exact are refused by name; those that can be are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import TrainingArguments

import patience
from elastane.integrations.accelerate import AccelerateError
from elastane.integrations.transformers import ElasticTrainer
from elastane_common.exit_codes import CODE_REFUSED
from frameworks.beside import converted, run_beside
from frameworks.test_transformers import CHANGES

SECONDS_MAX = 300.0
REFUSED_ARGUMENTS: dict[str, dict[str, Any]] = {
    "fsdp": {"fsdp": "full_shard"},
    "torch_compile": {"torch_compile": True},
    "push_to_hub": {"push_to_hub": True},
    "auto_find_batch_size": {"auto_find_batch_size": True},
}
#: Of a callback: further arguments of the script, and how the refusal names it.
REFUSED_CALLBACKS = {
    "draws-in-step": ((), "a callback that draws random numbers in on_step_begin"),
    "draws-after-step": ((), "random numbers were drawn after backward"),
    "draws-in-log": ((), "a callback that draws random numbers in on_log"),
    "draws-in-evaluation": (("--evaluate", "2"), "a callback that draws random numbers in on_log"),
    "stops-training": ((), "a callback that sets should_training_stop in the middle of an epoch"),
    "stops-epoch": ((), "a callback that sets should_epoch_stop in the middle of an epoch"),
    "patience": (("--evaluate", "2"), "EarlyStoppingCallback"),
}


@pytest.mark.parametrize("name", REFUSED_ARGUMENTS)
def test_an_argument_that_cuts_the_model_or_differs_by_process_is_refused(name: str, tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **REFUSED_ARGUMENTS[name])
    with pytest.raises(AccelerateError, match=name) as refused:
        ElasticTrainer(nn.Linear(1, 1), args)
    assert refused.value.hint


def test_deepspeed_is_refused(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    args.deepspeed = {
        "zero_optimization": {"stage": 2}
    }  # the class takes it only where DeepSpeed is installed
    with pytest.raises(AccelerateError, match="deepspeed") as refused:
        ElasticTrainer(nn.Linear(1, 1), args)
    assert "DeepSpeed" in refused.value.hint


@pytest.mark.parametrize("name", REFUSED_CALLBACKS)
def test_a_callback_that_only_some_ranks_would_follow_is_refused_by_name(name: str, tmp_path: Path) -> None:
    arguments, words = REFUSED_CALLBACKS[name]
    script = converted("trainer_callbacks.py", CHANGES, tmp_path)
    elastane = Path(sys.executable).parent / "elastane"
    done = patience.run(
        [str(elastane), "run", "--ests", "3", "--workers", "2", str(script), name, *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == CODE_REFUSED and words in done.stdout, done.stdout


def test_callbacks_that_draw_between_epochs_save_in_every_process_and_stop_have_the_bits_of_ddp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    result = run_beside("trainer_callbacks.py", CHANGES, tmp_path, "between")
    assert result.equal, result.as_json()
    assert result.steps == 8
    saved = [torch.load(path) for path in tmp_path.rglob("own.pt")]
    assert len(saved) == 2  # of both runs
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])
