"""Finds classes of other training libraries that would train in each worker by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from elastane_common.errors import UnsupportedError

#: By library, classes that have a counterpart in `elastane.integrations`.
COUNTERPARTS: Final = {"accelerate": ("Accelerator",), "transformers": ("Trainer", "Seq2SeqTrainer")}


class PlainLibraryError(UnsupportedError):
    """A script uses Accelerate's or transformers' own class in an elastic job."""

    code = "ELA368"


def plain_library_error(place: str, library: str, name: str) -> PlainLibraryError:
    """Return the error for a script that uses the class `name` of `library` at `place`."""
    return PlainLibraryError(
        f"{place} uses {library}'s own {name}, which would train in each worker by itself",
        hint=f"from elastane.integrations.{library} import {name}",
        library=library,
    )


def plain_class(tree: ast.Module) -> tuple[int, str, str] | None:
    """Return line, library and name of the first such class that a script uses.

    None also for a script that imports Elastane: it may use them beside its job.
    """
    imports = [part for node in ast.walk(tree) for part in _imports(node)]
    if any(module.partition(".")[0] == "elastane" for module, *_ in imports):
        return None
    whole = {module: name for module, name, _ in imports if module in COUNTERPARTS and not name}
    for module, name, line in imports:
        library = module.partition(".")[0]
        if name in COUNTERPARTS.get(library, ()):
            return line, library, name
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name(library), name) if library in whole and name in COUNTERPARTS[library]:
                return node.lineno, library, name
    return None


def modules_of(tree: ast.Module) -> set[str]:
    """Return the top-level modules that a script imports."""
    return {module.partition(".")[0] for node in ast.walk(tree) for module, *_ in _imports(node)}


def _imports(node: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Yield module, name and line of each import; the name is empty if the module itself is imported."""
    match node:
        case ast.Import(aliases):
            yield from ((alias.name, "", node.lineno) for alias in aliases)
        case ast.ImportFrom(str(module), aliases, 0):
            yield from ((module, alias.name, node.lineno) for alias in aliases)
