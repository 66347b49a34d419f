"""Scripts with Trainer, one import changed, beside Trainer's own DDP run."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.beside import run_beside

CHANGES = {
    "from transformers.trainer import Trainer": "from elastane.integrations.transformers import Trainer",
}


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (["--accumulate", "2", "--patience", "1"], 6),
        (["--evaluate", "4", "--max-steps", "14"], 14),
    ],
)
def test_training_has_the_bits_of_its_own_run_under_two_kills(
    arguments: list[str], steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    result = run_beside("trainer.py", CHANGES, tmp_path, *arguments)
    assert result.equal, result.as_json()
    assert result.steps == steps
