"""docs/elasticjob.md names every phase, condition, reason and event that there is, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from elastane_operator.decisions import actions, status

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "elasticjob.md").read_text()
SOURCE = "\n".join(path.read_text() for path in sorted((ROOT / "deploy" / "elastane_operator").rglob("*.py")))


def section(title: str) -> set[str]:
    """The words of the first column of a section's table."""
    part = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in part.splitlines() if line.startswith("| ")][1:]
    return {word for cell in cells for word in re.findall(r"\b[A-Z]\w+", cell)}


def test_every_phase_is_there() -> None:
    assert section("Phases") == set(get_args(status.Phase))


def test_every_condition_is_there_with_its_reasons() -> None:
    assert section("Conditions") == set(re.findall(r"ctx\.condition\(\s*\"(\w+)\"", SOURCE)) | {"Accepted"}
    reasons = set(re.findall(r"life\.finish\(ctx, \"Failed\", \"(\w+)\"", SOURCE))
    reasons |= set(re.findall(r"ctx\.fault = \(\"(\w+)\"", SOURCE)) | {"PermanentExit", "ActionFailed"}
    assert reasons <= set(re.findall(r"\w+", PAGE))


def test_every_event_is_there_and_no_other() -> None:
    posted = set(re.findall(r"(?:ctx\.note|Note)\(\s*\"(?:Normal|Warning)\",\s*\"(\w+)\"", SOURCE))
    posted |= set(re.findall(r"return \"(\w+)\", (?:f\"|name|kind)", SOURCE))
    [what] = [field for field in actions.AskMaster.__annotations__ if field == "what"]
    asked = re.findall(r"what: Literal\[(.*?)\]", SOURCE)[0]
    posted |= {f"Master{each}" for each in re.findall(r"\w+", asked)} if what else set()
    assert section("Events") == posted
