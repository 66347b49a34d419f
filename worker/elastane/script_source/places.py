"""Which files are the user's script, their syntax trees, and places in them as messages name them."""

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

OWN_PACKAGES: Final = ("elastane", "elastane_proto", "elastane_shards", "elastane_master")


def is_script_file(filename: str) -> bool:
    """Whether this file is the user's code: neither an installed package nor Elastane."""
    if not filename or filename.startswith("<"):
        return False
    return _is_script_file(filename)


def is_script_class(kind: type) -> bool:
    """Whether the class is the user's own, not a library's."""
    return is_script_file(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")


def script_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the script in the stack of `frame`."""
    while frame is not None and not is_script_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def display_name(filename: str) -> str:
    """A file as findings name it: relative to the script's folder if it is in there."""
    path = Path(filename)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    with contextlib.suppress(ValueError, OSError):
        if main:
            return str(path.resolve().relative_to(Path(main).resolve().parent))
    return path.name


def place_of(frame: FrameType) -> str:
    """The line that the frame is at, as "train.py:31"."""
    return f"{display_name(frame.f_code.co_filename)}:{frame.f_lineno}"


def place_in_words(frame: FrameType) -> str:
    """The line that the frame is at, as "train.py, line 31"."""
    return line_in_words(frame.f_code.co_filename, frame.f_lineno)


def line_in_words(filename: str, line: int) -> str:
    """As "train.py, line 31"."""
    return f"{display_name(filename)}, line {line}"


@lru_cache(maxsize=256)
def tree_of(filename: str) -> ast.Module | None:
    """The syntax tree of a file that has been imported or run; None if there is no source."""
    try:
        return ast.parse("".join(linecache.getlines(filename)), filename)
    except (SyntaxError, ValueError):
        return None


@lru_cache(maxsize=4096)
def _is_script_file(filename: str) -> bool:
    parts = Path(filename).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    resolved = Path(filename).resolve()
    if not resolved.is_file():  # torch has modules whose file is only a word
        return False
    return not any(resolved.is_relative_to(folder) for folder in _library_folders())


@lru_cache(maxsize=1)
def _library_folders() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [Path(path).resolve() for name in names if (path := sysconfig.get_path(name))]
    # Also where it is installed editable, beside no site-packages.
    own = Path(__file__).resolve().parent.parent
    packages = [own, *(own.parent / name for name in OWN_PACKAGES)]
    for name in OWN_PACKAGES:
        origin = getattr(sys.modules.get(name), "__file__", None)
        if origin:
            packages.append(Path(origin).resolve().parent)
    return tuple(dict.fromkeys([*folders, *packages]))
