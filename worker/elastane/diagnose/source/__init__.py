"""Examination of a script's source before any of it runs: pure, from its syntax tree.

reading      the script's shape: the three lines, its loops
loop_rules   the loop over mini-batches
epoch_rules  the loop over epochs
setup_rules  seeds, prepare, torch.distributed, modules

A rule names the line, the variable and the remedy. It prefers silence to a false alarm: values that are only
logged, and facts that cannot be inferred from names, are skipped.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from elastane.diagnose.findings import Finding
from elastane.diagnose.source.epoch_rules import epoch_findings
from elastane.diagnose.source.loop_rules import loop_findings
from elastane.diagnose.source.notes import Notes
from elastane.diagnose.source.reading import Script
from elastane.diagnose.source.setup_rules import setup_findings

#: Kinds of findings that explain why a repeated step differed.
_REASONS = ("break", "loop variable", "module state", "after the step")


def examine_source(text: str, file: str = "script", *, main: bool = True) -> list[Finding]:
    """Return findings in the source of one file, by line; [] if it cannot be parsed, as it then fails when
    run.

    main: the file is the script itself, not a module that it imports.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    script = Script(tree, file, main)
    if main and not script.uses_elastane:
        return []
    notes = Notes(file)
    loop_findings(script, notes)
    epoch_findings(script, notes)
    setup_findings(script, notes)
    return sorted(notes.findings, key=lambda finding: finding.line)


def examine_script(command: Sequence[str]) -> list[Finding]:
    """Return findings of a script and of imported modules beside it. command: as for the interpreter."""
    path = _path_of(command)
    if path is None:
        return []
    text = _read(path)
    found = examine_source(text, path.name)
    for beside in _beside(text, path.parent):
        found += examine_source(_read(beside), beside.name, main=False)
    return found


def trains_pipeline(command: Sequence[str]) -> bool:
    """True if a script's source prepares a pipeline and nothing else. command: as for the interpreter."""
    path = _path_of(command)
    if path is None:
        return False
    called: set[str] = set()
    for text in (_read(path), *map(_read, _beside(_read(path), path.parent))):
        with contextlib.suppress(SyntaxError, ValueError):
            called |= {n.func.attr for n in ast.walk(ast.parse(text)) if _is_method_call(n)}
    return "prepare_pipeline" in called and "prepare" not in called


def _is_method_call(node: ast.AST) -> TypeGuard[Any]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


def with_source(found: Iterable[Finding], source: Sequence[Finding]) -> list[Finding]:
    """Merge findings of a short run and of the source, which explain a step that differed."""
    reasons = [finding for finding in source if finding.kind in _REASONS]
    merged = []
    for finding in found:
        if finding.kind == "replay" and reasons and not finding.where.endswith("DataLoader"):
            lines = ", ".join(dict.fromkeys(reason.where for reason in reasons))
            finding = msgspec.structs.replace(finding, where=lines, todo="see these lines")
        merged.append(finding)
    return merged + list(source)


def _path_of(command: Sequence[str]) -> Path | None:
    if not command:
        return None
    if command[0] != "-m":
        path = Path(command[0])
        return path if path.is_file() else None
    name = command[1] if len(command) > 1 else ""
    for path in (Path(*name.split(".")).with_suffix(".py"), Path(*name.split("."), "__main__.py")):
        if name and path.is_file():
            return path
    try:
        spec = importlib.util.find_spec(name) if name and "." not in name else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def _beside(text: str, folder: Path) -> list[Path]:
    """Return modules of the script's own folder that it imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    paths = [folder.joinpath(*name.split(".")).with_suffix(".py") for name in dict.fromkeys(names)]
    return [path for path in dict.fromkeys(paths) if path.is_file()]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


__all__ = ["examine_script", "examine_source", "trains_pipeline", "with_source"]
