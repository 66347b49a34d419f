"""Stacks of all threads of this process as text: by py-spy where it is installed, else by Python itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Final

_PY_SPY_SECONDS: Final = 10.0


def all_stacks() -> str:
    """Return the stacks of all threads, innermost call last; with py-spy, first, and native code, too."""
    return _by_py_spy() or _by_python()


def _by_py_spy() -> str:
    """Return py-spy's dump; "" if it is not installed or may not look at this process."""
    # This environment's first: its programs need not be on the PATH.
    program = shutil.which(Path(sys.executable).with_name("py-spy")) or shutil.which("py-spy")
    if program is None:
        return ""
    command = [program, "dump", "--native", "--pid", str(os.getpid())]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PY_SPY_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _by_python() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    own = threading.get_ident()
    parts: list[str] = []
    # The script's thread first: it is what people look for.
    for ident, frame in sorted(sys._current_frames().items(), key=lambda found: found[0] != main):
        if ident != own:
            stack = "".join(traceback.format_stack(frame))
            parts.append(f"Thread {names.get(ident, ident)}:\n{stack}")
    return "\n".join(parts)
