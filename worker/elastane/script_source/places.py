"""Identifies the user's script files, parses them, and formats locations in them for messages."""

from __future__ import annotations

import ast
import contextlib
import linecache
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Final

OWN_PACKAGES: Final = (
    "elastane",
    "elastane_agent",
    "elastane_cli",
    "elastane_common",
    "elastane_master",
    "elastane_proto",
    "elastane_ps",
    "elastane_shards",
    "elastane_slots",
)


def is_script_file(filename: str) -> bool:
    """Return True if this file is the user's code: neither an installed package nor Elastane."""
    if not filename or filename.startswith("<"):
        return False
    return _is_script_file(filename)


def is_script_class(kind: type) -> bool:
    """Return True if the class is defined in the user's code, not in a library."""
    return is_script_file(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")


def script_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the script in the stack of `frame`; None if there is none."""
    while frame is not None and not is_script_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def display_name(filename: str) -> str:
    """Return a file's name for messages: relative to the script's folder; the bare name if outside of it."""
    path = Path(filename)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    with contextlib.suppress(ValueError, OSError):
        if main:
            return str(path.resolve().relative_to(Path(main).resolve().parent))
    return path.name


def place_of(frame: FrameType) -> str:
    """Format the frame's current line as "train.py:31"."""
    return f"{display_name(frame.f_code.co_filename)}:{frame.f_lineno}"


def place_in_words(frame: FrameType) -> str:
    """Format the frame's current line as "train.py, line 31"."""
    return line_in_words(frame.f_code.co_filename, frame.f_lineno)


def line_in_words(filename: str, line: int) -> str:
    """Format a line as "train.py, line 31"."""
    return f"{display_name(filename)}, line {line}"


@lru_cache(maxsize=256)
def tree_of(filename: str) -> ast.Module | None:
    """Return the syntax tree of a file; None if it has no readable, valid source."""
    try:
        return ast.parse("".join(linecache.getlines(filename)), filename)
    except (SyntaxError, ValueError):
        return None


@lru_cache(maxsize=4096)
def _is_script_file(filename: str) -> bool:
    # Every worker asks this of all modules, most of them installed: paths would take three times as long.
    parts = filename.split("/")
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    resolved = Path(filename).resolve()
    if not resolved.is_file():  # some of torch's modules have a __file__ that is not a path
        return False
    return not str(resolved).startswith(_library_prefixes())


@lru_cache(maxsize=1)
def _library_prefixes() -> tuple[str, ...]:
    """Return the path prefixes of library files."""
    return tuple(f"{folder}/" for folder in _library_folders())


@lru_cache(maxsize=1)
def _library_folders() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [Path(path).resolve() for name in names if (path := sysconfig.get_path(name))]
    # Elastane itself may be an editable installation, outside of site-packages.
    own = Path(__file__).resolve().parent.parent
    packages = [own, *(own.parent / name for name in OWN_PACKAGES)]
    for name in OWN_PACKAGES:
        origin = getattr(sys.modules.get(name), "__file__", None)
        if origin:
            packages.append(Path(origin).resolve().parent)
    return tuple(dict.fromkeys([*folders, *packages]))
