"""Identity of this process in its Hello, which tells it from another process with the same worker id."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from elastane_proto import versions
from elastane_proto.v1 import ring_pb2

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Identifies the clock of `time.monotonic`: a machine's processes share it until the next boot (proc(5))."""


def _boot_id() -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _BOOT_ID.read_text().strip()
    return ""


@dataclass(frozen=True)
class ProcessIdentity:
    """Made once by each process, before its first Hello.

    clock: empty where the machine does not name it; then the master orders processes by their Hellos.
    """

    name: bytes = field(default_factory=lambda: secrets.token_bytes(versions.PROCESS_BYTES))
    started_seconds: float = field(default_factory=time.monotonic)
    clock: str = field(default_factory=_boot_id)

    def fill(self, hello: ring_pb2.Hello) -> ring_pb2.Hello:
        """Write the identity into a Hello, and return it."""
        hello.process, hello.process_clock = self.name, self.clock
        hello.process_started.FromNanoseconds(round(self.started_seconds * 1e9))
        return hello
