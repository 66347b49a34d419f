"""Escapes text for cells of Markdown tables."""

from __future__ import annotations


def cell(text: str) -> str:
    """Return prose on one line, with all markup escaped."""
    return code_cell(text).replace("<", "&lt;").replace("*", r"\*")


def code_cell(text: str) -> str:
    """Return text for a cell between backticks, where only a bar has to be escaped."""
    return " ".join(text.split()).replace("|", r"\|")
