"""Scripts of Accelerate with one import and the loop over epochs changed, beside Accelerate's own DDP run."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.beside import run_beside

CHANGES = {
    "from accelerate import Accelerator": "from elastane.integrations.accelerate import Accelerator",
    "    for epoch in range(args.epochs):": "    for epoch in accelerator.epochs(args.epochs):",
}


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("nlp_example.py", ["--accumulate", "2"]),
        ("nlp_example.py", ["--split", "--seedable"]),
        ("nlp_example.py", ["--mixed-precision", "bf16"]),
        ("cv_example.py", []),
    ],
)
def test_a_script_has_the_bits_of_its_own_run_under_two_kills(
    script: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    result = run_beside(script, CHANGES, tmp_path, *arguments)
    assert result.equal, result.as_json()
    assert result.ests == 3
