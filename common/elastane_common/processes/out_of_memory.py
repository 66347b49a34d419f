"""Evidence that the kernel killed a process because memory was short: the counters of its memory cgroup.

A SIGKILL says nothing about its sender. The kernel counts its own in the cgroup of the process (`oom_kill`),
so a count that has risen since the process began is evidence, and nothing else is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
LOOK_SECONDS: Final = 1.0


class OomCounter:
    """The kills that the kernel has counted in the memory cgroup of one process.

    pid: of a process that has just been started. proc, cgroups: where the kernel's files are. clock: in
    seconds.
    """

    def __init__(
        self,
        pid: int,
        *,
        proc: Path = PROC,
        cgroups: Path = CGROUPS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid, self._proc, self._cgroups, self._clock = pid, proc, cgroups, clock
        self._looked_at = float("-inf")
        self._file: Path | None = None
        self._before: int | None = None
        self._latest: int | None = None
        self.look()

    def look(self) -> None:
        """Read the counter while the process lives; its cgroup may have changed. Cheap enough to call often.

        Kills of others in the same cgroup are thus no evidence later. The count of the look before is
        compared, because the latest one may have come after the end.
        """
        now = self._clock()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        file = self._counter()
        if file is None:
            return
        kills = _kills(file)
        self._before = self._latest if file == self._file else kills
        self._file, self._latest = file, kills
        if self._before is None:
            self._before = kills

    def evidence(self) -> str:
        """Describe the kills since shortly before now; "" without any, or if the counter cannot be read."""
        kills = _kills(self._file)
        if self._file is None or kills is None or self._before is None or kills <= self._before:
            return ""
        folder = _shown(self._file.parent, self._cgroups)
        return f"oom_kill of its cgroup {folder} rose from {self._before} to {kills}"

    def _counter(self) -> Path | None:
        """Return the file that counts the kills of the process's cgroup; None: there is none."""
        try:
            lines = (self._proc / str(self._pid) / "cgroup").read_text().splitlines()
        except OSError:
            return None
        return next((file for file in _candidates(lines, self._cgroups) if file.is_file()), None)


def _candidates(lines: Iterable[str], cgroups: Path) -> list[Path]:
    """Return where the counter may be. lines: of /proc/PID/cgroup, "4:memory:/path" or "0::/path".

    In a container the path may be that of the host, while its own cgroup is mounted as the root.
    """
    found: list[Path] = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = path.strip("/").removesuffix(" (deleted)")
        if "memory" in controllers.split(","):
            found[:0] = [
                cgroups / "memory" / parts / "memory.oom_control",
                cgroups / "memory" / "memory.oom_control",
            ]
        elif number == "0" and not controllers:
            found += [cgroups / parts / "memory.events", cgroups / "memory.events"]
    return found


def _kills(file: Path | None) -> int | None:
    """Return the count of a file with lines "oom_kill N"; None if it cannot be read."""
    try:
        words = dict(line.split(" ", 1) for line in file.read_text().splitlines()) if file is not None else {}
        return int(words["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def _shown(folder: Path, cgroups: Path) -> str:
    return "/" + str(folder.relative_to(cgroups)).removeprefix("memory").strip("/.")
