"""Waits of a member's step. The step is a generator that yields these objects; a driver answers them.

`drive` blocks on a member's links; `local_links.run_together` runs all members in one thread.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from elastane.pipeline.frames import FrameKey
from elastane.pipeline.links import Links

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class FrameWait:
    """Wait for a frame from a member; the driver sends it into the generator."""

    key: FrameKey
    peer: int


@dataclass(frozen=True, slots=True)
class RowsWait:
    """Wait for a tensor posted with `Links.post_rows`."""

    number: int


Wait = FrameWait | RowsWait


def drive(step: Generator[Wait, Any, Result], links: Links) -> Result:
    """Run a step to its end, blocking on the links. Raises their errors."""
    try:
        wait = next(step)
        while True:
            if isinstance(wait, FrameWait):
                wait = step.send(links.receive(wait.key, wait.peer))
            else:
                links.wait_rows(wait.number)
                wait = step.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        step.close()
