"""ARCHITECTURE.md and README.md are true: what layers import, every path, symbol and command that is named.

Names stand between backquotes. In the table "Where would I change ..." a path is followed by names that it
defines: functions, classes, constants, methods and fields of a Python module. Of other files, and of options,
it is enough that the file has the word.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from elastane_cli.commands.catalogue import COMMANDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
README = (ROOT / "README.md").read_text()
#: The folder that holds each package.
HOMES = {
    "elastane_common": "common",
    "elastane_proto": "proto",
    "elastane_scheduler": "scheduler",
    "elastane_planner": "planner",
    "elastane_shards": "shard_service",
    "elastane_slots": "shard_service",
    "elastane_master": "master",
    "elastane": "worker",
    "elastane_agent": "worker",
    "elastane_cli": "worker",
    "elastane_ps": "worker",
    "elastane_runner": "worker",
    "elastane_operator": "deploy",
}


def rows(text: str, title: str) -> list[list[str]]:
    """The cells of the table whose first heading is `title`, without the headings."""
    found = re.search(rf"^\| {re.escape(title)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert found is not None, f"no table {title!r}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1].splitlines()]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


# ---------------------------------------------------------------- layers


def unit_of(module: str) -> str:
    """The part that a module belongs to: "elastane_cli.commands"; "elastane.*" for those beside folders."""
    root, *rest = module.split(".")
    if root in (
        "elastane_common",
        "elastane_planner",
        "elastane_proto",
        "elastane_scheduler",
        "elastane_shards",
        "elastane_slots",
    ):
        return root
    folder = ROOT / HOMES[root] / root / (rest[0] if rest else "")
    return f"{root}.{rest[0]}" if rest and folder.is_dir() else f"{root}.*"


def is_module(name: str) -> bool:
    root, *rest = name.split(".")
    file = (ROOT / HOMES[root] / root).joinpath(*rest)
    return file.is_dir() or file.with_suffix(".py").exists()


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules of ours that it imports anywhere, also in a function or for types alone."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in HOMES:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if is_module(name) else node.module for name in whole]
        yield from (name for name in names if name.split(".")[0] in HOMES)


@cache
def imports() -> dict[str, set[str]]:
    """For each unit the other units that it imports."""
    found: dict[str, set[str]] = {}
    for root, home in HOMES.items():
        for file in (ROOT / home / root).rglob("*.py"):
            if file.stem.endswith(("_pb2", "_pb2_grpc")):
                continue
            parts = file.relative_to(ROOT / home).with_suffix("").parts
            unit = unit_of(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
            others = {unit_of(name) for name in imported(ast.parse(file.read_text()))}
            if parts[1:] == ("__init__",) and not others:
                continue  # it is the package's docstring alone
            found.setdefault(unit, set()).update(others - {unit})
    return found


def units_of_row(cell: str) -> list[str]:
    """Of "`worker/elastane_cli/verify`, `chaos`": the later names stand in the folder of the first."""
    first, *rest = quoted(cell)
    _, root, *below = first.split("/")
    if not below:
        return [root]
    return [f"{root}.{name.removesuffix('.py')}" for name in (*below, *rest)]


def test_the_layers_import_what_the_table_says_and_nothing_else() -> None:
    told: dict[tuple[str, ...], set[str]] = {}
    for cell, _, allowed in rows(PAGE, "package"):
        units = tuple(units_of_row(cell))
        root = units[0].split(".")[0]
        names = (name.removesuffix(".py") for name in quoted(allowed))
        told[units] = {name if name.split(".")[0] in HOMES else f"{root}.{name}" for name in names}
    assert sorted(unit for units in told for unit in units) == sorted(imports()), "a folder without a row"
    for units, allowed in told.items():
        true = set().union(*(imports()[unit] for unit in units)) - set(units)
        assert allowed == true, f"{units} import {sorted(true)}"


# ---------------------------------------------------------------- where would I change ...

WHERE = rows(PAGE, "Where would I change ...")


@cache
def defined_in(path: str) -> frozenset[str]:
    """Every name that a Python module defines, at its top or in a class."""
    names: set[str] = set()

    def take(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.ClassDef):
                names.add(node.name)
                take(node.body)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(target.id for target in targets if isinstance(target, ast.Name))

    take(ast.parse((ROOT / path).read_text()).body)
    return frozenset(names)


def fault_of(answer: str) -> str:
    """What is wrong with the answer of a row; empty if nothing is."""
    path = ""
    for name in quoted(answer):
        if name.startswith(("make ", "elastane ", "pytest ")):
            if fault := fault_of_command(name):
                return fault
        elif "/" in name:
            path = name
            if not (ROOT / path).exists():
                return f"there is no {path}"
        elif not path:
            return f"{name} has no path before it"
        elif path.endswith(".py") and name.isidentifier():
            if name not in defined_in(path):
                return f"{path} does not define {name}"
        elif not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", (ROOT / path).read_text()):
            return f"{path} does not have {name}"
    return "" if path else "no path"


def fault_of_command(command: str) -> str:
    program, name, *_ = command.split()
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return "" if name in targets else f"no target {name}"
    if program == "pytest":
        return "" if (ROOT / name).exists() else f"there is no {name}"
    return "" if name in COMMANDS else f"no command {name}"


@pytest.mark.parametrize(("question", "answer"), WHERE, ids=[row[0] for row in WHERE])
def test_a_change_is_made_where_the_page_says(question: str, answer: str) -> None:
    assert fault_of(answer) == ""


def test_there_are_at_least_thirty_answers() -> None:
    assert len({question for question, _ in WHERE}) == len(WHERE) >= 30


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("`worker/elastane/nowhere.py`", "there is no worker/elastane/nowhere.py"),
        (
            "`common/elastane_common/errors.py` (`Nothing`)",
            "common/elastane_common/errors.py does not define Nothing",
        ),
        (
            "`proto/elastane_proto/v1/ring.proto` (`Hell`)",
            "proto/elastane_proto/v1/ring.proto does not have Hell",
        ),
        ("`common/elastane_common/errors.py`, then `make nothing`", "no target nothing"),
        ("`common/elastane_common/errors.py`, then `elastane explode`", "no command explode"),
        ("`EXIT_REFUSED`", "EXIT_REFUSED has no path before it"),
        ("nowhere", "no path"),
    ],
)
def test_the_check_finds_what_is_wrong(answer: str, fault: str) -> None:
    assert fault_of(answer) == fault


def test_every_other_path_on_the_page_is_there() -> None:
    prose = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    named = [name for name in quoted(prose) if re.fullmatch(r"[\w./-]+/[\w./-]+", name)]
    assert len(named) > len(WHERE)
    assert [name for name in named if not (ROOT / name).exists()] == []


# ---------------------------------------------------------------- the front page


def test_each_promise_of_the_readme_has_a_command_that_exists() -> None:
    for promise, shown in rows(README, "promise"):
        commands = quoted(shown)
        assert commands, promise
        assert [fault for command in commands if (fault := fault_of_command(command))] == []


def test_the_diff_of_the_readme_is_that_of_its_two_scripts() -> None:
    """Three lines that call Elastane, beside the import; the rest of what is added is one argument."""
    (diff,) = re.findall(r"^```diff\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    before, after = (ROOT / "examples" / name for name in ("minimal_ddp.py", "minimal.py"))
    assert applied(diff, before.read_text()) == after.read_text()
    added = re.findall(r"^\+(?!\+)(.*)$", diff, re.MULTILINE)
    assert [line for line in added if "job" in line] == [
        "job = elastane.init()",
        "model, optimizer, loader = job.prepare(net, optimizer, loader)",
        "for epoch in job.epochs(10):",
    ]


def applied(diff: str, text: str) -> str:
    """`text` with a unified diff applied; the lines that it keeps or removes have to be there."""
    lines, made, at = text.splitlines(keepends=True), [], 0
    for line in diff.splitlines(keepends=True)[2:]:
        if found := re.match(r"@@ -(\d+)", line):
            begin = int(found[1]) - 1
            made += lines[at:begin]
            at = begin
            continue
        kind, rest = line[0], line[1:] or "\n"
        if kind == "+":
            made.append(rest)
            continue
        assert lines[at] == rest, f"{rest!r} is not line {at + 1}"
        at += 1
        made += [rest] if kind == " " else []
    return "".join(made + lines[at:])
