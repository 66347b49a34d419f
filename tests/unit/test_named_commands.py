"""Messages, hints and pages of the product name commands that there are."""

from __future__ import annotations

import re
from pathlib import Path

from elastane_cli.commands.catalogue import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".html", ".js", ".toml", ".yaml", ".yml", ".proto", ".json"}
_NAMED = re.compile(r"(?:`|<code>)elastane ([a-z][a-z-]*)")


def test_every_command_that_is_named_exists() -> None:
    files = [
        file
        for root in ("master", "worker", "shard_service", "scheduler", "proto", "deploy", "examples")
        for file in (ROOT / root).rglob("*")
        if file.suffix in SUFFIXES
    ]
    named = {
        (command, file.relative_to(ROOT).as_posix())
        for file in files
        for command in _NAMED.findall(file.read_text(encoding="utf-8"))
    }
    assert len(named) > 50
    assert sorted((command, file) for command, file in named if command not in COMMANDS) == []
