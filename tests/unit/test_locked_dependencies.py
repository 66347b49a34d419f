"""requirements.lock says the same as constraints.txt, and says it with hashes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_pin_is_locked_with_a_hash_and_nothing_else_is() -> None:
    pinned = {
        (re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower(), line.partition("==")[2].lower())
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    locked = set()
    for line in lines:
        found = re.fullmatch(r"(\S+)==(\S+) +(?:--hash=sha256:[0-9a-f]{64} *)+", line)
        assert found is not None, line
        locked.add((found[1], found[2]))
    assert len(locked) == len(lines)
    torch = {pin for pin in pinned if pin[0] == "torch"}
    assert locked == pinned - torch, "run: make lock"
    assert len(torch) == 1
