"""The file of `elastane trace` is tried before the workers are asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from elastane_cli.commands.captures import _kept_if_written


@pytest.mark.parametrize("name", ["missing/trace.json", "folder"])
def test_a_file_that_cannot_be_written_is_refused_beforehand(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(typer.BadParameter, match="cannot be written"), _kept_if_written(tmp_path / name):
        raise AssertionError("the trace began")


def test_nothing_is_left_of_a_trace_that_was_not_written(tmp_path: Path) -> None:
    file, older = tmp_path / "trace.json", tmp_path / "older.json"
    older.write_text("{}")
    for path in (file, older):
        with pytest.raises(KeyboardInterrupt), _kept_if_written(path):
            raise KeyboardInterrupt
    assert not file.exists() and older.read_text() == "{}"
