"""A time axis: round ticks, and links to parts of it. Pure. Times are seconds since the Unix epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from elastane_master.dashboard.words import age, moment

MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 86_400.0
_STEPS: Final = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(minutes * MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * DAY for days in (1, 2, 7, 14, 30, 90, 365)),
)
TICKS_MAX: Final = 7
WINDOW_SECONDS_MIN: Final = 1.0
SPANS: Final = (MINUTE, 10 * MINUTE, HOUR, DAY)
"""Lengths of the newest part of a timeline that links offer."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part [began, ended] of a timeline. follows: `ended` is now."""

    began: float
    ended: float
    follows: bool

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Zoom:
    """A link to another part of a timeline. changes: fields of the page's query. on: it is what is shown."""

    key: str
    label: str
    title: str
    changes: dict[str, str]
    on: bool = False


def tick_text(at: float, span: float) -> str:
    """Return the label of a tick on an axis that is `span` long."""
    text = moment(at)
    if span >= DAY:
        return text[5:16]
    return text[11:16] if span >= 10 * MINUTE else text[11:]


def ticks(began: float, ended: float, ticks_max: int = TICKS_MAX) -> list[float]:
    """Return round times within [began, ended], at most `ticks_max`."""
    span = max(ended - began, 0.0)
    step = next((one for one in _STEPS if span / one <= ticks_max - 1), _STEPS[-1])
    step = max(step, span / ticks_max)
    first = math.ceil(began / step)
    count = min(math.floor(ended / step) - first + 1, ticks_max)
    return [(first + number) * step for number in range(count)]


def window(began: float, ended: float, span: str, since: str, until: str) -> Window | None:
    """Return the part of a timeline [began, ended] that is asked for; None: all of it.

    span: length of the newest part, in seconds. since, until: the ends of another. What is no number is not
    asked for.
    """
    length, first, last = _number(span), _number(since), _number(until)
    if length is not None and length > 0:
        first = ended - max(length, WINDOW_SECONDS_MIN)
        return Window(first, ended, follows=True) if first > began else None
    if first is None or last is None:
        return None
    first, last = max(min(first, last), began), min(max(first, last), ended)
    if last - first < WINDOW_SECONDS_MIN:
        middle = min(max((first + last) / 2, began), ended)
        first, last = middle - WINDOW_SECONDS_MIN / 2, middle + WINDOW_SECONDS_MIN / 2
    if first <= began and last >= ended:
        return None
    return Window(first, last, follows=False)


def zooms(began: float, ended: float, shown: Window | None) -> list[Zoom]:
    """Return the links of a timeline [began, ended] of which a part, or all of it (None), is shown."""
    links = [Zoom("all", "all", "from the first event on", _part(), shown is None)]
    for span in SPANS:
        if span < ended - began:
            on = shown is not None and shown.follows and math.isclose(shown.seconds, span)
            links.append(Zoom(f"last-{span:.0f}", _length(span), "the newest part", _part(span=span), on))
    now = shown or Window(began, ended, follows=True)
    half = now.seconds / 2
    if half >= WINDOW_SECONDS_MIN:
        quarter = half / 2
        changes = _part(span=half) if now.follows else _part(now.began + quarter, now.ended - quarter)
        links.append(Zoom("in", "+", f"zoom in: {age(half)}", changes))
    if shown is None:
        return links
    wider = max(shown.began - half, began), min(shown.ended + half, ended)
    wide = _part(span=2 * shown.seconds) if shown.follows else _part(*wider)
    links.append(Zoom("out", "−", f"zoom out: {age(2 * shown.seconds)}", wide))
    if shown.began > began:
        links.append(Zoom("earlier", "◀", "earlier", _part(shown.began - half, shown.ended - half)))
    if not shown.follows and shown.ended < ended:
        links.append(Zoom("later", "▶", "later", _part(shown.began + half, shown.ended + half)))
    return links


def _part(began: float | None = None, ended: float | None = None, span: float = 0.0) -> dict[str, str]:
    """Return the fields of the page's query for a part; without arguments, for the whole."""
    return {
        "span": f"{span:g}" if span else "",
        "began": f"{began:.1f}" if began is not None else "",
        "until": f"{ended:.1f}" if ended is not None else "",
    }


def _length(seconds: float) -> str:
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e12 else None
