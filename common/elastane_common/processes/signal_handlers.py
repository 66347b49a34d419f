"""Signal handlers that are installed for the duration of a block."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Final

#: Signals with which a user, a supervisor or a closed terminal asks a process to end.
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


@contextlib.contextmanager
def signal_handlers(
    numbers: Iterable[int], handler: Handler, *, keep_ignored: bool = False
) -> Iterator[None]:
    """Handle signals in the block, and restore the previous handlers afterwards, also if a handler raises.

    keep_ignored: leave signals alone that are ignored, such as SIGHUP under nohup. Main thread only.
    """
    before: dict[int, Any] = {}
    try:
        for number in numbers:
            previous = signal.getsignal(number)
            if keep_ignored and previous is signal.SIG_IGN:
                continue
            before[number] = previous
            signal.signal(number, handler)
        yield
    finally:
        for number, previous in before.items():
            if previous is not None:  # None: installed by C code, and cannot be restored from here
                signal.signal(number, previous)
