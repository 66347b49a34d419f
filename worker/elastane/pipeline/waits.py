"""What a member's step waits for. The step is a generator that yields these; a driver answers.

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
    """A frame from a member; it is sent into the generator."""

    key: FrameKey
    peer: int


@dataclass(frozen=True, slots=True)
class RowsWait:
    """A tensor that was posted (`Links.post_rows`)."""

    number: int


Wait = FrameWait | RowsWait


def drive(step: Generator[Wait, Any, Result], links: Links) -> Result:
    """Run a step to its end, blocking on the links. Raises what they raise."""
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
