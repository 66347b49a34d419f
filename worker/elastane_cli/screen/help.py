"""Every key of `elastane top`, for its help page and its documentation. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Binding:
    """Keys that belong together. shown: as users read them; names: as `keys.decode` returns them."""

    shown: str
    words: str
    names: tuple[str, ...] = ()


BINDINGS: Final = (
    Binding("up down, j k", "select the row above, below", ("up", "down", "j", "k")),
    Binding("page up, page down", "ten rows up, down", ("page_up", "page_down")),
    Binding("home end, g G", "first, last row", ("home", "end", "g", "G")),
    Binding("enter, right, l", "open the job or worker of the row", ("enter", "right", "l")),
    Binding("escape, left, h", "back; escape first ends a filter", ("escape", "left", "backspace", "h")),
    Binding("tab, shift-tab", "next, previous tab of a job", ("tab", "back_tab")),
    Binding("w e v c, 1 2 4 5", "workers, ESTs, events, curves", (*"wevc", *"1245")),
    Binding("t, 3", "tasks, and who holds them", ("t", "3")),
    Binding("o", "sort by the next column", ("o",)),
    Binding("r", "sort the other way round", ("r",)),
    Binding("/", "filter: only rows with a text", ("/",)),
    Binding("a", "of events: every checkpoint, or folded", ("a",)),
    Binding("d", "drain the selected worker (asks)", ("d",)),
    Binding("s", "scale the job (asks for a number)", ("s",)),
    Binding("p", "save a checkpoint now (asks)", ("p",)),
    Binding("mouse", "wheel: scroll; click: select, then open"),
    Binding("", "on a title: sort; on a tab: open it"),
    Binding("?", "this page; any key leaves it", ("?",)),
    Binding("q, Ctrl-C", "leave; Ctrl-Z: stop, fg goes on", ("q",)),
)
