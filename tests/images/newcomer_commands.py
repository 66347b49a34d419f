"""The commands that a newcomer types from README.md and docs/howto/running.md, read from the pages.

Every command of these pages runs in a clean image (`test_newcomer_image.py`), unless LEFT_OUT gives a reason
against it. So a command that is added to a page is either run or listed here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (ROOT / "README.md", ROOT / "docs/howto/running.md")
TUTORIAL: Final = ROOT / "docs/tutorial.md"
#: Folder of the image's files that are not part of the product.
IMAGE: Final = Path(__file__).parent / "newcomer_image"
#: The line before the block of commands for a running job.
_AT_A_JOB: Final = "export ELASTANE_MASTER="
_BLOCK: Final = re.compile(r"(?:^    .*\S.*\n)+(?:^\n(?:^    .*\S.*\n)+)*", re.MULTILINE)
_NAME: Final = re.compile(r"`(\w+\.py)`")
_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)

#: Beginnings of commands that are not run, with the reason, or where they are run.
LEFT_OUT: Final = {
    "make ": "needs the clone; `elastane demo` is run in its place",
    "elastane chaos --minutes 5 ": "takes five minutes and more: make chaos",
    "grpcurl ": "another program; test_master_image.py asks for what it shows, by reflection",
    "elastane master --listen 0.0.0.0:50051 --store rediss:": "needs a Redis with TLS: tests/integration",
    "export ELASTANE_TLS_CA=": "needs that master: test_security_docs.py",
    "elastane run --master HOST:50051 ": "needs that master: test_security_docs.py",
    "elastane run --ests 8 --hosts ": "needs hosts with ssh: test_elastic_hosts.py",
    "docker compose ": "of the clone: test_compose_services.py",
    "kubectl ": "of the clone: tests/kube, make test-kube",
}


class Command(NamedTuple):
    """A command of the page, comment included. at_job: it is for a job that trains."""

    text: str
    at_job: bool


def pages() -> str:
    """The text of both pages, one after the other."""
    return "\n\n".join(page.read_text() for page in PAGES)


def commands(page: str) -> list[Command]:
    """All commands in the page's indented blocks, in their order, each once."""
    found = []
    for block in _BLOCK.findall(_FENCE.sub("", page)):
        lines = [line.strip() for line in block.replace("\\\n", " ").splitlines() if line.strip()]
        at_job = lines[0].startswith(_AT_A_JOB)
        found += [Command(" ".join(line.split()) if at_job else line, at_job) for line in lines]
    return list(dict.fromkeys(found))


def left_out(command: Command) -> str:
    """Return the reason why a command is not run; "" if it is."""
    return next((why for start, why in LEFT_OUT.items() if command.text.startswith(start)), "")


def commands_to_run(page: str, *, at_job: bool) -> list[str]:
    """Return the commands for a running job, or those for no job."""
    return [one.text for one in commands(page) if one.at_job == at_job and not left_out(one)]


def three_lines(page: str) -> str:
    """Return the page's example as a whole script, with the parts left to the reader. Raises ValueError."""
    [example] = [text for language, text in _FENCE.findall(page) if language == "python"]
    first, mark, rest = example.partition("# 1\n")
    if not mark:
        raise ValueError("the example has no line that ends in '# 1'")
    return first + mark + "\n" + (IMAGE / "between_the_lines.py").read_text() + "\n" + rest


def examples(page: str) -> list[str]:
    """The scripts of examples/ that the page links to, but for the stock ones they were made from."""
    return list(dict.fromkeys(re.findall(r"\]\((?:\.\./)*(examples/(?!\w+_ddp)\w+\.py)\)", page)))


def saved_scripts(page: str) -> dict[str, str]:
    """The Python blocks that the text before them gives a name, by that."""
    found: dict[str, str] = {}
    end = 0
    for block in _FENCE.finditer(page):
        names = _NAME.findall(page[end : block.start()])
        end = block.end()
        if block[1] == "python" and names:
            found[names[-1]] = block[2]
    return found


def shell_script(page: str) -> str:
    """The page's `sh` blocks, one after the other."""
    return "\n".join(text for language, text in _FENCE.findall(page) if language == "sh")
