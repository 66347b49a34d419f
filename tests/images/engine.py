"""The container engine of the tests: podman, docker, or a substitute on this machine.

    ELASTANE_TEST_ENGINE          the engine's command; default: podman or docker, whichever is on the PATH
    ELASTANE_TEST_BUILD           what builds; default: the engine's `build`. Gets --target, -t, a folder
    ELASTANE_TEST_RUN_ARGUMENTS   further arguments of every `run`
    ELASTANE_TEST_MASTER_IMAGE    an image that is there, instead of building one; so WORKER, OPERATOR
                                  and NEWCOMER

Each is split as a shell does. Containers share the host's network, not its name: what they serve
is at loopback ports.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

BUILD_SECONDS_MAX = 1800
COMMAND_SECONDS_MAX = 120


class EngineError(Exception):
    """The engine failed; the text is what it said."""


class Outcome(NamedTuple):
    """Exit code and output of a command, on both streams."""

    code: int
    said: str


class Engine:
    """Runs the engine's commands. Raises EngineError when there is none."""

    def __init__(self) -> None:
        named = os.environ.get("ELASTANE_TEST_ENGINE", "")
        found = shutil.which("podman") or shutil.which("docker")
        if not named and not found:
            raise EngineError("no container engine: neither podman nor docker is on the PATH")
        self._command = shlex.split(named) if named else [str(found)]
        self._build = shlex.split(os.environ.get("ELASTANE_TEST_BUILD", "")) or [*self._command, "build"]
        self._run = shlex.split(os.environ.get("ELASTANE_TEST_RUN_ARGUMENTS", ""))
        self._containers: list[Container] = []

    def build(self, folder: Path, tag: str, *arguments: str) -> float:
        """Builds an image; returns the seconds it took."""
        started = time.monotonic()
        self._call([*self._build, *arguments, "-t", tag, str(folder)], BUILD_SECONDS_MAX)
        return time.monotonic() - started

    def call(self, *arguments: str, seconds_max: float = COMMAND_SECONDS_MAX) -> str:
        """Output of `ENGINE ARGUMENTS...`."""
        return self._call([*self._command, *arguments], seconds_max)

    def attempt(self, *arguments: str, seconds_max: float = COMMAND_SECONDS_MAX) -> Outcome:
        """Like `call`, for a command that may fail."""
        done = subprocess.run(
            [*self._command, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=seconds_max,
        )  # fmt: skip
        return Outcome(done.returncode, done.stdout)

    def image(self, tag: str) -> dict[str, Any]:
        """Return the engine's description of an image."""
        found: dict[str, Any] = json.loads(self.call("image", "inspect", tag))[0]
        return found

    def start(self, tag: str, *command: str, arguments: Sequence[str] = ()) -> Container:
        """Start a container in the background, run as intended: read-only, without privileges."""
        name = f"elastane-test-{uuid.uuid4().hex[:8]}"
        container = Container(self, name)
        self._containers.append(container)
        self.call(
            "run", "--detach", "--name", name, "--hostname", name, "--network", "host", *self._run,
            "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
            *arguments, tag, *command,
        )  # fmt: skip
        return container

    def close(self) -> None:
        """Removes every container that was started."""
        while self._containers:
            self._containers.pop().remove()

    @staticmethod
    def _call(command: list[str], seconds_max: float) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds_max)
        if done.returncode:
            said = (done.stdout + done.stderr)[-4000:]
            raise EngineError(f"{shlex.join(command)} ended with {done.returncode}:\n{said}")
        return done.stdout


class Container:
    """One container."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    def execute(self, *command: str) -> str:
        """Output of a command in the container. Raises EngineError when it fails."""
        return self._engine.call("exec", self.name, *command)

    def shell(self, script: str, seconds_max: float = COMMAND_SECONDS_MAX) -> Outcome:
        """Run a bash script in the container; return how it ended."""
        return self._engine.attempt("exec", self.name, "bash", "-c", script, seconds_max=seconds_max)

    def in_background(self, script: str) -> None:
        """Starts a script of bash in the container."""
        self._engine.call("exec", "--detach", self.name, "bash", "-c", script)

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self._engine.call("kill", "--signal", "KILL", self.name)
        self.wait()

    def start_again(self) -> None:
        self._engine.call("start", self.name)

    def stop(self, seconds: int = 40) -> tuple[int, float]:
        """SIGTERM, and SIGKILL after so many seconds; exit code, and the seconds it took."""
        started = time.monotonic()
        self._engine.call("stop", "--time", str(seconds), self.name)
        return self.wait(), time.monotonic() - started

    def wait(self, seconds_max: float = COMMAND_SECONDS_MAX) -> int:
        """The exit code, once it has ended."""
        return int(self._engine.call("wait", self.name, seconds_max=seconds_max).split()[-1])

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._engine.call("inspect", self.name))[0]["State"]
        return found

    def logs(self) -> str:
        """Both streams."""
        return self._engine.attempt("logs", self.name).said

    def remove(self) -> None:
        self._engine.call("rm", "--force", "--volumes", self.name)
