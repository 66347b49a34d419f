"""Handling of signals that end a command: clean up first, and lose no signal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Final, NoReturn

from elastane_common.processes.signal_handlers import signal_handlers

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_SECONDS: Final = 0.01


@contextlib.contextmanager
def sigterm_cleans_up() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit in the block, so that processes and folders are cleaned up."""

    def leave(number: int, frame: object) -> NoReturn:
        sys.exit(128 + number)

    with signal_handlers((signal.SIGTERM, signal.SIGHUP), leave, keep_ignored=True):
        yield


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
        threading.Thread(target=send_again, args=(number,), daemon=True).start()

    def send_again(number: int) -> None:
        # Inside the hook, the handler's exception could not propagate either, and on a busy machine the main
        # thread may be in it for any length of time.
        while _is_running(hook.__code__):
            time.sleep(_AGAIN_SECONDS)
        os.kill(os.getpid(), number)

    sys.unraisablehook = hook


def _is_running(code: CodeType) -> bool:
    """Return True while the main thread runs this code."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _number(lost: UnraisableHookArgs) -> int | None:
    """Return the signal that raised a lost exception; None for an exception of another origin."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        return signal.SIGINT
    code = getattr(lost.exc_value, "code", None)
    if issubclass(lost.exc_type, SystemExit) and isinstance(code, int) and code > 128:
        return code - 128
    return None
