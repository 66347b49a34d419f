"""With which versions of Python and torch it works: the quick suite in an environment of each, and a table.

    python tools/compatibility.py PYTHON ...                 adds a row for each interpreter to the table
    python tools/compatibility.py --torch 2.14.1 PYTHON      with this torch, else the tested one
    python tools/compatibility.py --torch system PYTHON      with the torch of the system's packages
    python tools/compatibility.py --torch none PYTHON        what needs no torch: client and master
    python tools/compatibility.py --folder FOLDER PYTHON     keeps the environment, or goes on with that there
    python tools/compatibility.py --here                     in this environment, printed (make test-quick)
    python tools/compatibility.py --page                     writes the table of docs/installing.md

The quick suite: unit tests of what computes, saves and hands over, many of them beside stock DDP or a stock
DataLoader; then `elastane verify`, which trains under stock DDP and under a kill and compares the bits. Rows
are kept in docs/compatibility.jsonl; one of the same Python and torch is replaced. Needs the standard library
alone. Exits with 1 where a suite fails, and writes that row, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
ROWS: Final = ROOT / "docs" / "compatibility.jsonl"
PAGE: Final = ROOT / "docs" / "installing.md"
BEGIN: Final = "<!-- made by `python tools/compatibility.py --page` -->\n"
END: Final = "<!-- end -->\n"

TESTS: Final = tuple(f"tests/unit/{name}" for name in ("collective", "data", "runtime", "state", "tables"))
TESTS_WITHOUT_TORCH: Final = tuple(f"tests/unit/{name}" for name in ("decisions", "scheduler", "slots"))
VERIFY: Final = ("verify", "--ests", "4", "--runs", "1", str(ROOT / "examples" / "minimal.py"))
#: What the tests import beside what the wheel needs.
TOOLS: Final = (
    "hypothesis",
    "psutil",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
    "tensorboardX",
    "trustme",
)
PIP: Final = ("-m", "pip", "install", "--quiet", "--no-compile")
SYSTEM: Final = "system"
NONE: Final = "none"
_FACTS: Final = """
import json, platform
facts = {"python": platform.python_version(), "torch": "", "numpy": ""}
try:
    import numpy, torch
    facts |= {"torch": torch.__version__, "numpy": numpy.__version__}
except ImportError:
    pass
print(json.dumps(facts))
"""
_PASSED: Final = re.compile(r"\b(\d+) (passed|failed|error|errors)\b")


class Row(NamedTuple):
    """One environment. tests: as pytest counts them. verify: "equal", "failed", "" if there was no torch."""

    python: str
    torch: str
    numpy: str
    tests: str
    verify: str
    date: str

    @property
    def good(self) -> bool:
        return "failed" not in self.tests + self.verify and "error" not in self.tests

    def replaces(self, other: Row) -> bool:
        """Whether both are of the same series of Python and the same torch."""
        return (series(self.python), self.torch) == (series(other.python), other.torch)


def series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))


def read_rows(text: str) -> list[Row]:
    return [Row(**json.loads(line)) for line in text.splitlines() if line.strip()]


def with_row(rows: Sequence[Row], new: Row) -> list[Row]:
    """Return the rows with a new one in the place of the one it replaces, oldest versions first."""
    kept = [row for row in rows if not new.replaces(row)]
    return sorted([*kept, new], key=lambda row: (order(series(row.python)), order(row.torch)))


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [
        "| Python | torch | NumPy | tests of the quick suite | `elastane verify` under a kill | on |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row.python, row.torch or "none", row.numpy, row.tests, row.verify, row.date)
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def render(page: str, rows: Sequence[Row]) -> str:
    """Return the page with this table between its two marks. Raises ValueError if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no place for the table")
    return f"{before}{BEGIN}{table(rows)}{END}{after}"


def pinned_torch(constraints: str) -> str:
    """Return the version of torch that constraints.txt pins."""
    found = re.search(r"^torch==(\S+)$", constraints, re.MULTILINE)
    assert found is not None, "constraints.txt pins no torch"
    return found[1]


def make_environment(python: str, torch: str, folder: Path) -> Path:
    """Make a virtual environment with the project and the tests' tools; return its interpreter.

    torch: a version, SYSTEM or NONE. In a folder that has an environment, pip adds what is missing.
    Raises subprocess.CalledProcessError.
    """
    interpreter = folder / "bin" / "python"
    system = ["--system-site-packages"] if torch == SYSTEM else []
    if not interpreter.exists():
        subprocess.run([python, "-m", "venv", *system, str(folder)], check=True)
    wanted = [f"torch=={torch}", "numpy"] if torch not in (SYSTEM, NONE) else []
    # The newest that is there, but for torch: the metadata's ranges are tested, and not our pins.
    variables = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    subprocess.run(
        [str(interpreter), *PIP, "-e", str(ROOT), *TOOLS, *wanted],
        env=variables,
        check=True,
    )
    return interpreter


def run_suite(python: Path, jobs: int) -> Row:
    """Run the quick suite with an interpreter and return what came out."""
    said = subprocess.run([str(python), "-c", _FACTS], check=True, stdout=subprocess.PIPE, text=True)
    facts: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    tests = TESTS if facts["torch"] else TESTS_WITHOUT_TORCH
    # Debian's torch is built without libuv, which torch itself then wants to be told.
    variables = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    if "debian" in facts["torch"]:
        variables["USE_LIBUV"] = "0"
    options = ["-m", "not slow and not further", "-n", str(jobs), "--dist", "worksteal", "-W", "ignore"]
    done = subprocess.run(
        [str(python), "-m", "pytest", *tests, *options],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    counted = ", ".join(f"{number} {word}" for number, word in _PASSED.findall(last))
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        counted = counted if "failed" in counted or "error" in counted else "failed"
    verified = verify(python, variables) if facts["torch"] else ""
    return Row(**facts, tests=counted, verify=verified, date=time.strftime("%Y-%m-%d", time.gmtime()))


def verify(python: Path, variables: dict[str, str]) -> str:
    """Compare a script's bits under kills with those under stock DDP: "equal" or "failed"."""
    with tempfile.TemporaryDirectory(prefix="elastane-verify-") as folder:
        done = subprocess.run(
            [str(python.parent / "elastane"), *VERIFY],
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode == 0 and "equal, bit for bit" in done.stdout:
        return "equal"
    print(done.stdout, file=sys.stderr)
    return "failed"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="interpreters, as python3.13")
    parser.add_argument("--torch", help="version, `system` or `none` (default: the tested version)")
    parser.add_argument("--here", action="store_true", help="in this environment; writes nothing")
    parser.add_argument("--folder", help="environment of the one PYTHON, kept (default: a temporary one)")
    parser.add_argument("--page", action="store_true", help="only write the table into docs/installing.md")
    parser.add_argument("--jobs", type=int, default=2, help="tests at once")
    given = parser.parse_args(arguments)
    if not (given.pythons or given.here or given.page):
        parser.error("name interpreters, --here or --page")
    if given.folder and len(given.pythons) != 1:
        parser.error("--folder is the environment of one PYTHON")
    made: list[Row] = []
    if given.here:
        made.append(run_suite(Path(sys.executable), given.jobs))
        print(table(made), end="")
    torch = given.torch or pinned_torch((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    for python in given.pythons:
        with tempfile.TemporaryDirectory(prefix="elastane-compatibility-") as own:
            folder = Path(given.folder).absolute() if given.folder else Path(own) / "venv"
            made.append(run_suite(make_environment(python, torch, folder), given.jobs))
        rows = with_row(read_rows(ROWS.read_text(encoding="utf-8")) if ROWS.exists() else [], made[-1])
        ROWS.write_text("".join(json.dumps(row._asdict()) + "\n" for row in rows), encoding="utf-8")
        print(table(made[-1:]), end="", flush=True)
    if given.pythons or given.page:
        page = render(PAGE.read_text(encoding="utf-8"), read_rows(ROWS.read_text(encoding="utf-8")))
        PAGE.write_text(page, encoding="utf-8")
    return 0 if all(row.good for row in made) else 1


if __name__ == "__main__":
    sys.exit(main())
