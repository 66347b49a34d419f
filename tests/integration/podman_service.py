"""A podman service of a test's own, with storage of its own, and an image that is made of busybox alone.

The image's `python` is this Python: it works in containers that see the folders `PYTHON_FOLDERS`.

ELASTANE_TEST_PODMAN          podman's command; default: the one on the PATH
ELASTANE_TEST_BUSYBOX         a static busybox; default: the one on the PATH (Debian: busybox-static)
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import patience

IMAGE = "localhost/elastane-test:latest"
#: All that this Python and its packages need, with the system's libraries.
PYTHON_FOLDERS = tuple(dict.fromkeys(
    Path(folder) for folder in ("/usr", sys.base_prefix, sys.prefix, Path(__file__).parents[2])
))  # fmt: skip
_APPLETS = ("cat", "echo", "env", "grep", "head", "id", "kill", "ls", "nc", "printf", "seq", "sh", "sleep",
            "test", "touch")  # fmt: skip
#: crun refuses machines that have both hierarchies of control groups: the second one is hidden from it.
_HIDE = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'


def podman_command(folder: Path) -> list[str]:
    """Podman with storage of its own in `folder`, for `podman_environment`. Skips the test without one."""
    podman = shlex.split(os.environ.get("ELASTANE_TEST_PODMAN", "")) or [shutil.which("podman") or ""]
    if not podman[0]:
        pytest.skip("no container engine: podman is not on the PATH")
    (folder / "containers.conf").write_text("[containers]\ndefault_ulimits = []\n")
    command = [
        *podman, "--root", str(folder / "root"), "--runroot", str(folder / "run"),
        "--storage-driver=vfs", "--cgroup-manager=cgroupfs",
    ]  # fmt: skip
    if Path("/sys/fs/cgroup/unified").is_mount() and os.geteuid() == 0:
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", _HIDE, "--", *command]
    return command


def podman_environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")}


class PodmanService:
    """Podman's service at `url`, which can be away for a while; skips the test without one."""

    def __init__(self, folder: Path) -> None:
        self._podman = podman_command(folder)
        self._folder = folder
        self._socket = folder / "podman.sock"
        self.url = f"unix://{self._socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Serve, and return when it answers."""
        self._socket.unlink(missing_ok=True)
        with (self._folder / "service.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._podman, "system", "service", "--time=0", self.url], stdout=log, stderr=log,
                env=self._environment(),
            )  # fmt: skip
        patience.wait(self._answers, 60)

    def end(self) -> None:
        """Kill the service; containers go on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def run(self, *arguments: str) -> str:
        """Return the output of a command of podman."""
        done = patience.run(
            [*self._podman, *arguments], timeout=60, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=self._environment(),
        )  # fmt: skip
        if done.returncode:
            raise OSError(f"podman {arguments[0]}: {done.stderr}")
        return str(done.stdout)

    def _environment(self) -> dict[str, str]:
        return podman_environment(self._folder)

    def _answers(self, seconds: float) -> None:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            while True:
                with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
                    probe.connect(str(self._socket))
                    return
                self._process.wait(0.05)
                said = (self._folder / "service.log").read_text(errors="replace")
                pytest.skip(f"no container engine: podman does not serve here: {said[-300:]}")


def service() -> Iterator[PodmanService]:
    """Yield a service that has the image, and remove all that it has made."""
    pytest.importorskip("docker", reason="no client of container engines: pip install 'elastane[containers]'")
    busybox = os.environ.get("ELASTANE_TEST_BUSYBOX") or shutil.which("busybox")
    if busybox is None:
        pytest.skip("no image for containers: a static busybox is not on the PATH (Debian: busybox-static)")
    folder = Path(tempfile.mkdtemp(prefix="elastane-podman-"))  # a socket's path has a limit
    podman = PodmanService(folder)
    try:
        podman.start()
        _image(folder / "image.tar", busybox)
        podman.run("import", str(folder / "image.tar"), IMAGE)
        yield podman
    finally:
        podman.end()
        shutil.rmtree(folder, ignore_errors=True)


def _image(path: Path, busybox: str) -> None:
    with tarfile.open(path, "w") as archive:
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        archive.add(Path(busybox).resolve(), "bin/busybox", filter=_executable)
        for applet in _APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
        for name in ("lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
        script = f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode()
        entry = tarfile.TarInfo("bin/python")
        entry.size, entry.mode = len(script), 0o755
        archive.addfile(entry, BytesIO(script))


def _executable(entry: tarfile.TarInfo) -> Any:
    entry.mode = 0o755
    return entry
