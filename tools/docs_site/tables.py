"""Text for cells of Markdown's tables."""

from __future__ import annotations


def cell(text: str) -> str:
    """Prose on one line; what would be markup is not."""
    return code_cell(text).replace("<", "&lt;").replace("*", r"\*")


def code_cell(text: str) -> str:
    """The same for text between backticks, where only a bar would end the cell."""
    return " ".join(text.split()).replace("|", r"\|")
