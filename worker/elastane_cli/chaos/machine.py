"""Means of the machine to inject faults: small disks, memory cgroups, a false clock. Most need root.

Each part reports why it is unavailable; nothing of it outlives the process, unless that is killed by SIGKILL.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_BLOCK_BYTES = 64 * 1024
_FAKETIME = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
)


def run_quietly(*command: str) -> str:
    """Run a command; return "" on success, else its error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


class SmallDisk:
    """A separate file system in `folder`, if it can be mounted, that can be filled to the last byte.

    missing: why it is a plain folder instead.
    """

    def __init__(self, folder: Path, mebibytes: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() != 0:
            self.missing = "mounting a small disk needs root"
        else:
            said = run_quietly("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder))
            self.missing = f"a small disk cannot be mounted: {said}" if said else ""

    def fill(self) -> None:
        """Fill it completely."""
        assert not self.missing
        with (self.folder / ".filler").open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(b"\xff" * _BLOCK_BYTES)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        """Release the space taken by `fill`."""
        (self.folder / ".filler").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount, even while files are open."""
        if not self.missing:
            run_quietly("umount", "-l", str(self.folder))
            self.missing = "closed"


class MemoryCage:
    """A memory cgroup with a limit: the kernel kills processes that exceed it. missing: why there is none."""

    def __init__(self, name: str, mebibytes: int) -> None:
        self.missing = ""
        v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        self._is_v1 = (v1 / "cgroup.procs").exists()
        self._folder = (v1 if self._is_v1 else v2) / name
        limit = self._folder / ("memory.limit_in_bytes" if self._is_v1 else "memory.max")
        try:
            self._folder.mkdir()
            limit.write_text(str(mebibytes << 20))
        except OSError as error:
            self.missing = f"no memory cgroup can be made here: {error}"
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def put_in(self, pid: int) -> None:
        """Count the process's later allocations."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    @property
    def kills(self) -> int:
        """Number of processes that the kernel has killed in it."""
        file = self._folder / ("memory.oom_control" if self._is_v1 else "memory.events")
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        return 0

    def close(self) -> None:
        """Remove it, once its processes have ended."""
        if not self.missing:
            with contextlib.suppress(OSError):
                self._folder.rmdir()


class FalseClock:
    """Wall clock of processes started with `environment`, set by hand (libfaketime).

    missing: why there is none; then `environment` is empty.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        library = next((path for path in _FAKETIME if Path(path).exists()), "")
        self.missing = "" if library else "libfaketime is not installed (apt install libfaketime)"
        self.environment: Mapping[str, str] = {}
        if library:
            self.set(0)
            self.environment = {
                "LD_PRELOAD": library,
                "FAKETIME_TIMESTAMP_FILE": str(file),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }

    def set(self, offset_seconds: int) -> None:
        """Set the clock to the true time plus `offset_seconds`."""
        beside = self._file.with_name(f".{self._file.name}")
        beside.write_text(f"{offset_seconds:+d}\n")
        beside.replace(self._file)


def has_ip() -> bool:
    """True if network namespaces can be created: root, `ip`, and the device for user-space links."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and Path("/dev/net/tun").exists()
