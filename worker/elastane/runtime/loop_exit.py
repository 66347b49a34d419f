"""Run an action when a script leaves a `for` loop over one of our generators before its end.

A generator is notified by GeneratorExit when it is closed. At that point it cannot tell whether the loop was
left by `break` or `return`, or by an exception propagating through the script, and an exception raised there
is discarded. So the action is deferred until the function that holds the loop continues at its next line, or
returns. An exception that leaves the function triggers neither; one that is being handled in an `except` or
`finally` of the function delays the action. The interpreter's tracing shows when that is; it is enabled for
just these few instructions.
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
"""Called with the place where the loop was left, as "train.py:31"; its errors are raised in the script
there."""

_armed: Final[dict[FrameType, list[tuple[Action, str]]]] = {}


def when_left(action: Action) -> None:
    """Run `action` once the script's function has really left its loop. Called in a generator's
    GeneratorExit.

    If nested loops are left at once, the inner one's action runs first; an action that raises prevents the
    rest.
    """
    frame = sys._getframe(1).f_back
    while frame is not None and (
        frame.f_code.co_flags & inspect.CO_GENERATOR
        or frame.f_globals.get("__name__", "").startswith("elastane.")
    ):
        frame = (
            frame.f_back
        )  # the script may iterate through other generators: tqdm, or a function of its own
    if frame is None:  # no loop is running: the interpreter is exiting
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
    """True if the function's current instruction returns; False if an exception leaves it."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN_")
