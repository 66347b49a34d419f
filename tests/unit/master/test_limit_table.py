"""docs/limits.md lists every limit with its setting and default; log lines are limited and counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import structlog

from elastane_master.jobs.limits import Limits, clip
from elastane_master.settings import MasterSettings
from elastane_proto.log_lines import LogLimit

TABLE = Path(__file__).parents[3] / "docs" / "limits.md"


def test_the_table_lists_every_limit_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(ELASTANE_[A-Z_]+)` \| ([0-9_.]+) \|", TABLE.read_text(), re.MULTILINE))
    settings = {f"ELASTANE_{name.upper()}": field.default for name, field in Limits.model_fields.items()}
    assert {name: float(default.replace("_", "")) for name, default in rows.items()} == settings


def test_limits_are_settings_of_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTANE_JOBS_MAX", "7")
    assert MasterSettings().jobs_max == 7
    monkeypatch.setenv("ELASTANE_JOBS_MAX", "0")
    with pytest.raises(ValueError, match="jobs_max"):
        MasterSettings()


def test_long_texts_are_cut_and_say_so() -> None:
    assert clip("short", 10) == "short"
    assert clip("x" * 15, 10) == "x" * 10 + "... (5 more characters)"


def test_log_lines_of_one_kind_are_limited_and_what_is_left_out_is_told() -> None:
    now = 0.0
    limit = LogLimit(3, lambda: now)

    def log(kind: str, method: str = "info") -> dict[str, object] | None:
        try:
            return dict(limit(None, method, {"event": kind}))
        except structlog.DropEvent:
            return None

    assert [log("a") is not None for _ in range(5)] == [True, True, True, False, False]
    assert log("b") == {"event": "b"}
    assert log("a", "error") == {"event": "a"}  # errors always pass
    now = 1.0
    assert log("b") == {"event": "b", "left_out": {"a": 2}}
    assert log("a") == {"event": "a"}
    assert [log(f"kind {number}") is not None for number in range(5000)].count(True) < 1100
