"""Generates the tables of docs/metrics.md from the catalogues of metrics: python tools/metrics_page.py."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOTS = ("common", "proto", "shard_service", "scheduler", "planner", "master", "worker")
sys.path[:0] = [str(ROOT / folder) for folder in ROOTS]

from elastane_common.observe import catalogue as agents  # noqa: E402 - found on the path above
from elastane_common.observe.metric import Metric  # noqa: E402
from elastane_master.metrics import catalogue  # noqa: E402

PAGE = ROOT / "docs" / "metrics.md"
_PLACE = "<!-- metrics of the {who}: made by tools/metrics_page.py -->\n{table}<!-- end -->"


def table(metrics: Iterable[Metric]) -> str:
    """Return a Markdown table with one row per metric."""
    lines = ["| metric | kind | labels | what it tells |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


def updated(page: str) -> str:
    """Return the page with current tables. Raises ValueError if the markers of a table are missing."""
    for who, metrics in (("master", catalogue.METRICS), ("agent", agents.METRICS)):
        place = re.compile(_PLACE.format(who=who, table=r"(?:[^<]*\n)?"))
        if len(place.findall(page)) != 1:
            raise ValueError(f"{PAGE} has no one place for the metrics of the {who}")
        filled = _PLACE.format(who=who, table=table(metrics))
        page = place.sub(lambda _, filled=filled: filled, page)
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
