"""The wheel in an empty container: Debian's Python and no more, not root. Prints the seconds of each step.

ELASTANE_TEST_DEBIAN: a folder with Debian's root file system (python3, python3-venv, ca-certificates);
without it one is made by debootstrap, which needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import patience
from integration.podman_service import podman_command, podman_environment
from wheel.test_wheel import ROOT, SCRIPT, SECONDS_MAX

pytestmark = pytest.mark.skipif(
    os.environ.get("ELASTANE_TEST_WHEEL_CONTAINER") != "1", reason="make test-wheel-container"
)
SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
IMAGE = "localhost/elastane-test-debian:latest"
USER = "10001:10001"


class Container:
    """A container of podman's, with a folder of its own at /work; it shares the host's network."""

    def __init__(self, folder: Path, debian: Path) -> None:
        self._podman, self._environment = podman_command(folder), podman_environment(folder)
        self.work = folder / "work"
        self.work.mkdir(mode=0o777)
        self.work.chmod(0o777)
        with subprocess.Popen(["tar", "-C", str(debian), "-c", "."], stdout=subprocess.PIPE) as files:
            self.podman("import", "-", IMAGE, stdin=files.stdout)
        options = [
            option for name, value in pip_settings().items() for option in ("--env", f"{name}={value}")
        ]
        shared = [option for path in pip_files() for option in ("--volume", f"{path}:{path}:ro")]
        self.podman(
            "run", "--detach", "--name", "wheel", "--network", "host", "--user", USER, "--cap-drop", "ALL",
            "--volume", f"{self.work}:/work", "--workdir", "/work", "--env", "HOME=/work",
            "--env", "PATH=/work/venv/bin:/usr/bin:/bin", "--shm-size", "1g", *options, *shared, IMAGE,
            "sleep", "infinity",
        )  # fmt: skip

    def run(self, *command: str) -> tuple[float, str]:
        """Seconds and output of a command in the container, which must end with 0."""
        began = time.monotonic()
        said = self.podman("exec", "wheel", *command)
        return time.monotonic() - began, said

    def podman(self, *arguments: str, stdin: object = subprocess.DEVNULL) -> str:
        done = patience.run(
            [*self._podman, *arguments], env=self._environment, stdin=stdin, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=SECONDS_MAX,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return str(done.stdout)


def pip_settings() -> dict[str, str]:
    """Where this machine's pip finds packages, if a variable says so."""
    return {name: value for name, value in os.environ.items() if name in ("PIP_FIND_LINKS", "PIP_INDEX_URL")}


def pip_files() -> list[Path]:
    """Files of this machine that pip reads there: a folder of packages, and who is trusted."""
    named = [os.environ.get("PIP_FIND_LINKS", ""), "/etc/ssl/certs/ca-certificates.crt"]
    return [Path(name) for name in named if name.startswith("/") and Path(name).exists()]


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("ELASTANE_TEST_DEBIAN"):
        return Path(given)
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        pytest.skip("no Debian to be had: root and debootstrap make one, ELASTANE_TEST_DEBIAN names one")
    root = tmp_path_factory.mktemp("debian") / "root"
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return root


@pytest.fixture(scope="module")
def container(debian: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    started = Container(tmp_path_factory.mktemp("podman"), debian)
    try:
        yield started
    finally:
        started.podman("rm", "--force", "--time", "0", "wheel")
        started.podman("rmi", "--force", IMAGE)


def test_from_pip_install_to_a_verified_script(container: Container) -> None:
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(container.work), versions=["standard"])
    shutil.copyfile(ROOT / "constraints.txt", container.work / "constraints.txt")
    (container.work / "train.py").write_text(textwrap.dedent(SCRIPT))
    assert "gcc" not in container.run("sh", "-c", "command -v gcc git pip elastane || true")[1]
    install = ["pip", "install", "--quiet", "--no-cache-dir", "--constraint", "constraints.txt"]
    seconds = {
        "python3 -m venv": container.run("python3", "-m", "venv", "venv")[0],
        "pip install elastane[demo]": container.run(*install, f"./{Path(wheel).name}[demo]")[0],
    }
    taken, said = container.run("elastane", "demo")
    assert said.rstrip().endswith("same bits"), said
    seconds["elastane demo"] = taken
    taken, said = container.run("elastane", "verify", "--ests", "4", "--runs", "1", "train.py")
    assert "equal, bit for bit" in said, said
    seconds["elastane verify train.py"] = taken
    print("\n" + "\n".join(f"{taken:7.1f} s  {name}" for name, taken in seconds.items()))
