"""Draw a curve in characters: eight dots to a character (braille), with its axes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Bits of a braille character, by column and row from the top.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_LABEL_COLUMNS = 10


def draw(points: Sequence[tuple[float, float]], columns: int, rows: int) -> list[str]:
    """Draw points (x, y), x ascending, in `rows` lines of at most `columns` characters, including the x axis.

    Neighbours are connected. Non-finite values are omitted. Empty for no points, or too little room.
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    width, height = columns - _LABEL_COLUMNS - 1, rows - 1
    if not finite or width < 4 or height < 2:
        return []
    left, right = finite[0][0], finite[-1][0]
    low, high = min(y for _, y in finite), max(y for _, y in finite)
    dots_x, dots_y = width * 2 - 1, height * 4 - 1
    cells = [[0] * width for _ in range(height)]

    def place(x: float, y: float) -> tuple[int, int]:
        across = (x - left) / (right - left) if right > left else 0.0
        # Halved first: the difference of two large numbers may overflow.
        up = (y / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
        return round(across * dots_x), round((1.0 - up) * dots_y)

    before: tuple[int, int] | None = None
    for x, y in finite:
        at = place(x, y)
        for column, row in _between(before or at, at):
            cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
        before = at
    lines = []
    for number, row_cells in enumerate(cells):
        label = high if number == 0 else low if number == height - 1 else None
        text = f"{label:.4g}" if label is not None else ""
        lines.append(f"{text:>{_LABEL_COLUMNS}}│" + "".join(chr(0x2800 + cell) for cell in row_cells))
    first, last = f"{left:g}", f"{right:g}"
    gap = max(1, width - len(first) - len(last))
    lines.append(" " * _LABEL_COLUMNS + f"└{first}{' ' * gap}{last}"[: width + 1])
    return lines


def _between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots of a straight line, both ends included."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            round(start[0] + (end[0] - start[0]) * number / steps),
            round(start[1] + (end[1] - start[1]) * number / steps),
        )
        for number in range(steps + 1)
    ]
