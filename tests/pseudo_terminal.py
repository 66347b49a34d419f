"""A command on a pseudo-terminal, and what stands on its screen: `elastane top` in tests and pictures."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyte

from patience import Patience

ROOT = Path(__file__).resolve().parents[1]
ROOTS = ("common", "proto", "shard_service", "scheduler", "planner", "master", "worker")
PATH = os.pathsep.join(str(ROOT / root) for root in ROOTS)
ELASTANE = (sys.executable, "-m", "elastane_cli")
WAIT_SECONDS = 60.0
_NOT_PASSED_ON = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")


class Screen(pyte.Screen):
    """pyte's, which does not know faint text: here it is grey, as on many terminals."""

    def select_graphic_rendition(self, *attrs: int, private: bool = False) -> None:
        plain = 38 not in attrs and 48 not in attrs
        super().select_graphic_rendition(*(90 if one == 2 and plain else one for one in attrs))


class Terminal:
    """A process on a pseudo-terminal. `before`: how the terminal was; `raw`: all bytes that were written."""

    def __init__(
        self,
        *arguments: str,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = ELASTANE,
    ) -> None:
        """arguments: of `elastane`, the command first. env: beside what the tests themselves have."""
        self.screen = Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, self.theirs = pty.openpty()
        self.raw = b""
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.theirs)
        kept = {key: value for key, value in os.environ.items() if key not in _NOT_PASSED_ON}
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**kept, "PYTHONPATH": PATH, "TERM": "xterm-256color", **(env or {})},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def resize(self, columns: int, rows: int) -> None:
        """The kernel sends SIGWINCH, as with a window."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def selected_row(self) -> int | None:
        """The row below the head that is shown in reverse from its first column on, if any is."""
        rows = (row for row in range(4, self.screen.lines) if self.screen.buffer[row][0].reverse)
        return next(rows, None)

    def read(self, timeout_seconds: float) -> bool:
        """Takes what was written, if anything comes in time."""
        ready, _, _ = select.select([self._ours], [], [], max(timeout_seconds, 0))
        if not ready:
            return False
        data = os.read(self._ours, 65536)
        self.raw += data
        self._stream.feed(data)
        return True

    def until(self, *texts: str, gone: str = "", seconds: float = WAIT_SECONDS) -> str:
        """Reads until all texts stand on the screen, and `gone` does not."""
        limit = Patience(seconds)
        while not all(text in self.text for text in texts) or (gone and gone in self.text):
            over = self.process.poll()
            if not self.read(0.2) and (over is not None or not limit.left()):
                raise AssertionError(f"no {texts} (exit code {over}) on:\n{self.text}")
        return self.text

    def settle(self) -> None:
        """Reads until a picture is whole: nothing more comes for a moment, or this goes on and on."""
        for _ in range(100):
            if not self.read(0.1):
                return

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait(self) -> int:
        """Its exit code; what it writes meanwhile is read."""
        limit = Patience(WAIT_SECONDS)
        while self.process.poll() is None:
            if not limit.left():
                raise AssertionError(f"it goes on:\n{self.text}")
            self.read(0.05)
        while self.read(0):
            pass
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self.theirs)
