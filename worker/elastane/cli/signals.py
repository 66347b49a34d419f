"""Handling of signals that end a command: clean up first, and lose no signal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_SECONDS: Final = 0.01


@contextlib.contextmanager
def sigterm_cleans_up() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit in the block, so that processes and folders are cleaned up."""

    def leave(number: int, frame: object) -> NoReturn:
        sys.exit(128 + number)

    wanted = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in wanted}  # not a SIGHUP ignored by nohup
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def keep_signals() -> None:
    """Install a hook that sends a signal again if its exception was lost. Called once by the console script.

    Python runs a signal handler between any two instructions, also in a `__del__` or a callback from C. An
    exception cannot propagate out of these: the interpreter prints it as ignored, and the command would go
    on as if Ctrl-C had never been pressed.
    """
    before = sys.unraisablehook

    def hook(lost: UnraisableHookArgs) -> None:
        number = _number(lost)
        if number is None or threading.current_thread() is not threading.main_thread():
            before(lost)
            return
        # Delayed: now, the handler would run inside this hook, which cannot propagate exceptions either.
        again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    sys.unraisablehook = hook


def _number(lost: UnraisableHookArgs) -> int | None:
    """Return the signal that raised a lost exception; None for an exception of another origin."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        return signal.SIGINT
    code = getattr(lost.exc_value, "code", None)
    if issubclass(lost.exc_type, SystemExit) and isinstance(code, int) and code > 128:
        return code - 128
    return None
