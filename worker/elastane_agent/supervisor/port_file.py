"""The file to which a starting server writes the address at which it listens (`--port-file`)."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from elastane_common.processes.child import ChildProcess

#: Polling interval of the file.
_LOOK_SECONDS: Final = 0.01


def wait_for_address(process: ChildProcess, port_file: Path, timeout_seconds: float) -> str:
    """Return the address once the process has written it; "" if the process ends first, or is late."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            if address := port_file.read_text().strip():
                return address
        # The file is polled; the end of the process ends the wait at once.
        if process.wait(_LOOK_SECONDS) is not None:
            break
    return ""
