"""Signals that end a command: each leaves nothing behind, and none is lost."""

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
    """SIGTERM and SIGHUP leave as Ctrl-C does: no process and no temporary folder stays behind."""

    def leave(number: int, frame: object) -> NoReturn:
        sys.exit(128 + number)

    wanted = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in wanted}  # not what nohup has turned off
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def keep_signals() -> None:
    """Sends a signal again whose exception nobody could raise. Called once by the console script.

    Python runs a signal's handler between any two instructions, also in a `__del__` or a callback from C. An
    exception cannot leave these: the interpreter prints it as ignored, and the command would go on as if
    Ctrl-C had never been pressed.
    """
    before = sys.unraisablehook

    def hook(lost: UnraisableHookArgs) -> None:
        number = _number(lost)
        if number is None or threading.current_thread() is not threading.main_thread():
            before(lost)
            return
        # Not at once: the handler would run in this very call, from which no exception leaves either.
        again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    sys.unraisablehook = hook


def _number(lost: UnraisableHookArgs) -> int | None:
    """The signal that a lost exception stands for."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        return signal.SIGINT
    code = getattr(lost.exc_value, "code", None)
    if issubclass(lost.exc_type, SystemExit) and isinstance(code, int) and code > 128:
        return code - 128
    return None
