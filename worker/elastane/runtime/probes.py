"""Named points in a step where a test can stop, delay or kill the process.

A fault is aimed at a step and a point, never at "after some seconds". In normal runs no function is installed
and a point costs one comparison. Points, in the order of a step:

    forward     a batch was handed to the script     all_reduce  contexts reported, gradients travel
    ahead       the optimizer may step, Prepared has not come: in place of
    prepared    the optimizer may step               applied     the step is in the weights
    task        the script gets a task that pushes, the s-th of this worker and data set, from 0 on
    hand_over   state is about to be sent/received   formed      the group of a generation stands
    undone      a step that was ahead is undone; with the step that is run next

With parameter servers a task has two: `forward`, its weights are pulled, and `pushed`; the step is its index.
"""

from __future__ import annotations

from collections.abc import Callable

Probe = Callable[[str, int], None]
#: hold(step, is_lost) returns when the step may go on, and at once when it is lost with its ring.
Hold = Callable[[int, Callable[[], bool]], None]

_installed: Probe | None = None
_hold: Hold | None = None


def install(probe: Probe | None, hold: Hold | None = None) -> None:
    """Call `probe(point, step)` at every point from now on, and `hold` after "all_reduce".

    None removes them.
    """
    global _installed, _hold
    _installed, _hold = probe, hold


def reached(point: str, step: int) -> None:
    """Called by the runtime at each point."""
    if _installed is not None:
        _installed(point, step)


def all_reducing(step: int, is_lost: Callable[[], bool]) -> None:
    """Called by the runtime at the point "all_reduce", where a step can be held until its ring changes."""
    reached("all_reduce", step)
    if _hold is not None:
        _hold(step, is_lost)
