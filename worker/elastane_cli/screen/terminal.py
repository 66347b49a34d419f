"""The terminal of `elastane top`: reads keys, and redraws the screen when something has changed.

Keys take effect at once, updates are drawn at most once in `interval_seconds`, and ages every second. The
terminal is restored whenever the command ends or is stopped (Ctrl-Z).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from elastane_cli.screen.keys import decode
from elastane_cli.screen.news import Watching
from elastane_cli.screen.pages import picture, rows_of
from elastane_cli.screen.view import View, press
from elastane_common.processes.signal_handlers import signal_handlers

AGE_SECONDS = 1.0
#: Put among the keys when Ctrl-Z was pressed; no key has this name.
_STOP = "stop"


class Inbox:
    """Thread-safe inbox of keys and update notices for the one thread that draws."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._keys: deque[str] = deque()
        self._news = False

    def news(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def press(self, keys: list[str]) -> None:
        with self._changed:
            self._keys.extend(keys)
            self._changed.notify_all()

    def take(self, interval_seconds: float) -> list[str]:
        """Wait for something to draw; return the keys pressed since the last call.

        A key ends the wait at once, an update after `interval_seconds`; it ends after `AGE_SECONDS` anyway.
        """
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._keys, interval_seconds)
            left = AGE_SECONDS - (time.monotonic() - began)
            self._changed.wait_for(lambda: self._keys or self._news, max(left, 0.0))
            self._news = False
            keys = list(self._keys)
            self._keys.clear()
        return keys


def show(watching: Watching, inbox: Inbox, view: View, interval_seconds: float) -> View:
    """Draw until a key ends it; return the last view. Raises the error that ended the watching."""
    news = watching.news
    console = Console(highlight=False)
    with (
        _keyboard(inbox) as keyboard,
        _notified(inbox),
        Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live,
    ):
        while True:
            watching.show(view.job)
            if news.error is not None:
                raise news.error
            columns, rows = console.size
            lines = picture(view, news, columns, rows, time.time())
            live.update(Group(*lines), refresh=True)
            for key in inbox.take(interval_seconds):
                if key == _STOP:
                    keyboard.stop(console)
                    continue
                pressed = press(view, key, rows_of(view, news, time.time()))
                if pressed is None:
                    return view
                view = pressed
                watching.show(view.job)


class _Keyboard:
    """The terminal in cbreak mode (unbuffered, without echo), until `restore`."""

    def __init__(self) -> None:
        self._file = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._file)
        self.take()

    def take(self) -> None:
        tty.setcbreak(self._file)

    def restore(self) -> None:
        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def stop(self, console: Console) -> None:
        """Restore the terminal and stop this process (Ctrl-Z); take the terminal again when it continues."""
        console.set_alt_screen(False)
        console.show_cursor(True)
        self.restore()
        # Our handler has replaced the default action, which alone stops a process.
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # returns after SIGCONT
        signal.signal(signal.SIGTSTP, handler)
        self.take()
        console.set_alt_screen(True)
        console.show_cursor(False)


@contextlib.contextmanager
def _keyboard(inbox: Inbox) -> Iterator[_Keyboard]:
    """Read keys into the inbox while the block runs; restore the terminal afterwards."""
    keys = sys.stdin.fileno()
    wake, waker = os.pipe()

    def read() -> None:
        while True:
            ready, _, _ = select.select([keys, wake], [], [])
            if wake in ready:
                return
            try:
                data = os.read(keys, 1024)
            except OSError:
                data = b""
            if not data:  # the terminal is gone
                inbox.press(["q"])
                return
            inbox.press(decode(data))

    keyboard = _Keyboard()
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield keyboard
    finally:
        os.write(waker, b"x")
        reader.join()
        keyboard.restore()
        os.close(wake)
        os.close(waker)


@contextlib.contextmanager
def _notified(inbox: Inbox) -> Iterator[None]:
    """Handle SIGWINCH and SIGTSTP in the block: redraw at once, and stop between two frames."""

    def resized(number: int, frame: FrameType | None) -> Any:
        # In a thread: the interrupted code may hold the inbox's lock, so the handler must not wait for it.
        threading.Thread(target=inbox.news, daemon=True).start()

    def stopped(number: int, frame: FrameType | None) -> Any:
        threading.Thread(target=inbox.press, args=([_STOP],), daemon=True).start()

    with signal_handlers((signal.SIGWINCH,), resized), signal_handlers((signal.SIGTSTP,), stopped):
        yield
