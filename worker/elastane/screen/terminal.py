"""The terminal itself: keys as they are pressed, a picture as often as there is something new.

Keys are answered at once, news at most once in `interval_seconds`; ages grow every second. Whatever ends it,
the terminal is as it was before.
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
        _keyboard(inbox),
        _told_of_resizes(inbox),
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
                pressed = press(view, key, rows_of(view, news, time.time()))
                if pressed is None:
                    return view
                view = pressed
                watching.show(view.job)


@contextlib.contextmanager
def _keyboard(inbox: Inbox) -> Iterator[None]:
    """Keys come one by one, unechoed, while the block runs."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    wake, waker = os.pipe()

    def read() -> None:
        while True:
            ready, _, _ = select.select([keyboard, wake], [], [])
            if wake in ready:
                return
            data = os.read(keyboard, 1024)
            if not data:  # the terminal is gone
                inbox.press(["q"])
                return
            inbox.press(decode(data))

    reader = threading.Thread(target=read, daemon=True)
    tty.setcbreak(keyboard)
    reader.start()
    try:
        yield
    finally:
        os.write(waker, b"x")
        reader.join()
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        os.close(wake)
        os.close(waker)


@contextlib.contextmanager
def _told_of_resizes(inbox: Inbox) -> Iterator[None]:
    def resized(number: int, frame: FrameType | None) -> Any:
        threading.Thread(target=inbox.news, daemon=True).start()  # the handler may have its lock in hand

    before = signal.signal(signal.SIGWINCH, resized)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
