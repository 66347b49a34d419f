"""docs/security.md does what it says: its block of commands is run as it stands, training included."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import patience
from elastane_master.security.tokens import TokenTable
from slow import slow

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "two_steps.py"


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", (ROOT / "docs/security.md").read_text(), re.M | re.S)
    assert found is not None
    return found[1]


def test_the_example_of_an_entry_is_one() -> None:
    assert len(TokenTable.parse(block("toml"))) == 1


def test_every_test_and_target_that_a_claim_names_is_there() -> None:
    file, named = "", 0
    for name in re.findall(r"`([^`]+)`", (ROOT / "SECURITY.md").read_text()):
        path, separator, test = name.partition("::")
        if name.startswith("tests/") or separator:
            file = path or file
            assert (ROOT / file).exists(), name
            assert not test or f"def {test}(" in (ROOT / file).read_text(), name
            named += 1
        elif name.startswith("make "):
            assert f"\n{name.removeprefix('make ')}:" in (ROOT / "Makefile").read_text(), name
    assert named > 20


@slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="the page makes its certificates with openssl")
def test_the_commands_work_as_written(tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "elastane").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m elastane_cli "$@"\n')
    (commands / "elastane").chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ELASTANE_")}
    done = patience.run(
        # The master must not outlive a command that fails.
        ["bash", "-e", "-c", 'trap "kill \\$master 2>/dev/null || true" EXIT\n' + block("sh")],
        cwd=tmp_path,
        env={
            **clean,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SCRIPT": str(SCRIPT),
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "succeeded" in done.stdout
    secrets = [path.read_text().strip() for path in tmp_path.glob("*.token")]
    assert len(secrets) == 4
    assert not [secret for secret in secrets if secret in said]
