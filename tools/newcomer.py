"""Measures how long a newcomer takes from a clone to the first verified script of their own.

    make newcomer                        of this repository as it is committed
    python3 tools/newcomer.py URL        of another one; --json for programs

Clones into a fresh folder, and then follows docs/tutorial.md of the clone up to its section "Verify", in one
shell: a new virtual environment, the installation, the scripts as the page prints them, and every command as
written there. Like a newcomer it needs only git, bash and Python's standard library. Exits with 1 if a
command of the page fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = "docs/tutorial.md"
LAST: Final = "Verify"
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```|^## ([^\n]+)$", re.MULTILINE | re.DOTALL)
_NAME: Final = re.compile(r"`(\w+\.py)`")
_MARK: Final = "::newcomer::"
_KEPT_LINES: Final = 40
#: Variables of a developer's shell that a newcomer does not have. Settings of pip's index are kept.
_NOT_PASSED_ON: Final = ("PYTHONPATH", "VIRTUAL_ENV", "PIP_CONSTRAINT", "PIP_REQUIREMENT")


class Stage(NamedTuple):
    """One step of the tutorial: a script to save (file, text), or a command (file is empty)."""

    section: str
    text: str
    file: str = ""


class Timed(NamedTuple):
    command: str
    seconds: float


class CommandFailedError(Exception):
    """A command of the page did not exit with 0. said: the last part of its output."""

    def __init__(self, command: str, code: int, said: str) -> None:
        super().__init__(f"`{command}` ended with code {code}")
        self.said = said


def plan(page: str) -> list[Stage]:
    """Return the steps of the page up to the end of its section "Verify". Raises ValueError.

    Commands are those of `sh` blocks, and of the `console` block before the first section, which installs.
    """
    stages: list[Stage] = []
    section, end = "", 0
    for found in _BLOCK.finditer(page):
        language, text, heading = found.groups()
        before, end = page[end : found.start()], found.end()
        if heading:
            if section == LAST:
                return stages
            section = heading.strip()
        elif language == "python" and (names := _NAME.findall(before)):
            stages.append(Stage(section, text, names[-1]))
        elif language == "sh" or (language == "console" and not section):
            stages += [Stage(section, command) for command in _commands(text)]
    raise ValueError(f"the page has no section {LAST!r} with another one after it")


def _commands(text: str) -> Iterator[str]:
    joined = text.replace("\\\n", " ")
    yield from (line.strip() for line in joined.splitlines() if line.strip())


def run(stages: list[Stage], folder: Path, env: dict[str, str], report: Any = print) -> list[Timed]:
    """Run all stages in one shell in `folder`. report: called for each command. Raises CommandFailedError."""
    for stage in stages:
        if stage.file:
            (folder / stage.file).write_text(stage.text, encoding="utf-8")
    commands = [stage.text for stage in stages if not stage.file]
    script = "".join(f"echo '{_MARK}'\n{command}\n" for command in commands)
    shell = subprocess.Popen(
        ["bash", "-e", "-c", script], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    done: list[Timed] = []
    said: list[str] = []
    began = time.monotonic()
    begun = 0

    def finished() -> None:
        nonlocal began
        now = time.monotonic()
        if begun:
            done.append(Timed(commands[begun - 1], now - began))
            report(f"{now - began:8.1f} s  {commands[begun - 1]}")
        began = now

    try:
        assert shell.stdout is not None
        for line in shell.stdout:
            if line.strip() == _MARK:
                finished()
                begun += 1
                said.clear()
            else:
                said = [*said[1 - _KEPT_LINES :], line]
        code = shell.wait()
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    if code:
        raise CommandFailedError(commands[begun - 1], code, "".join(said))
    finished()
    return done


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "source", nargs="?", default=str(ROOT), help="path or URL to clone (default: this one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--no-cache", action="store_true", help="without pip's cache, as on a new machine")
    parser.add_argument("--folder", type=Path, help="where to clone to, kept (default: temporary)")
    given = parser.parse_args(arguments)
    for tool in ("git", "bash"):
        if shutil.which(tool) is None:
            parser.error(f"{tool} is not installed")
    if given.folder is not None and given.folder.exists() and any(given.folder.iterdir()):
        parser.error(f"{given.folder} is not empty: a newcomer's folder is")
    # Exit as on Ctrl-C, so that everything is cleaned up.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    report = (lambda line: None) if given.json else (lambda line: print(line, flush=True))
    try:
        if given.folder is not None:
            return _try(given, given.folder, report)
        with tempfile.TemporaryDirectory(prefix="elastane-newcomer-") as folder:
            return _try(given, Path(folder) / "elastane", report)
    except KeyboardInterrupt:
        return 130


def _try(given: argparse.Namespace, folder: Path, report: Any) -> int:
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_PASSED_ON and not name.startswith("ELASTANE_")
    }
    if given.no_cache:
        env["PIP_NO_CACHE_DIR"] = "1"
    began = time.monotonic()
    cloned = subprocess.run(["git", "clone", "--quiet", given.source, str(folder)], env=env, check=False)
    if cloned.returncode:
        print(f"{given.source} cannot be cloned", file=sys.stderr)
        return 1
    timed = [Timed("git clone", time.monotonic() - began)]
    report(f"{timed[0].seconds:8.1f} s  git clone")
    error = None
    try:
        timed += run(plan((folder / PAGE).read_text(encoding="utf-8")), folder, env, report)
    except (CommandFailedError, ValueError, OSError) as caught:
        error = caught
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    total = sum(one.seconds for one in timed)
    if given.json:
        document = {
            "commit": commit,
            "machine": machine(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "pip_cache": not given.no_cache,
            "verified": error is None,
            "error": str(error) if error else None,
            "stages": [{"command": one.command, "seconds": round(one.seconds, 2)} for one in timed],
            "total_seconds": round(total, 2),
        }
        print(json.dumps(document))
    if error is not None:
        print(getattr(error, "said", ""), end="", file=sys.stderr)
        print(f"the newcomer is stuck: {error}", file=sys.stderr)
        return 1
    report(f"{total:8.1f} s  from clone to the first verified script ({machine()}, {commit})")
    return 0


def machine() -> str:
    """Describe cores, system and Python version in words."""
    cores = len(os.sched_getaffinity(0))
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{cores} {'core' if cores == 1 else 'cores'}, {system}"


if __name__ == "__main__":
    sys.exit(main())
