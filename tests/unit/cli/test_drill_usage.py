"""`elastane drill`: what it refuses before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--ests: missing, unless --ps is given"),
        (["--ps", "1"], "--ps: somebody must take over: at least 2"),
        (["--ps", "2", "--ests", "2"], "--ps: it goes with neither --ests nor a pipeline"),
        (["--ps", "2", "--shadow", "1"], "--ps: it goes with neither --ests nor a pipeline"),
    ],
)
def test_bad_usage_is_named(arguments: list[str], said: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    result = CliRunner().invoke(build_app(), ["drill", *arguments, str(script)])
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())
