"""Draws the pictures of docs/benchmarks.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

MET, MISSED, OPEN = "#2e7d32", "#c62828", "#546e7a"


def draw(name: str, report: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Draw the ratios and plots of a report into the folder; return each file's name with its title.

    report: as returned by `Report.as_dict`. The same figures give identical files.
    """
    matplotlib.rcParams.update({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 9})
    drawn = []
    rows = [row for row in report["rows"] if row["ratio"] is not None]
    if rows:
        _bars(rows, folder / f"{name}.svg")
        drawn.append((f"{name}.svg", f"{name}: ratios to the peers"))
    for plot in report["plots"]:
        _lines(plot, folder / f"{name}-{plot['name']}.svg")
        drawn.append((f"{name}-{plot['name']}.svg", plot["title"]))
    return drawn


def _bars(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw a bar per case from 1 to its ratio, on a logarithmic axis, with a tick at its target."""
    figure, axes = plt.subplots(figsize=(8, 0.6 + 0.24 * len(rows)), layout="constrained")
    for place, row in enumerate(reversed(rows)):
        colour = {None: OPEN, True: MET, False: MISSED}[row["met"]]
        axes.plot([1, row["ratio"]], [place, place], color=colour, linewidth=5, solid_capstyle="butt")
        if row["target"] and not row["target_absolute"]:
            axes.plot([row["target"]], [place], marker="|", markersize=11, color="black", linestyle="")
    axes.set_yticks(
        range(len(rows)), [f"{row['case']} ({row['better']} is better)" for row in reversed(rows)]
    )
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("Elastane / peer; | is the target")
    axes.grid(axis="x", which="both", alpha=0.25)
    _save(figure, file)


def _lines(plot: dict[str, Any], file: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for line, points in plot["lines"].items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=line)
    if plot["log_x"]:
        axes.set_xscale("log")
    if plot["log_y"]:
        axes.set_yscale("log")
    axes.set(title=plot["title"], xlabel=plot["x_label"], ylabel=plot["y_label"])
    axes.grid(alpha=0.25, which="both")
    axes.legend()
    _save(figure, file)


def _save(figure: Any, file: Path) -> None:
    figure.savefig(file, metadata={"Date": None}, facecolor="white")
    plt.close(figure)
