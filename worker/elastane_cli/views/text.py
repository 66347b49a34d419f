"""Words for terminals and pages: without control characters, on one line, with counts and local times."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """Replace all control characters except newlines and tabs.

    Texts of scripts and workers are shown to operators with more rights, so they must not contain terminal
    escape sequences.
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: Text) -> Text:
    """Return the text on one line, without control characters: a reason may be a whole traceback."""
    from rich.text import Text

    flat = Text(" ").join(text.split("\n")) if "\n" in text.plain else text.copy()
    flat.expand_tabs(4)
    flat.plain = harmless(flat.plain)  # keeps the length, so the styles stay in place
    return flat


def local_time(seconds: float) -> str:
    """Format seconds since the Unix epoch as local time with milliseconds; with the date unless today."""

    moment = datetime.datetime.fromtimestamp(seconds).astimezone()
    today = datetime.datetime.now().astimezone().date()
    text = moment.strftime("%H:%M:%S.%f")[:-3]
    return text if moment.date() == today else f"{moment:%Y-%m-%d} {text}"


def counted(count: int, name: str) -> str:
    """Return a count with its noun: "1 worker", "2 workers"."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
