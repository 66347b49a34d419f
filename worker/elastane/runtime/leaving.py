"""What is done when a script leaves a `for` loop over one of our generators before its end.

A generator learns of it by a GeneratorExit, as it is thrown away. There is no telling there whether the loop
was left by `break` or `return`, or by an exception that is on its way through the script; and nothing that is
raised there reaches anybody. So what is to be done waits until the function that holds the loop goes on: at
its next line, or where it returns. An exception that leaves the function comes to neither, and one that an
`except` or `finally` of the function has in hand is waited out. The interpreter's tracing says when that
is; it is switched on for these few instructions only.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from elastane.script_source.places import place_of

Action = Callable[[str], None]
"""Given the place where the loop was left, as "train.py:31"; what it raises is raised in the script there."""

_armed: Final[dict[FrameType, list[tuple[Action, str]]]] = {}


def when_left(action: Action) -> None:
    """Do `action` once the script's function has really left its loop. Called in a generator's GeneratorExit.

    Of nested loops that are left at once, the inner one's action comes first, and one that raises is the
    last.
    """
    frame = sys._getframe(1).f_back
    while frame is not None and (
        frame.f_code.co_flags & inspect.CO_GENERATOR
        or frame.f_globals.get("__name__", "").startswith("elastane.")
    ):
        frame = (
            frame.f_back
        )  # the script may look at the loop through generators: tqdm, a function of its own
    if frame is None:  # nobody is in a loop: the interpreter ends
        return
    place = place_of(frame)
    if frame in _armed:
        _armed[frame].append((action, place))
        return
    _armed[frame] = [(action, place)]
    before, local_before = sys.gettrace(), frame.f_trace

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        goes_on = event == "line" and sys.exc_info()[1] is None
        returns = event == "return" and _is_return(frame)
        if goes_on or event == "return":
            frame.f_trace = local_before
            sys.settrace(before)
            actions = _armed.pop(frame)
            if goes_on or returns:
                for act, left_at in actions:
                    act(left_at)
            return None
        return trace

    frame.f_trace = trace
    sys.settrace(lambda frame, event, argument: None)


def _is_return(frame: FrameType) -> bool:
    """Whether the function returns, or an exception leaves it: the instruction it is at."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN_")
