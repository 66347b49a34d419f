"""A curve of logged values as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastane_proto.v1 import metric_pb2


def curve_lines(series: metric_pb2.Series, columns: int, rows: int) -> list[str]:
    """Return `rows` lines at most: a title and the drawing. columns: width in characters."""
    from elastane_cli.plot import draw
    from elastane_proto.short_names import short

    last = series.points[-1]
    steps = sum(point.steps for point in series.points)
    summary = f": {last.last:.6g} at the last of {steps} steps"
    # The name comes from a script, so it must not contain terminal escape sequences.
    name = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in series.name)
    title = short(name, max(columns - len(summary), 8)) + summary
    return [title[:columns], *draw([(point.step, point.mean) for point in series.points], columns, rows - 1)]
