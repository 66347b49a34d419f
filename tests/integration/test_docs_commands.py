"""The commands of the tutorial and of the how-to pages are run as they stand, one page after the other.

What they start as workers are forks of one process that has torch loaded (`forked_cli`).

A page's `sh` blocks make one script; a `python` block is saved under the name that the text before it gives.
`console` blocks need what a test has not (Docker, other machines): of these, as of all pages, commands and
options are held against the command line.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import patience
from elastane_cli.commands.catalogue import COMMANDS, load
from integration.forked_cli import shared_server
from slow import slow

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)

#: What each page's commands must have brought about; a command that fails ends its script anyway.
EXPECTED = {
    "scale": "scaled to 1:4 workers",
    "autoscaling": "no longer scales by itself",
    "spot": "NVIDIA L4",
    "tasks": "\n10\n",
    "checkpoints": "manifest.json",
    "tokens": "",
    "troubles": "serves, ",
    "drain": "suspended",  # at the end: it takes the job's workers away
}


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Language, text and the prose since the block before."""
    text, end = page.read_text(), 0
    for found in _FENCE.finditer(text):
        yield found[1], found[2], text[end : found.start()]
        end = found.end()


def save_scripts(page: Path, folder: Path) -> None:
    for language, text, before in blocks(page):
        if language == "python" and (names := re.findall(r"`(\w+\.py)`", before)):
            (folder / names[-1]).write_text(text)


def commands_of(page: Path) -> str:
    return "\n".join(text for language, text, _ in blocks(page) if language == "sh")


def run(script: str, folder: Path) -> str:
    """Everything it said; it must end with 0, and nothing of it may be left."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "elastane").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m integration.forked_cli "$@"\n')
    (tools / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ELASTANE_")}
    clean |= {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    with shared_server(folder, clean) as (variables, server):
        done = patience.run(
            ["bash", "-e", "-c", 'trap "kill \\$agent \\$master 2>/dev/null || true; wait" EXIT\n' + script],
            cwd=folder,
            env=clean | variables,
            pass_fds=[server.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
        )
    assert done.returncode == 0, done.stdout
    return done.stdout


@slow
def test_the_first_hour_and_the_how_to_pages(tmp_path: Path) -> None:
    """The how-to pages need a master and a job "first" that trains: the tutorial's, before its end."""
    tutorial = DOCS / "tutorial.md"
    before, cancel, after = commands_of(tutorial).partition("elastane cancel first\n")
    script = f"echo 'page tutorial:'\n{before}"
    for name in EXPECTED:
        script += f"echo 'page {name}:'\n{commands_of(DOCS / 'howto' / f'{name}.md')}\n"
    script += f"echo 'page end:'\n{cancel}{after}"
    for page in (tutorial, *(DOCS / "howto" / f"{name}.md" for name in EXPECTED)):
        save_scripts(page, tmp_path)
    said = dict(re.findall(r"^page (\w+):\n(.*?)(?=^page |\Z)", run(script, tmp_path), re.M | re.S))
    assert (tmp_path / "stock.py").read_text().count("elastane") == 0
    assert "equal" in said["tutorial"]  # verify's table
    assert "its stream ended without Bye" in said["tutorial"]  # the event of the death
    for name, words in EXPECTED.items():
        assert words in said[name], (name, said[name])
    assert (tmp_path / "tokens.toml").read_text().count("[[token]]") == 2
    assert "every sample of every epoch counts exactly once" in said["end"]


def test_every_page_with_commands_is_run() -> None:
    with_commands = {page.stem for page in (DOCS / "howto").glob("*.md") if commands_of(page)}
    assert with_commands == set(EXPECTED)


# ---------------------------------------------------------------- commands and options of all pages


@cache
def command(name: str) -> Any:
    return load(name)


def written(page: Path) -> Iterator[list[str]]:
    """The words of each `elastane COMMAND ...` on the page."""
    text = page.read_text()
    fenced = "\n".join(text for _, text, _ in blocks(page))
    indented = "\n".join(re.findall(r"^    (\S.*)$", text, re.MULTILINE))
    inline = "\n".join(
        " ".join(found.split()) for found in re.findall(r"`(elastane [^`]+)`", _FENCE.sub("", text))
    )
    joined = "\n".join((fenced, indented, inline)).replace("\\\n", " ")
    for line in joined.splitlines():
        for part in re.split(r"[|;&()]", line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:
                continue
            while words and ("=" in words[0] or words[0] in ("exec", "sudo")):
                words.pop(0)
            if words[:1] == ["elastane"]:
                yield words[1:]


def fault_of(words: list[str]) -> str:
    """What is wrong with the words after `elastane`; empty if nothing is."""
    while words and words[0].startswith("-"):  # the options before the command have values
        words = words[2:]
    if not words or not re.fullmatch(r"[a-z-]+", words[0]):
        return ""  # prose, or a placeholder
    name, *rest = words
    if name not in COMMANDS:
        return f"no command {name}"
    if name == "master":
        return ""  # the master's own program, below
    found = command(name)
    actions = getattr(found, "commands", None)
    if actions is not None:
        action = rest.pop(0) if rest and rest[0] in actions else "show"
        name, found = f"{name} {action}", actions[action]
    known = {option: each for each in found.params for option in (*each.opts, *each.secondary_opts)}
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if not found.context_settings.get("allow_interspersed_args", True):
                return ""  # what follows is the script's
            continue
        option = word.partition("=")[0]
        if option in ("--help", "-h"):
            return ""
        if option not in known:
            return f"{name} has no option {option}"
        if not known[option].is_flag and "=" not in word and rest:
            rest.pop(0)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_and_options_on_the_page_exist(page: Path) -> None:
    if "decisions" not in page.parts:  # those tell of their day
        assert [fault for words in written(page) if (fault := fault_of(words))] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"`make ([a-z-]+)", page.read_text())
    assert set(named) <= targets


def test_the_check_finds_what_is_wrong() -> None:
    assert fault_of(["run", "--ests", "4", "train.py", "--whatever"]) == ""
    assert fault_of(["run", "--est", "4", "train.py"]) == "run has no option --est"
    assert fault_of(["explode", "now"]) == "no command explode"
    assert fault_of(["ps", "JOB", "--slots"]) == fault_of(["ps", "audit", "--json"]) == ""
    assert fault_of(["ps", "audit", "--slots"]) == "ps audit has no option --slots"
    assert fault_of(["--token-file", "ops.token", "status", "--jason"]) == "status has no option --jason"
