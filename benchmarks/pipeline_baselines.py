"""Our plans of public models beside those of other systems, all made synchronous, by the same simulator.

    python benchmarks/pipeline_baselines.py FOLDER [--picture FILE.svg] [--json [FILE]]

FOLDER contains PipeDream's profiles, NAME.txt; each is divided into 12 units, and its batch into 8
micro-batches. There are three topologies. Time is simulated and the search has no time limit, so the figures
do not depend on the machine.
"""

from __future__ import annotations

import argparse
from html import escape
from math import inf
from pathlib import Path

from harness import Report, Row, Series, run_benchmark
from pipeline_instances import divided, reference_topologies

from elastane_planner.baselines import baselines
from elastane_planner.device_order import device_order
from elastane_planner.errors import PlanError
from elastane_planner.pipedream import coalesced, read_graph
from elastane_planner.planner import make_plan

UNITS, MICRO_BATCHES = 12, 8
COLOURS = {
    "data parallel": "#0072b2",
    "GPipe": "#d55e00",
    "1F1B": "#e69f00",
    "PipeDream": "#cc79a7",
    "HetPipe": "#009e73",
}
SHOWN_MAX = 5.0
"""Bars of ratios above this are truncated in the picture."""


def measure(arguments: argparse.Namespace, report: Report) -> None:
    """Plan each model on each topology."""
    ratios: dict[str, dict[str, float]] = {}
    files = sorted(arguments.folder.glob("*.txt"))
    if not files:
        raise SystemExit(f"{arguments.folder} has no NAME.txt")
    for topology, cluster in reference_topologies().items():
        for file in files:
            try:
                profile = divided(coalesced(read_graph(file.read_text()), UNITS), MICRO_BATCHES)
            except PlanError as error:
                raise SystemExit(f"{file}: {error}") from error
            answer = make_plan(profile, cluster, MICRO_BATCHES)
            case = f"{file.stem} on {topology}"
            ratios[case] = {}
            order = device_order(cluster, range(len(cluster.devices)))
            for other in baselines(profile, cluster, MICRO_BATCHES, order):
                if other.step_seconds == inf:
                    continue
                ratios[case][other.name] = other.step_seconds / answer.step_seconds
                report.rows.append(
                    Row(
                        f"{case}, {other.name}",
                        Series([1000 * answer.step_seconds], "ms"),
                        Series([1000 * other.step_seconds], "ms"),
                        other.name,
                        target=1.0,
                    )
                )
    if arguments.picture is not None:
        arguments.picture.write_text(picture(ratios))


def picture(ratios: dict[str, dict[str, float]]) -> str:
    """Draw the step times of other plans relative to ours: a group of bars for each case."""
    width, top, height, left, bar = 9.0, 40, 220, 50, 9.0
    names = list(COLOURS)
    group = bar * len(names) + 14
    total = left + group * len(ratios) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total:.0f} {top + height + 110}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{total:.0f}" height="{top + height + 110}" fill="white"/>',
        f'<text x="{left}" y="20" font-size="14">Step of other plans, in steps of ours</text>',
    ]
    for value in range(int(SHOWN_MAX) + 1):
        y = top + height * (1 - value / SHOWN_MAX)
        stroke = "#444" if value in (0, 1) else "#ddd"
        parts += [
            f'<path d="M{left} {y:.1f}H{total - 20:.0f}" stroke="{stroke}"/>',
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value}</text>',
        ]
    for place, (case, found) in enumerate(ratios.items()):
        x = left + 7 + group * place
        for number, name in enumerate(names):
            ratio = found.get(name, 0.0)
            shown = min(ratio, SHOWN_MAX)
            y = top + height * (1 - shown / SHOWN_MAX)
            parts.append(
                f'<rect x="{x + bar * number:.1f}" y="{y:.1f}" width="{width - 1:.1f}" '
                f'height="{height * shown / SHOWN_MAX:.1f}" fill="{COLOURS[name]}"><title>'
                f"{escape(case)}, {name}: {ratio:.2f}</title></rect>"
            )
            if ratio > SHOWN_MAX:
                parts.append(
                    f'<text x="{x + bar * number + 4:.1f}" y="{top - 4}" font-size="8" text-anchor="middle">'
                    f"{ratio:.0f}</text>"
                )
        middle = x + bar * len(names) / 2
        parts.append(
            f'<text transform="translate({middle:.1f} {top + height + 12}) rotate(40)">{escape(case)}</text>'
        )
    x = left
    for name, colour in COLOURS.items():
        y = top + height + 92
        parts += [
            f'<rect x="{x}" y="{y}" width="11" height="11" fill="{colour}"/>',
            f'<text x="{x + 16}" y="{y + 10}">{name}</text>',
        ]
        x += 110
    return "\n".join([*parts, "</svg>"]) + "\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the profiles and the picture."""
    parser.add_argument("folder", type=Path, help="with PipeDream's profiles")
    parser.add_argument("--picture", type=Path, help="write the ratios as SVG")


if __name__ == "__main__":
    run_benchmark("pipeline_baselines", __doc__ or "", measure, add_options)
