"""The terminal of `elastane top`: reads keys and the mouse, and redraws the screen after changes.

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
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from elastane_cli.screen.keys import decode
from elastane_cli.screen.news import Watching
from elastane_cli.screen.operating import Operator
from elastane_cli.screen.pages import picture
from elastane_cli.screen.view import Input, Leave, View, press
from elastane_common.processes.signal_handlers import signal_handlers

AGE_SECONDS = 1.0
#: Put among the keys when Ctrl-Z was pressed, and when the terminal is gone; no key has these names.
_STOP, _GONE = "stop", "gone"
_READ_BYTES = 1024
#: Presses and releases of buttons and turns of the wheel (1000), with positions as decimal numbers (1006).
_MOUSE_ON, _MOUSE_OFF = "\x1b[?1000h\x1b[?1006h", "\x1b[?1006l\x1b[?1000l"


class Inbox:
    """Thread-safe inbox of keys, answers and news for the one thread that draws."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._keys: deque[Input] = deque()
        self._news = False

    def news(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def press(self, keys: Sequence[Input]) -> None:
        with self._changed:
            self._keys.extend(keys)
            self._changed.notify_all()

    def take(self, interval_seconds: float) -> list[Input]:
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


def show(
    watching: Watching, operator: Operator, inbox: Inbox, view: View, interval_seconds: float, *, mouse: bool
) -> View:
    """Draw until a key ends it; return the last view. Raises the error that ended the watching.

    mouse: take the terminal's mouse, which then selects no text.
    """
    news = watching.news
    console = Console(highlight=False)
    with (
        _keyboard(inbox) as keyboard,
        _notified(inbox),
        Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live,
        _mouse(mouse) as pointer,
    ):
        while True:
            watching.show(view.job)
            if news.error is not None:
                raise news.error
            columns, rows = console.size
            shown = picture(view, news, columns, rows, time.time())
            watching.look_at(view.worker_of(shown.layout.rows))
            live.update(Group(*shown.lines), refresh=True)
            for given in inbox.take(interval_seconds):
                if given == _STOP:
                    with pointer.released():
                        keyboard.stop(console)
                    continue
                if given == _GONE:
                    return view
                view, effect = press(view, given, shown.layout)
                if isinstance(effect, Leave):
                    return view
                if effect is not None:
                    operator.begin(effect)
                watching.show(view.job)
                # The next key of the same read finds what this one brought up.
                shown = picture(view, news, columns, rows, time.time())


class _Mouse:
    """The terminal's mouse, whose reports are turned on and off; `wanted` False: left alone."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted

    def take(self) -> None:
        self._write(_MOUSE_ON)

    def release(self) -> None:
        self._write(_MOUSE_OFF)

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Leave the mouse to the terminal in the block."""
        self.release()
        yield
        self.take()

    def _write(self, sequence: str) -> None:
        if self._wanted:
            sys.stdout.write(sequence)
            sys.stdout.flush()


@contextlib.contextmanager
def _mouse(wanted: bool) -> Iterator[_Mouse]:
    """Have the mouse reported while the block runs."""
    mouse = _Mouse(wanted)
    try:
        mouse.take()
        yield mouse
    finally:
        mouse.release()


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
        begun = b""
        while True:
            ready, _, _ = select.select([keys, wake], [], [])
            if wake in ready:
                return
            try:
                data = os.read(keys, _READ_BYTES)
            except OSError:
                data = b""
            if not data:
                inbox.press([_GONE])
                return
            more, _, _ = select.select([keys], [], [], 0)
            pressed, begun = decode(begun + data, whole=not more)
            inbox.press(pressed)

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
