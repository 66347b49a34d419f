"""Draws a terminal's screen as SVG: the emulator's cells, rendered by rich, without external resources."""

from __future__ import annotations

import io
from itertools import groupby
from typing import Final

import pyte
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.style import Style
from rich.text import Text

#: pyte's colour names that differ from rich's.
_COLOURS: Final = {"brown": "yellow", "brightbrown": "bright_yellow", "default": None}


def as_svg(screen: pyte.Screen, title: str, name: str) -> str:
    """Return the whole screen with a window frame. name: makes its style names unique among pictures."""
    console = Console(
        record=True, width=screen.columns, file=io.StringIO(), force_terminal=True, color_system="truecolor",
        legacy_windows=False,
    )  # fmt: skip
    for row in range(screen.lines):
        line = Text(no_wrap=True, end="")
        cells = (screen.buffer[row][column] for column in range(screen.columns))
        for style, run in groupby(cells, key=_style):
            line.append("".join(cell.data for cell in run), style)
        console.print(line)
    return console.export_svg(title=title, unique_id=name, code_format=_without_fonts(CONSOLE_SVG_FORMAT))


def _style(cell: pyte.screens.Char) -> Style:
    return Style(color=_colour(cell.fg), bgcolor=_colour(cell.bg), bold=cell.bold, reverse=cell.reverse)


def _colour(name: str) -> str | None:
    name = _COLOURS.get(name, name) or ""
    if not name:
        return None
    if name.startswith("bright") and not name.startswith("bright_"):
        return "bright_" + name.removeprefix("bright")
    return name if not (len(name) == 6 and all(digit in "0123456789abcdef" for digit in name)) else f"#{name}"


def _without_fonts(form: str) -> str:
    """A picture in a page may fetch nothing; the browser's own monospaced font does."""
    begin, end = form.index("@font-face"), form.index(".{unique_id}-matrix")
    kept = form[:begin] + form[end:]
    return kept.replace("font-family: Fira Code, monospace", "font-family: monospace")
