"""Finds classes of other training libraries that would train independently in each worker."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from elastane.script_source.places import tree_of
from elastane_common.errors import UnsupportedError

#: Training classes by package; `_hint` names the replacement for each.
TRAINING_CLASSES: Final = {
    "accelerate": ("Accelerator",),
    "transformers": ("Trainer", "Seq2SeqTrainer"),
    "lightning": ("Trainer", "Fabric"),
    "pytorch_lightning": ("Trainer",),
    "lightning_fabric": ("Fabric",),
}
#: Maximum size of a script file that is analysed, in bytes; larger files are skipped.
FILES_MAX: Final = 200


class PlainLibraryError(UnsupportedError):
    """A script in an elastic job uses another library's training class."""

    code = "ELA368"


def plain_library_error(place: str, library: str, name: str) -> PlainLibraryError:
    """Return the error for a script that uses the class `name` of `library` at `place`."""
    return PlainLibraryError(
        f"{place} uses {library}'s own {name}, which would train in each worker by itself",
        hint=_hint(library, name),
        library=library,
    )


def own_strategy_error(place: str) -> PlainLibraryError:
    """Return the error for a script whose Lightning Trainer starts its own "ddp" processes at `place`."""
    return PlainLibraryError(
        f"{place} uses a strategy of Lightning's own, which would start its own processes in each worker",
        hint=_hint("lightning", "Trainer"),
        library="lightning",
    )


def find_plain_class(script: str) -> tuple[str, str, str] | None:
    """Return place, library and name of the first such class in a script and the modules beside it.

    Returns None if one of these files imports Elastane: the class may then be used outside of the job.
    """
    found, waiting, seen = None, [Path(script)], {Path(script)}
    while waiting:
        path = waiting.pop(0)
        tree = tree_of(str(path))
        if tree is None:
            continue
        if uses_elastane(tree) or len(seen) > FILES_MAX:
            return None
        if found is None and (here := plain_class(tree)) is not None:
            line, library, name = here
            found = f"{path}:{line}", library, name
        beside = set(_modules_beside(tree, path, Path(script).parent)) - seen
        seen |= beside
        waiting += sorted(beside)
    return found


def plain_class(tree: ast.Module) -> tuple[int, str, str] | None:
    """Return line, library and name of the first such class that a file uses.

    Returns None also for a file that imports Elastane: it may use the class outside of its job.
    """
    if uses_elastane(tree):
        return None
    modules: dict[str, str] = {}  # by the name that the file gives them
    for node in ast.walk(tree):
        match node:
            case ast.Import(aliases):
                for alias in aliases:
                    library = alias.name.partition(".")[0]
                    modules[alias.asname or library] = library
            case ast.ImportFrom(str(module), aliases, 0):
                library = module.partition(".")[0]
                modules |= {alias.asname or alias.name: library for alias in aliases}
                for alias in aliases:
                    if alias.name in TRAINING_CLASSES.get(library, ()):
                        return node.lineno, library, alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            library = modules.get(_root(node.value), "")
            if node.attr in TRAINING_CLASSES.get(library, ()):
                return node.lineno, library, node.attr
    return None


def uses_elastane(tree: ast.Module) -> bool:
    """True if a file imports Elastane."""
    return any(name.partition(".")[0] == "elastane" for node in ast.walk(tree) for name in _imported(node))


def _hint(library: str, name: str) -> str:
    if name == "Fabric":
        package = (
            "pip install lightning in place of lightning_fabric; " if library == "lightning_fabric" else ""
        )
        return (
            f"{package}from elastane.integrations.lightning import Fabric, and for the loop over epochs:"
            " for epoch in fabric.epochs(n)"
        )
    if library in ("lightning", "pytorch_lightning"):
        package = "" if library == "lightning" else "import lightning in place of pytorch_lightning; "
        return (
            f"{package}from elastane.integrations.lightning import ElastaneStrategy, and give it to the"
            " Trainer: Trainer(..., strategy=ElastaneStrategy())"
        )
    return f"from elastane.integrations.{library} import {name}"


def _root(node: ast.expr) -> str:
    """Return the name at the start of a chain of attributes; "" if it starts with another expression."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the full names of the modules that a statement may import, without relative ones."""
    match node:
        case ast.Import(aliases):
            yield from (alias.name for alias in aliases)
        case ast.ImportFrom(str(module), aliases, 0):
            yield module
            yield from (f"{module}.{alias.name}" for alias in aliases)


def _modules_beside(tree: ast.Module, path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files that a file imports from the script's folder, or, relatively, from its own package."""
    for node in ast.walk(tree):
        for name in _imported(node):
            yield from _files_of(folder, name.split("."))
        if isinstance(node, ast.ImportFrom) and node.level:
            package = path.parents[node.level - 1] if node.level <= len(path.parents) else folder
            parts = node.module.split(".") if node.module else []
            for alias in node.names:
                yield from _files_of(package, [*parts, alias.name])


def _files_of(folder: Path, parts: list[str]) -> Iterator[Path]:
    """Yield the files that importing the dotted name `parts` from `folder` runs."""
    for part in parts:
        if (file := folder / f"{part}.py").is_file():
            yield file
        folder = folder / part
        if (file := folder / "__init__.py").is_file():
            yield file
