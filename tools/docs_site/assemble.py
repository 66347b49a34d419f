"""Assembles the sources of the site: docs/, pages from the repository's root, and the generated reference.

Links and pictures in the pages work in the repository. Here one that leads out of docs/ is rewritten to the
copy; a link to a source file is replaced by the file's name.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

from docs_site import cli_reference, proto_reference, python_reference, settings_reference
from docs_site.navigation import FROM_ROOT, GROUPS, MORE, REFERENCE
from docs_site.paths import DOCS, ROOT

_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def assemble(folder: Path) -> None:
    """Write all sources into a folder that does not exist yet."""
    shutil.copytree(DOCS, folder)
    for name, page in FROM_ROOT.items():
        (folder / page).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    for page in sorted(folder.rglob("*.md")):
        relative = page.relative_to(folder).as_posix()
        origin = next((ROOT / name for name, copy in FROM_ROOT.items() if copy == relative), DOCS / relative)
        page.write_text(relinked(page.read_text(encoding="utf-8"), origin, relative), encoding="utf-8")
    made = {
        "cli": cli_reference.render,
        "master-settings": settings_reference.render,
        "python": python_reference.render,
        "protocol": proto_reference.render,
    }
    (folder / REFERENCE).mkdir(exist_ok=True)
    for name, render in made.items():
        (folder / REFERENCE / f"{name}.md").write_text(render(), encoding="utf-8")
    _write_indexes(folder)


def relinked(text: str, origin: Path, page: str) -> str:
    """Rewrite the links in `text` for the site. origin: its file here; page: its path in the site."""

    def replace(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in target or target.startswith("mailto:"):
            return found[0]
        file = Path(os.path.normpath(origin.parent / path))
        if not file.exists():
            return found[0]  # a broken link: Sphinx will warn
        name = file.relative_to(ROOT).as_posix()
        if file.is_dir() and file.is_relative_to(DOCS):
            here = f"{file.relative_to(DOCS).as_posix()}/index.md"
        elif name in FROM_ROOT:
            here = FROM_ROOT[name]
        elif file.is_relative_to(DOCS):
            here = file.relative_to(DOCS).as_posix()
        elif mark:
            return found[0]  # a picture from elsewhere: Sphinx will say so
        else:
            return words if "`" in words else f"`{words}`"
        there = Path(os.path.relpath(here, Path(page).parent)).as_posix()
        return f"{mark}[{words}]({there}{'#' if anchor else ''}{anchor})"

    # Leave fenced code blocks alone.
    pieces = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(piece if piece.startswith("```") else _LINK.sub(replace, piece) for piece in pieces)


def _write_indexes(folder: Path) -> None:
    """Write the index page of each group, and their lists into the home page."""
    decisions = sorted(path.stem for path in (folder / "decisions").glob("[0-9]*.md"))
    (folder / "decisions" / "index.md").write_text(_index("Decisions", "", decisions), encoding="utf-8")
    listed = {page for group in GROUPS for page in group.pages}
    present = {path.relative_to(folder).as_posix().removesuffix(".md") for path in folder.rglob("*.md")}
    further = sorted(p for p in present - listed if not p.startswith("decisions/") and p != "index")
    parts = [(folder / "index.md").read_text(encoding="utf-8")]
    for group in (*GROUPS, MORE._replace(pages=tuple(further))):
        pages = [page for page in group.pages if page in present or page == "decisions/index"]
        if pages:
            parts.append(_toctree(pages, group.title))
    (folder / "index.md").write_text("\n".join(parts), encoding="utf-8")


def _index(title: str, text: str, pages: list[str]) -> str:
    return f"# {title}\n\n{text}\n{_toctree(pages)}"


def _toctree(pages: list[str], caption: str = "") -> str:
    lines = [":maxdepth: 1", *([f":caption: {caption}", ":hidden:"] if caption else []), "", *pages]
    return "\n".join(["```{toctree}", *lines, "```", ""])
