"""The terminal itself: keys as they are pressed, a picture as often as there is something new.

Keys are answered at once, news at most once in `interval_seconds`; ages grow every second. Whatever ends or
stops it (Ctrl-Z), the terminal is as it was before.
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

from elastane.screen.keys import decode
from elastane.screen.news import Watching
from elastane.screen.pages import picture, rows_of
from elastane.screen.view import View, press

AGE_SECONDS = 1.0
#: Put among the keys when Ctrl-Z was pressed; no key is called so.
_STOP = "stop"


class Inbox:
    """Where keys and news arrive for the one thread that draws."""

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
        """The keys pressed; without any it returns for news, after `interval_seconds`, or as time passes."""
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
    """Draw until a key says to leave; returns the last view. Raises the error that ended the news."""
    news = watching.news
    console = Console(highlight=False)
    with (
        _keyboard(inbox) as keyboard,
        _told(inbox),
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
    """The terminal's keys, one by one and unechoed, until `restore`."""

    def __init__(self) -> None:
        self._file = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._file)
        self.take()

    def take(self) -> None:
        tty.setcbreak(self._file)

    def restore(self) -> None:
        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def stop(self, console: Console) -> None:
        """Leave the screen to the shell, and take it again when this process goes on."""
        console.set_alt_screen(False)
        console.show_cursor(True)
        self.restore()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self.take()
        console.set_alt_screen(True)
        console.show_cursor(False)


@contextlib.contextmanager
def _keyboard(inbox: Inbox) -> Iterator[_Keyboard]:
    """Keys arrive in the inbox while the block runs."""
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
def _told(inbox: Inbox) -> Iterator[None]:
    """A new size is drawn at once, and Ctrl-Z is obeyed between two pictures."""

    def resized(number: int, frame: FrameType | None) -> Any:
        threading.Thread(target=inbox.news, daemon=True).start()  # the handler may have its lock in hand

    def stopped(number: int, frame: FrameType | None) -> Any:
        threading.Thread(target=inbox.press, args=([_STOP],), daemon=True).start()

    before = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGWINCH, resized), (signal.SIGTSTP, stopped))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
